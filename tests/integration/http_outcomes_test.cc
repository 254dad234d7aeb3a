// What the user of a guarded route is told, outcome by outcome: a server of
// cpp-httplib before a real coordinator.
#include <chrono>
#include <future>
#include <stdexcept>

#include "tests/integration/http_fixture.h"
#include "tests/integration/metrics_page.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;
using Kind = HttpNotice::Kind;

TEST_F(HttpTest, ARetryGetsTheFirstOnesResponse) {
  Serve(ARoute(), [](const httplib::Request& request,
                     httplib::Response& response, Execution* execution) {
    EXPECT_EQ(request.body, "{\"amount\":200}");
    EXPECT_EQ(execution->attempt(), 1);
    EXPECT_EQ(execution->downstream_key().size(), 36u);
    EXPECT_EQ(execution->abandoned(), nullptr);
    response.status = 201;
    response.set_header("X-Charge", "7");
    response.set_header("X-Bytes", "\xc3\xa9\xff");
    response.headers.emplace("X-Twice", "1");
    response.headers.emplace("X-Twice", "2");
    response.set_header("Set-Cookie", "session=1");
    response.set_content(std::string("{\"id\":\0}", 8), "application/json");
    return HttpEffect::kExecuted;
  });
  const std::string key = NewKey();
  const std::string body("{\"id\":\0}", 8);

  const httplib::Result first = Pay(key);
  const httplib::Result second = Pay(key);

  ASSERT_THAT(first, Is(201, body));
  ASSERT_THAT(second, IsReplay(201, body));
  for (const auto& [name, value] : first->headers) {
    if (name == "Set-Cookie" || name == "Keep-Alive") continue;
    EXPECT_THAT(second->headers, Contains(testing::Pair(name, value)));
  }
  EXPECT_EQ(second->get_header_value_count("X-Twice"), 2u);
  EXPECT_EQ(second->get_header_value("X-Bytes"), "\xc3\xa9\xff");
  EXPECT_TRUE(first->has_header("Set-Cookie"));
  EXPECT_FALSE(second->has_header("Set-Cookie"));
  EXPECT_EQ(runs(), 1);
  EXPECT_THAT(notices(), IsEmpty());
}

TEST_F(HttpTest, WithoutAKeyItRunsWhereNoneIsRequired) {
  HttpRoute route = ARoute();
  route.required = false;
  Serve(route, [](const httplib::Request&, httplib::Response& response,
                  Execution* execution) {
    EXPECT_EQ(execution, nullptr);
    response.set_content("ran", "text/plain");
    return HttpEffect::kExecuted;
  });

  EXPECT_THAT(Post({}), Is(200, "ran"));
  EXPECT_THAT(Post({}), Is(200, "ran"));
  EXPECT_EQ(runs(), 2);
}

TEST_F(HttpTest, WithoutAKeyItIsRefusedWhereOneIsRequired) {
  Serve(ARoute(), Answering("ran"));

  EXPECT_THAT(Post({}), IsProblem(400, "key-missing"));
  EXPECT_EQ(runs(), 0);
}

TEST_F(HttpTest, AnotherRequestWithTheKeyIsRefused) {
  Serve(ARoute(), Answering("ran"));
  const std::string key = NewKey();
  Pay(key);

  EXPECT_THAT(Pay(key, "{\"amount\":201}"), IsProblem(422, "key-reused"));
  EXPECT_THAT(Pay(key), IsReplay(201, "ran"));
  EXPECT_EQ(runs(), 1);
}

TEST_F(HttpTest, WhileItRunsADuplicateIsToldWhenToComeBack) {
  std::promise<void> entered, may_end;
  Serve(ARoute(),
        [&](const httplib::Request&, httplib::Response& response, Execution*) {
          entered.set_value();
          may_end.get_future().wait();
          response.set_content("ran", "text/plain");
          return HttpEffect::kExecuted;
        });
  const std::string key = NewKey();

  auto first = std::async(std::launch::async, [&] { return Pay(key); });
  entered.get_future().wait();
  const httplib::Result duplicate = Pay(key);
  may_end.set_value();

  EXPECT_THAT(duplicate, IsProblem(409, "in-progress"));
  const std::string retry_after = duplicate->get_header_value("Retry-After");
  EXPECT_THAT(retry_after, testing::AnyOf("1", "2"));
  EXPECT_THAT(first.get(), Is(200, "ran"));
  EXPECT_THAT(Pay(key), IsReplay(200, "ran"));
  EXPECT_EQ(runs(), 1);
}

