// The client's use of the stream `Bulk`, against a service that does what a
// stream may do: end, stand still, answer late, or be unknown.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "client/async_client.h"
#include "client/status.h"
#include "tests/integration/client_bulk_fixture.h"

namespace idempotency {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::Each;
using testing::SizeIs;

// ------------------------------------------------------------ when it is used

TEST(ClientBulkTest, ManyCallsAtATimeGoOverOneStreamInFewMessages) {
  constexpr int kCalls = 2000;
  ScriptedServer server({Granted()});
  const auto client = AsyncClient::Connect(server.target());

  auto answers = ClaimMany(*client, kCalls);
  for (auto& answer : answers) EXPECT_TRUE(answer.get().ok());

  EXPECT_EQ(server->streams(), 1);
  // The first ones, and the last.
  EXPECT_LT(server->calls(), kCalls / 4);
  const std::vector<int> sizes = server->message_sizes();
  EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), server->calls()),
            kCalls);
  EXPECT_LT(sizes.size(), kCalls / 4u);
  EXPECT_THAT(sizes, Each(testing::Le(1024)));
}

TEST(ClientBulkTest, ALoneCallIsACall) {
  ScriptedServer server({Granted()});
  const auto client = AsyncClient::Connect(server.target());
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(Claim(*client, "order-1").get().ok());
  }
  EXPECT_EQ(server->calls(), 100);
  EXPECT_EQ(server->streams(), 0);
}

TEST(ClientBulkTest, WithBulkNeverAllAreCalls) {
  ScriptedServer server({Granted()});
  const auto client =
      AsyncClient::Connect(server.target(), {.bulk = BulkUse::kNever});
  auto answers = ClaimMany(*client, 100);
  for (auto& answer : answers) EXPECT_TRUE(answer.get().ok());
  EXPECT_EQ(server->calls(), 100);
  EXPECT_EQ(server->streams(), 0);
}

TEST(ClientBulkTest, WhatIsNoUtf8GoesAloneAndHurtsNoNeighbour) {
  ScriptedServer server({Granted()});
  const auto client = Connect(server);

  auto good = ClaimMany(*client, 20);
  auto bad = Claim(*client, "\xff");
  auto also_good = ClaimMany(*client, 20);

  EXPECT_EQ(bad.get().status().code(), absl::StatusCode::kInternal);
  for (auto& answer : good) EXPECT_TRUE(answer.get().ok());
  for (auto& answer : also_good) EXPECT_TRUE(answer.get().ok());
  EXPECT_EQ(server->streams(), 1);
  EXPECT_EQ(server->calls(), 0);  // gRPC refused it before the service saw it
}

TEST(ClientBulkTest, ALongRequestGoesAsACall) {
  ScriptedServer server({Fine()});
  const auto client = Connect(server);
  auto [answered, future] = Promised<v1::FinalizeResponse>();
  client->Finalize(AFinalize(std::string(300 << 10, 'b')), {},
                   std::move(answered));
  EXPECT_TRUE(future.get().ok());
  EXPECT_EQ(server->calls(), 1);
}

TEST(ClientBulkTest, WhatEndsOrKeepsAClaimGoesBeforeNewClaims) {
  absl::Notification read;
  std::vector<v1::Command> commands;
  ScriptedServer server({Lost()}, 0,
                        {[&](grpc::ServerContext*, BulkWire* wire) {
                          read.WaitForNotification();
                          commands = ReadCommands(wire, 603);
                          return Lost().status;
                        }});
  auto client = Connect(server, {.retry = {.attempts_max = 1}});
  // More than is written before the server reads.
  std::vector<std::future<ClaimAnswer>> claims;
  v1::ClaimRequest claim = ARequest();
  claim.set_checkpoint(std::string(4 << 10, 'c'));
  const auto add_claim = [&](const CallOptions& options) {
    claim.set_claim_token(NewClaimToken());
    auto [answered, future] = Promised<v1::ClaimResponse>();
    client->Claim(claim, options, std::move(answered));
    claims.push_back(std::move(future));
  };
  for (int i = 0; i < 600; ++i) add_claim({});
  claim.set_key("renewed");
  add_claim({.urgent = true});
  auto [finalized, finalize_future] = Promised<v1::FinalizeResponse>();
  client->Finalize(AFinalize("body"), {}, std::move(finalized));
  auto [released, release_future] = Promised<v1::ReleaseResponse>();
  client->Release(v1::ReleaseRequest(), {}, std::move(released));
  read.Notify();
  for (auto& each : claims) each.wait();
  client.reset();
  server.Stop();

  ASSERT_THAT(commands, SizeIs(603));
  const auto is_new = [](const v1::Command& each) {
    return each.has_claim() && each.claim().key() != "renewed";
  };
  EXPECT_TRUE(is_new(commands.back()));
  EXPECT_EQ(std::count_if(commands.begin(), commands.end(), is_new), 600);
}

