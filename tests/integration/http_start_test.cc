// The middleware's form without a thread for each request, and without any
// framework.
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>

#include "client/http/middleware.h"
#include "tests/integration/http_fixture.h"

namespace idempotency {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Kind = HttpNotice::Kind;
using Answer = std::function<void(HttpResult)>;

AsyncHttpHandler Counting(std::atomic<int>& runs, HttpResult result) {
  return
      [&runs, result](const std::shared_ptr<Execution>&, const Answer& answer) {
        ++runs;
        answer(result);
      };
}

struct Wallet {
  std::string Charge(const std::string&, const std::string&) { return ""; }
  Resolution Find(const std::string&) { return StillUnknown{}; }
};

// The README's example is compiled as it stands.
[[maybe_unused]] void ServeAsTheReadmeSays(Wallet& wallet){
#include "http_readme.inc"
}

// Starts a POST with that key, or without if it is empty, and waits for what is
// answered.
v1::Response Ask(HttpMiddleware& middleware, const HttpRoute& route,
                 const std::string& key, AsyncHttpHandler handler,
                 AsyncResolver resolve = nullptr) {
  HttpRequest request{.method = "POST", .target = "/payments"};
  if (!key.empty()) request.headers = {{"Idempotency-Key", key}};
  const auto answered = std::make_shared<std::promise<v1::Response>>();
  middleware.Start(
      request, route, std::move(handler),
      [answered](v1::Response response) {
        answered->set_value(std::move(response));
      },
      std::move(resolve));
  return answered->get_future().get();
}

TEST_F(HttpTest, StartedTwiceTheRetryGetsTheFirstOnesResponse) {
  const std::string key = NewKey();
  std::atomic<int> runs{0};
  v1::Response response = MakeResponse(201, "ran");
  v1::Header* const cookie = response.add_headers();
  cookie->set_name("Set-Cookie");
  cookie->set_value("a=b");
  const AsyncHttpHandler handler = Counting(runs, {response});

  const v1::Response first = Ask(middleware(), ARoute(), key, handler);
  const v1::Response second = Ask(middleware(), ARoute(), key, handler);

  EXPECT_EQ(first.SerializeAsString(), response.SerializeAsString());
  EXPECT_EQ(second.body(), "ran");
  ASSERT_EQ(second.headers_size(), 2);
  EXPECT_EQ(second.headers(1).name(), "Idempotent-Replayed");
  EXPECT_EQ(runs, 1);
}

TEST_F(HttpTest, StartedItIsAnsweredFromAnyThreadOnce) {
  std::future<void> later;
  const v1::Response response = Ask(
      middleware(), ARoute(), NewKey(),
      [&](const std::shared_ptr<Execution>& execution, const Answer& answer) {
        EXPECT_EQ(execution->attempt(), 1);
        std::promise<void> assigned;
        later = std::async(
            std::launch::async, [answer, may_answer = assigned.get_future()] {
              may_answer.wait();
              answer({MakeResponse(201, "first")});
              answer({MakeResponse(201, "second"), HttpEffect::kUnknown});
            });
        assigned.set_value();
      });
  later.wait();

  EXPECT_EQ(response.body(), "first");
}

TEST_F(HttpTest, StartedAHandlerThatThrowsOrForgetsLeavesTheOutcomeUnknown) {
  for (const AsyncHttpHandler& handler : std::vector<AsyncHttpHandler>{
           [](const auto&, const auto&) { throw std::runtime_error("dead"); },
           [](const auto&, const auto&) {}}) {
    const v1::Response guarded =
        Ask(middleware(), ARoute("payment"), NewKey(), handler);
    EXPECT_EQ(guarded.status_code(), 500);
    EXPECT_THAT(guarded.body(), HasSubstr("outcome-unknown"));
    HttpRoute open = ARoute();
    open.required = false;
    EXPECT_EQ(Ask(middleware(), open, "", handler).status_code(), 500);
  }
  EXPECT_EQ(notices().size(), 4u);
}

TEST_F(HttpTest, ANoticeThatThrowsChangesNothing) {
  HttpMiddleware middleware(once(), {.notice = [](const HttpNotice&) {
                              throw std::runtime_error("nobody there");
                            }});
  HttpRoute route = ARoute();
  route.body_bytes_max = 3;
  const std::string key = NewKey();
  std::atomic<int> runs{0};
  const AsyncHttpHandler handler = Counting(runs, {MakeResponse(201, "long")});

  EXPECT_EQ(Ask(middleware, route, key, handler).status_code(), 201);
  EXPECT_EQ(Ask(middleware, route, key, handler).status_code(), 410);
  EXPECT_EQ(runs, 1);
}

TEST_F(HttpTest, WhatAHandlerThrewIsNotPrinted) {
  HttpMiddleware middleware(once());
  testing::internal::CaptureStderr();

  Ask(middleware, ARoute(), NewKey(), [](const auto&, const auto&) {
    throw std::runtime_error("INSERT of a secret");
  });

  const std::string printed = testing::internal::GetCapturedStderr();
  EXPECT_THAT(printed, HasSubstr("unknown: UNKNOWN\n"));
  EXPECT_THAT(printed, testing::Not(HasSubstr("secret")));
}

TEST_F(HttpTest, StartedWithABadKeyItIsRefused) {
  std::atomic<int> runs{0};
  const AsyncHttpHandler handler = Counting(runs, {MakeResponse(201, "ran")});

  EXPECT_THAT(Ask(middleware(), ARoute(), "", handler).body(),
              HasSubstr("key-missing"));
  EXPECT_THAT(Ask(middleware(), ARoute(), "a b", handler).body(),
              HasSubstr("key-malformed"));
  EXPECT_EQ(runs, 0);
}

TEST_F(HttpTest, StartedAndHungUpWhileItWaitsItEnds) {
  const std::string key = NewKey();
  Granted(ClaimFor(key));
  HttpRoute route = ARoute();
  route.wait = kPatience;
  std::atomic<int> runs{0};
  // Shared: it is not gone before set_value() has returned.
  const auto answered = std::make_shared<std::promise<v1::Response>>();

  const std::unique_ptr<Running> running =
      middleware().Start({.method = "POST",
                          .target = "/payments",
                          .headers = {{"Idempotency-Key", key}},
                          .request_hash = ClaimFor(key).request_hash()},
                         route, Counting(runs, {MakeResponse(201, "ran")}),
                         [answered](v1::Response response) {
                           answered->set_value(std::move(response));
                         });
  ASSERT_NE(running, nullptr);
  running->HangUp();

  EXPECT_EQ(answered->get_future().get().status_code(), 503);
  EXPECT_EQ(runs, 0);
  EXPECT_THAT(notices(), IsEmpty());
}

TEST(IsGuardedTest, AKeyOrTheNeedOfOneMakesItSoUnlessTheMethodIsSafe) {
  const HttpRoute required{.scope = "tests", .required = true};
  const HttpRoute open{.scope = "tests"};
  HttpRequest request{.method = "POST", .target = "/"};
  EXPECT_TRUE(IsGuarded(request, required));
  EXPECT_FALSE(IsGuarded(request, open));
  request.headers = {{"idempotency-key", "a b"}};
  EXPECT_TRUE(IsGuarded(request, open));
  for (const std::string_view safe : {"GET", "HEAD", "OPTIONS", "TRACE"}) {
    request.method = safe;
    EXPECT_FALSE(IsGuarded(request, required)) << safe;
  }
}

TEST_F(HttpTest, StartedInDoubtTheResolversResponseIsRecorded) {
  const std::string key = NewKey();
  std::atomic<int> runs{0};
  Ask(middleware(), ARoute("payment"), key,
      Counting(runs, {MakeResponse(504, "late"), HttpEffect::kUnknown}));
  v1::Response found = MakeResponse(201, "found");
  found.add_headers()->set_name("Date");

  const v1::Response resolved =
      Ask(middleware(), ARoute("payment"), key,
          Counting(runs, {MakeResponse(201, "ran")}),
          [&](const std::shared_ptr<Execution>&,
              const Completion<Resolution>& completion) {
            completion(WasExecuted{found});
          });

  EXPECT_EQ(resolved.SerializeAsString(), found.SerializeAsString());
  const v1::Response replay = Ask(middleware(), ARoute("payment"), key,
                                  Counting(runs, {MakeResponse(201, "ran")}));
  EXPECT_EQ(replay.body(), "found");
  EXPECT_EQ(replay.headers(0).name(), "content-type");
  EXPECT_EQ(runs, 1);
}

TEST_F(HttpTest, StartedWithoutACoordinatorItFailsOpenOnlyWhereItMay) {
  ConnectTo("127.0.0.1:" + std::to_string(FreePort()));
  std::atomic<int> runs{0};
  const AsyncHttpHandler handler = Counting(runs, {MakeResponse(201, "ran")});
  HttpRoute route = ARoute();
  route.claim_timeout = std::chrono::milliseconds(300);
  route.finalize_timeout = std::chrono::milliseconds(300);

  EXPECT_EQ(Ask(middleware(), route, NewKey(), handler).status_code(), 503);
  EXPECT_EQ(runs, 0);
  route.fail_open = true;
  EXPECT_EQ(Ask(middleware(), route, NewKey(), handler).body(), "ran");
  EXPECT_EQ(runs, 1);
  EXPECT_THAT(notices(), ElementsAre(Kind::kUnavailable, Kind::kRanUnguarded));
}

}  // namespace
}  // namespace idempotency