TEST_F(HttpTest, WhereTheRouteWaitsADuplicateGetsTheResponse) {
  std::promise<void> entered, may_end;
  HttpRoute route = ARoute();
  route.wait = kPatience;
  Serve(route,
        [&](const httplib::Request&, httplib::Response& response, Execution*) {
          entered.set_value();
          may_end.get_future().wait();
          response.set_content("ran", "text/plain");
          return HttpEffect::kExecuted;
        });
  const std::string key = NewKey();

  auto first = std::async(std::launch::async, [&] { return Pay(key); });
  entered.get_future().wait();
  auto duplicate = std::async(std::launch::async, [&] { return Pay(key); });
  WaitUntil([] {
    return MetricsPage::Get(AdminPortOf(replica()))
               ->Value("idempotency_waiting_calls") == 1;
  });
  may_end.set_value();

  EXPECT_THAT(first.get(), Is(200, "ran"));
  EXPECT_THAT(duplicate.get(), IsReplay(200, "ran"));
  EXPECT_EQ(runs(), 1);
}

// ------------------------------------------------------------------- in doubt

TEST_F(HttpTest, InDoubtTheHandlerDoesNotRun) {
  Serve(ARoute("payment"), Answering("ran"));
  const std::string key = NewKey();
  Abandon(key);

  EXPECT_THAT(Pay(key), IsProblem(409, "in-doubt"));
  EXPECT_EQ(runs(), 0);
}

TEST_F(HttpTest, InDoubtTheResolverAnswersForAll) {
  Serve(ARoute("payment"), Answering("ran"),
        [](const httplib::Request& request, Execution& execution) {
          EXPECT_EQ(request.body, "{\"amount\":200}");
          EXPECT_NE(execution.abandoned(), nullptr);
          return WasExecuted{MakeResponse(201, "found")};
        });
  const std::string key = NewKey();
  Abandon(key);

  EXPECT_THAT(Pay(key), Is(201, "found"));
  EXPECT_THAT(Pay(key), IsReplay(201, "found"));
  EXPECT_EQ(runs(), 0);
}

TEST_F(HttpTest, InDoubtAResponseWhoseBodyTheResolverLacksIsNotMadeUp) {
  std::atomic<int> status{201};
  Serve(ARoute("payment"), Answering("ran"),
        [&](const httplib::Request&, Execution&) {
          v1::Response found = MakeResponse(status, "");
          found.set_body_omitted(true);
          return WasExecuted{found};
        });
  std::string key = NewKey();
  Abandon(key);

  EXPECT_THAT(Pay(key), IsProblem(410, "response-not-kept"));
  EXPECT_THAT(Pay(key), IsProblem(410, "response-not-kept"));
  status = 204;
  key = NewKey();
  Abandon(key);
  EXPECT_THAT(Pay(key), Is(204, ""));
  EXPECT_THAT(Pay(key), IsReplay(204, ""));
  EXPECT_EQ(runs(), 0);
}

TEST_F(HttpTest, InDoubtTheHandlerRunsOnceItIsKnownThatNoneDid) {
  Serve(
      ARoute("payment"),
      [](const httplib::Request&, httplib::Response& response,
         Execution* execution) {
        EXPECT_EQ(execution->attempt(), 2);
        EXPECT_NE(execution->abandoned(), nullptr);
        response.set_content("ran", "text/plain");
        return HttpEffect::kExecuted;
      },
      [](const httplib::Request&, Execution&) { return NeverExecuted{}; });
  const std::string key = NewKey();
  Abandon(key);

  EXPECT_THAT(Pay(key), Is(200, "ran"));
  EXPECT_EQ(runs(), 1);
}

TEST_F(HttpTest, WhatTheResolverCannotTellStaysInDoubt) {
  Serve(ARoute("payment"), Answering("ran"),
        [](const httplib::Request&, Execution&) { return StillUnknown{}; });
  const std::string key = NewKey();
  Abandon(key);

  EXPECT_THAT(Pay(key), IsProblem(409, "in-doubt"));
  EXPECT_THAT(Pay(key), IsProblem(409, "in-doubt"));
  EXPECT_EQ(runs(), 0);
}

// ------------------------------------------------------ what the handler does

TEST_F(HttpTest, AHandlerThatThrowsLeavesTheOutcomeUnknown) {
  Serve(ARoute(), [](const httplib::Request&, httplib::Response& response,
                     Execution* execution) {
    if (execution->attempt() == 1) throw std::runtime_error("went dead");
    EXPECT_EQ(execution->abandoned()->reason(),
              v1::Abandoned::REASON_OUTCOME_UNKNOWN);
    response.set_content("ran", "text/plain");
    return HttpEffect::kExecuted;
  });
  const std::string key = NewKey();

  const httplib::Result first = Pay(key);
  EXPECT_THAT(first, IsProblem(500, "outcome-unknown"));
  EXPECT_THAT(first->body, Not(testing::HasSubstr("went dead")));
  EXPECT_THAT(notices(), ElementsAre(Kind::kOutcomeUnknown));
  EXPECT_THAT(Pay(key), Is(200, "ran"));
}