// ------------------------------------------------------ which answer is whose

TEST(ClientBulkTest, ResultsInAnyOrderFindTheirCallsAndUnknownIdsNone) {
  constexpr std::size_t kCalls = 50;
  ScriptedServer server(
      {Lost()}, 0, {[](grpc::ServerContext*, BulkWire* wire) {
        std::vector<v1::Command> commands = ReadCommands(wire, kCalls);
        v1::BulkResponse response;
        response.add_results()->set_id(1'000'000);
        for (auto each = commands.rbegin(); each != commands.rend(); ++each) {
          *response.add_results() = GrantOf(*each);
        }
        // Once more: nobody waits for them any longer.
        response.MergeFrom(v1::BulkResponse(response));
        wire->Write(response);
        return ReadAndAnswerNothing(nullptr, wire);
      }});
  const auto client = Connect(server);

  auto answers = ClaimMany(*client, kCalls);

  ExpectGrants(answers);
}

TEST(ClientBulkTest, AResultThatComesTooLateIsNobodysAnswer) {
  ScriptedServer server({Lost()}, 0, {[](grpc::ServerContext*, BulkWire* wire) {
                          v1::BulkResponse response;
                          for (const auto& each : ReadCommands(wire, 2)) {
                            *response.add_results() = GrantOf(each);
                          }
                          wire->Write(response);
                          return GrantAll(nullptr, wire);
                        }});
  const auto client = Connect(server);

  const ClaimAnswer late = Claim(*client, "first", milliseconds(100)).get();
  const ClaimAnswer second = Claim(*client, "second").get();
  const ClaimAnswer third = Claim(*client, "third").get();

  EXPECT_EQ(late.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ErrorReasonOf(late.status()), "OUTCOME_UNKNOWN");
  EXPECT_TRUE(IsGrantOf("second", second));
  EXPECT_TRUE(IsGrantOf("third", third));
  EXPECT_EQ(server->streams(), 1);
}

TEST(ClientBulkTest, AResultOfAnotherCallIsUnavailable) {
  ScriptedServer server({Lost()}, 0, {[](grpc::ServerContext*, BulkWire* wire) {
                          v1::BulkResponse response;
                          const auto commands = ReadCommands(wire, 1);
                          v1::Result* result = response.add_results();
                          result->set_id(commands.at(0).id());
                          result->mutable_release()->set_released(true);
                          wire->Write(response);
                          return GrantAll(nullptr, wire);
                        }});
  const auto client = Connect(server);
  // Sent again.
  EXPECT_TRUE(IsGrantOf("order", Claim(*client, "order").get()));
}

TEST(ClientBulkTest, AnErrorIsTheOneThatACallWouldHave) {
  google::rpc::BadRequest bad_request;
  auto* violation = bad_request.add_field_violations();
  violation->set_field("scope");
  violation->set_description("1 to 128 characters");
  ScriptedServer server({Refused(grpc::StatusCode::INVALID_ARGUMENT,
                                 "INVALID_FIELD", bad_request)});
  const auto with_calls =
      AsyncClient::Connect(server.target(), {.bulk = BulkUse::kNever});
  const auto with_commands = Connect(server);

  const absl::Status of_call = Claim(*with_calls, "order").get().status();
  const absl::Status of_command = Claim(*with_commands, "order").get().status();

  EXPECT_EQ(of_call, of_command);  // with payloads
  EXPECT_EQ(ErrorReasonOf(of_command), "INVALID_FIELD");
  EXPECT_EQ(server->calls(), 1);
  EXPECT_EQ(server->streams(), 1);
}