TEST_F(HttpTest, AServerErrorIsForThisCallerAndTheNextIsTold) {
  Serve(ARoute(), [](const httplib::Request&, httplib::Response& response,
                     Execution* execution) {
    response.status = execution->attempt() == 1 ? 502 : 201;
    if (execution->attempt() == 2) {
      EXPECT_EQ(execution->abandoned()->status_code(), 502);
    }
    response.set_content("ran", "text/plain");
    return HttpEffect::kExecuted;
  });
  const std::string key = NewKey();

  EXPECT_THAT(Pay(key), Is(502, "ran"));
  EXPECT_THAT(Pay(key), Is(201, "ran"));
  EXPECT_THAT(Pay(key), IsReplay(201, "ran"));
}

TEST_F(HttpTest, WhatWasRefusedBeforeItBeganIsTriedAnew) {
  Serve(ARoute("payment"),
        [](const httplib::Request&, httplib::Response& response,
           Execution* execution) {
          EXPECT_EQ(execution->abandoned(), nullptr);
          response.status = execution->attempt() == 1 ? 429 : 201;
          response.set_content("said", "text/plain");
          return execution->attempt() == 1 ? HttpEffect::kNothing
                                           : HttpEffect::kExecuted;
        });
  const std::string key = NewKey();

  EXPECT_THAT(Pay(key), Is(429, "said"));
  EXPECT_THAT(Pay(key, "corrected"), Is(201, "said"));
}

TEST_F(HttpTest, WhatMayHaveHappenedIsAnsweredAndInDoubt) {
  Serve(ARoute("payment"),
        [](const httplib::Request&, httplib::Response& response, Execution*) {
          response.status = 504;
          response.set_content("no answer", "text/plain");
          return HttpEffect::kUnknown;
        });
  const std::string key = NewKey();

  EXPECT_THAT(Pay(key), Is(504, "no answer"));
  EXPECT_THAT(Pay(key), IsProblem(409, "in-doubt"));
  EXPECT_EQ(runs(), 1);
}

// ------------------------------------------------------------ taken over

TEST_F(HttpTest, WhoeverLostTheKeyAnswersWithWhatCounts) {
  const std::string key = NewKey();
  Serve(ARoute(),
        [&](const httplib::Request&, httplib::Response& response, Execution*) {
          Finalized(FinalizeOf(TakeOver(key), 202, "the winner's"));
          response.set_header("X-Loser", "1");
          response.set_content("the loser's", "text/plain");
          return HttpEffect::kExecuted;
        });

  const httplib::Result result = Pay(key);

  EXPECT_THAT(result, IsReplay(202, "the winner's"));
  EXPECT_FALSE(result->has_header("X-Loser"));
  EXPECT_THAT(notices(), ElementsAre(Kind::kSuperseded));
}

TEST_F(HttpTest, WhoeverLostTheKeyAnswersNoneOfItsOwn) {
  const std::string key = NewKey();
  Serve(ARoute(),
        [&](const httplib::Request&, httplib::Response& response, Execution*) {
          TakeOver(key);
          response.set_content("the loser's", "text/plain");
          return HttpEffect::kExecuted;
        });

  EXPECT_THAT(Pay(key), IsProblem(409, "superseded"));
}

// --------------------------------------------------------------- no answers

// It gives up soon.
HttpRoute Impatient(HttpRoute route) {
  route.claim_timeout = milliseconds(300);
  route.finalize_timeout = milliseconds(300);
  return route;
}

HttpRoute FailingOpen(HttpRoute route) {
  route.fail_open = true;
  return route;
}

TEST_F(HttpTest, WithoutACoordinatorTheHandlerDoesNotRun) {
  TcpGate& gate = ConnectThroughAGate();
  Serve(Impatient(ARoute()), Answering("ran"));
  gate.Refuse();
  const std::string key = NewKey();

  const httplib::Result refused = Pay(key);
  EXPECT_THAT(refused, IsProblem(503, "unavailable"));
  EXPECT_GE(std::stoi(refused->get_header_value("Retry-After")), 1);
  EXPECT_EQ(runs(), 0);
  EXPECT_THAT(notices(), ElementsAre(Kind::kUnavailable));

  gate.Open();
  WaitUntil([&] { return Pay(key)->status == 201; });
  EXPECT_EQ(runs(), 1);
}

TEST_F(HttpTest, WithoutACoordinatorARouteThatFailsOpenRunsAndSaysSo) {
  TcpGate& gate = ConnectThroughAGate();
  Serve(FailingOpen(Impatient(ARoute())),
        [](const httplib::Request&, httplib::Response& response,
           Execution* execution) {
          EXPECT_EQ(execution, nullptr);
          response.set_content("ran", "text/plain");
          return HttpEffect::kExecuted;
        });
  gate.Refuse();

  EXPECT_THAT(Pay(NewKey()), Is(200, "ran"));
  EXPECT_EQ(runs(), 1);
  EXPECT_THAT(notices(), ElementsAre(Kind::kRanUnguarded));
}

TEST_F(HttpTest, ARouteThatFailsOpenStillRefusesWhatTheCoordinatorDoes) {
  Serve(FailingOpen(Impatient(ARoute())),
        [](const httplib::Request&, httplib::Response& response, Execution*) {
          response.set_content("ran", "text/plain");
          return HttpEffect::kExecuted;
        });
  const std::string key = NewKey();
  Abandon(key);
  Granted([&] {
    v1::ClaimRequest claim = ClaimAsPaid(key);
    claim.set_resolve_in_doubt(true);
    return claim;
  }());

  EXPECT_THAT(Pay(key), IsProblem(409, "in-progress"));
  EXPECT_EQ(runs(), 0);
}

TEST_F(HttpTest, AnUnansweredFinalizeKeepsNobodyFromTheResponse) {
  TcpGate& gate = ConnectThroughAGate();
  Serve(Impatient(ARoute()),
        [&](const httplib::Request&, httplib::Response& response, Execution*) {
          gate.Refuse();
          response.set_content("ran", "text/plain");
          return HttpEffect::kExecuted;
        });
  const std::string key = NewKey();

  EXPECT_THAT(Pay(key), Is(200, "ran"));
  EXPECT_THAT(notices(), ElementsAre(Kind::kNotRecorded));
  gate.Open();
  const v1::ClaimRequest claim = ClaimAsPaid(key);
  WaitUntil(
      [&] { return RecordOf(claim).state() == v1::Record::STATE_FINALIZED; });
  EXPECT_EQ(Replayed(claim).response().body(), "ran");
}

// Waiting does not help, and nobody is told that it would.
TEST_F(HttpTest, ARecordThatCannotBeReadIsNoOutage) {
  Serve(FailingOpen(ARoute("payment")), Answering("ran"));
  const std::string key = NewKey();
  Abandon(key);
  Sql("UPDATE idempotency_records SET gave_up = 99 WHERE key = '" + key + "'");

  const httplib::Result result = Pay(key);

  EXPECT_THAT(result, IsProblem(500, "outcome-unknown"));
  EXPECT_FALSE(result->has_header("Retry-After"));
  EXPECT_THAT(notices(), ElementsAre(Kind::kOutcomeUnknown));
  EXPECT_EQ(runs(), 0);
}

TEST_F(HttpTest, ARequestWhoseCallerCannotBeToldIsRefused) {
  HttpRoute route = ARoute();
  route.caller = [](const HttpRequest& request) {
    return std::string(FieldValues(request, "x-tenant").at(0));
  };
  Serve(route, Answering("ran"));

  const httplib::Result result = Pay(NewKey());

  EXPECT_THAT(result, IsProblem(500, "misconfigured"));
  EXPECT_FALSE(result->has_header("EXCEPTION_WHAT"));
  EXPECT_THAT(notices(), ElementsAre(Kind::kMisconfigured));
  EXPECT_EQ(runs(), 0);
}

TEST_F(HttpTest, ARouteWithCallersHasRoomForThemInItsScope) {
  HttpRoute route = ARoute();
  route.scope = std::string(57, 's');
  route.caller = [](const HttpRequest&) { return "a"; };
  Serve(route, Answering("ran"));

  EXPECT_THAT(Pay(NewKey()), IsProblem(500, "misconfigured"));
  EXPECT_EQ(runs(), 0);
  EXPECT_THAT(notices(), ElementsAre(Kind::kMisconfigured));
}

TEST_F(HttpTest, ARouteThatTheCoordinatorDoesNotTakeSaysSo) {
  HttpRoute route = ARoute();
  route.policy = "no such policy";
  Serve(route, Answering("ran"));

  EXPECT_THAT(Pay(NewKey()), IsProblem(500, "misconfigured"));
  EXPECT_EQ(runs(), 0);
  EXPECT_THAT(notices(), ElementsAre(Kind::kMisconfigured));
}

}  // namespace
}  // namespace idempotency