// ------------------------------------------------------------------ deadlines

TEST(ClientBulkTest, EachDeadlineHoldsOnAStreamThatStandsStill) {
  ScriptedServer server({Lost()}, 0, {ReadAndAnswerNothing});
  const auto client = Connect(server);
  const auto begin = steady_clock::now();

  auto last = Claim(*client, "last", milliseconds(700));
  auto first = Claim(*client, "first", milliseconds(100));
  auto second = Claim(*client, "second", milliseconds(400));

  const auto expect_end = [&](std::future<ClaimAnswer>& answer,
                              milliseconds timeout) {
    const absl::Status status = answer.get().status();
    const auto passed =
        duration_cast<milliseconds>(steady_clock::now() - begin);
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_EQ(ErrorReasonOf(status), "OUTCOME_UNKNOWN");
    EXPECT_GE(passed, timeout);
    EXPECT_LT(passed, timeout + milliseconds(250));
  };
  expect_end(first, milliseconds(100));
  expect_end(second, milliseconds(400));
  expect_end(last, milliseconds(700));
}

TEST(ClientBulkTest, AStreamThatStandsStillIsLeftByTheOthersOnIt) {
  ScriptedServer server({GrantedCall("patient")}, 0, {ReadAndAnswerNothing});
  const auto client = Connect(server);

  auto patient = Claim(*client, "patient", seconds(30));
  auto hasty = Claim(*client, "hasty", milliseconds(200));

  EXPECT_EQ(hasty.get().status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(IsGrantOf("patient", patient.get()));
}

// -------------------------------------------------------------------- the end

TEST(ClientBulkTest, CancelledCommandsAreAnsweredWhileTheServerHoldsThem) {
  absl::Notification cancelled;
  ScriptedServer server({Lost()}, 0,
                        {[&](grpc::ServerContext*, BulkWire* wire) {
                          cancelled.WaitForNotification();
                          return GrantAll(nullptr, wire);
                        }});
  const auto client = Connect(server);
  auto answers = ClaimMany(*client, 20);

  client->CancelCalls();

  for (auto& answer : answers) {
    EXPECT_EQ(answer.get().status().code(), absl::StatusCode::kCancelled);
  }
  cancelled.Notify();
  // On the same stream.
  EXPECT_TRUE(IsGrantOf("next", Claim(*client, "next").get()));
  EXPECT_EQ(server->streams(), 1);
}

TEST(ClientBulkTest, AClientThatEndsAnswersItsCommands) {
  ScriptedServer server({Lost()}, 0, {ReadAndAnswerNothing});
  auto client = Connect(server);
  auto answers = ClaimMany(*client, 100);

  client.reset();

  for (auto& answer : answers) {
    EXPECT_EQ(answer.get().status().code(), absl::StatusCode::kCancelled);
  }
}

TEST(ClientBulkTest, AnAnswerMayMakeTheNextCall) {
  constexpr int kChains = 200;
  constexpr int kLength = 20;
  ScriptedServer server({Granted()});
  const auto client = Connect(server);
  absl::Notification ended[kChains];
  std::function<void(int, int)> step = [&](int chain, int left) {
    v1::ClaimRequest request = ARequest();
    request.set_claim_token(NewClaimToken());
    client->Claim(request, {}, [&, chain, left](const ClaimAnswer& answer) {
      EXPECT_TRUE(answer.ok()) << answer.status();
      if (left > 1) return step(chain, left - 1);
      ended[chain].Notify();
    });
  };
  for (int chain = 0; chain < kChains; ++chain) step(chain, kLength);
  for (auto& each : ended) each.WaitForNotification();
  EXPECT_THAT(server->claims(), SizeIs(kChains * kLength));
  EXPECT_EQ(server->streams(), 1);
}

}  // namespace
}  // namespace idempotency
