// How the streams `Bulk` of a client end, and what then becomes of their
// commands and of the next stream.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "client/async_client.h"
#include "client/bulk_command.h"
#include "client/bulk_stream.h"
#include "client/status.h"
#include "grpcpp/create_channel.h"
#include "tests/integration/client_bulk_fixture.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// ------------------------------------------------------------ how streams end

TEST(ClientBulkTest, CommandsOfABrokenStreamAreSentAgainWithTheSameTokens) {
  constexpr std::size_t kCalls = 30;
  std::set<std::string> first;
  std::map<std::string, std::string> again;
  ScriptedServer server({Lost()}, 0,
                        {[&](grpc::ServerContext*, BulkWire* wire) {
                           for (const auto& each : ReadCommands(wire, kCalls)) {
                             first.insert(each.claim().claim_token());
                           }
                           return Lost().status;
                         },
                         [&](grpc::ServerContext*, BulkWire* wire) {
                           v1::BulkResponse response;
                           for (const auto& each : ReadCommands(wire, kCalls)) {
                             again[each.claim().key()] =
                                 each.claim().claim_token();
                             *response.add_results() = GrantOf(each);
                           }
                           wire->Write(response);
                           return ReadAndAnswerNothing(nullptr, wire);
                         }});
  const auto client = Connect(server);

  auto answers = ClaimMany(*client, kCalls);

  ExpectGrants(answers);
  EXPECT_THAT(again, SizeIs(kCalls));
  for (const auto& [key, token] : again) EXPECT_THAT(first, Contains(token));
}

TEST(ClientBulkTest, ALostResultLeavesTheOutcomeUnknown) {
  ScriptedServer server({Lost()}, 0, {EndAfter(1, Lost().status)});
  const auto client = Connect(server, {.retry = {.attempts_max = 1}});
  const ClaimAnswer answer = Claim(*client, "order").get();
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReasonOf(answer.status()), "OUTCOME_UNKNOWN");
  EXPECT_THAT(std::string(answer.status().message()), HasSubstr("lost"));
}

TEST(ClientBulkTest, WhatWasNeverWrittenCannotHaveActed) {
  constexpr int kCalls = 40;
  absl::Notification end;
  // It reads nothing, so that flow control holds most of it back.
  ScriptedServer server({Lost()}, 0, {[&](grpc::ServerContext*, BulkWire*) {
                          end.WaitForNotification();
                          return Lost().status;
                        }});
  const auto client = Connect(server, {.retry = {.attempts_max = 1}});
  std::vector<std::future<absl::StatusOr<v1::FinalizeResponse>>> answers;
  for (int i = 0; i < kCalls; ++i) {
    auto [answered, future] = Promised<v1::FinalizeResponse>();
    client->Finalize(AFinalize(std::string(200 << 10, 'b')), {},
                     std::move(answered));
    answers.push_back(std::move(future));
  }
  end.Notify();

  EXPECT_EQ(ErrorReasonOf(answers.front().get().status()), "OUTCOME_UNKNOWN");
  const absl::Status last = answers.back().get().status();
  EXPECT_EQ(last.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReasonOf(last), "");
}

TEST(ClientBulkTest, AServerThatDrainsIsLeftForANewStream) {
  constexpr std::size_t kFirst = 10;
  const grpc::Status draining =
      Refused(grpc::StatusCode::UNAVAILABLE, "DRAINING").status;
  ScriptedServer server({Lost()}, 0,
                        {[&](grpc::ServerContext*, BulkWire* wire) {
                           v1::BulkResponse response;
                           for (const auto& each : ReadCommands(wire, kFirst)) {
                             *response.add_results() = GrantOf(each);
                           }
                           wire->Write(response);
                           return draining;
                         },
                         GrantAll});
  const auto client = Connect(server);

  auto before = ClaimMany(*client, kFirst);
  ExpectGrants(before);
  // Whether the client has seen the end by now or not.
  auto after = ClaimMany(*client, 300);
  ExpectGrants(after);
  EXPECT_EQ(server->streams(), 2);
}

TEST(ClientBulkTest, AStreamThatEndsInGoodOrderUsesNoAttemptsUp) {
  constexpr std::size_t kAnswered = 10;
  ScriptedServer server(
      {Lost()}, 0,
      {[&](grpc::ServerContext*, BulkWire* wire) {
         v1::BulkResponse response;
         const auto commands = ReadCommands(wire, 3 * kAnswered);
         for (std::size_t i = 0; i < kAnswered; ++i) {
           *response.add_results() = GrantOf(commands.at(i));
         }
         wire->Write(response);
         return Refused(grpc::StatusCode::UNAVAILABLE, "DRAINING").status;
       },
       GrantAll});
  const auto client = Connect(server, {.retry = {.attempts_max = 1}});
  auto answers = ClaimMany(*client, 3 * kAnswered);
  ExpectGrants(answers);
  EXPECT_EQ(server->streams(), 2);
}

TEST(ClientBulkTest, AStreamThatEndsInGoodOrderMayHaveAnsweredNothing) {
  ScriptedServer server(
      {Lost()}, 0,
      {EndAfter(1, Refused(grpc::StatusCode::UNAVAILABLE, "DRAINING").status),
       GrantAll});
  const auto client = Connect(server, {.retry = {.attempts_max = 1}});
  EXPECT_TRUE(IsGrantOf("order", Claim(*client, "order").get()));
  EXPECT_EQ(server->streams(), 2);
}

TEST(ClientBulkTest, AStreamThatDrainsIsLeftAtOnceButForWhatItHolds) {
  absl::Notification holds;
  absl::Notification answer;
  std::promise<bool> closed_in_order;
  ScriptedServer server({Lost()}, 0,
                        {[&](grpc::ServerContext* context, BulkWire* wire) {
                           v1::BulkResponse held;
                           *held.add_results() =
                               GrantOf(ReadCommands(wire, 1).at(0));
                           holds.Notify();
                           v1::BulkResponse response;
                           for (const auto& each : ReadCommands(wire, 10)) {
                             *response.add_results() = DrainingFor(each);
                           }
                           wire->Write(response);
                           answer.WaitForNotification();
                           wire->Write(held);
                           EXPECT_THAT(ReadCommands(wire, 1), IsEmpty());
                           closed_in_order.set_value(!context->IsCancelled());
                           return grpc::Status::OK;
                         },
                         GrantAll});
  const auto client = Connect(server, {.retry = {.attempts_max = 1}});
  auto held = Claim(*client, "held");
  holds.WaitForNotification();

  auto answers = ClaimMany(*client, 10);
  ExpectGrants(answers);
  auto next = ClaimMany(*client, 10);
  ExpectGrants(next);
  EXPECT_EQ(server->streams(), 2);

  answer.Notify();
  EXPECT_TRUE(IsGrantOf("held", held.get()));
  EXPECT_TRUE(closed_in_order.get_future().get());
}

TEST(ClientBulkTest, WhereEveryStreamDrainsACallFailsInTheEnd) {
  ScriptedServer server({Lost()}, 0, {[](grpc::ServerContext*, BulkWire* wire) {
                          v1::BulkResponse response;
                          *response.add_results() =
                              DrainingFor(ReadCommands(wire, 1).at(0));
                          wire->Write(response);
                          return ReadAndAnswerNothing(nullptr, wire);
                        }});
  const auto client = Connect(server, {.retry = {.attempts_max = 1}});
  const absl::Status status = Claim(*client, "order").get().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReasonOf(status), "DRAINING");
  EXPECT_EQ(server->streams(), 5);
}

TEST(ClientBulkTest, AServerWithoutBulkIsCalledInsteadAndAskedOnce) {
  ScriptedServer server({GrantedCall("order")}, 0, {Unknown});
  // One attempt: finding out uses none up.
  const auto client = Connect(server, {.retry = {.attempts_max = 1}});
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(IsGrantOf("order", Claim(*client, "order").get()));
  }
  EXPECT_EQ(server->streams(), 1);
  EXPECT_EQ(server->calls(), 20);
}

TEST(ClientBulkTest, AStreamThatAProxyRefusesIsNotTriedAgainSoon) {
  ScriptedServer server(
      {GrantedCall("order")}, 0,
      {EndAfter(1, grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "no"))});
  const auto client = Connect(server);
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(IsGrantOf("order", Claim(*client, "order").get()));
  }
  EXPECT_EQ(server->streams(), 1);
  EXPECT_EQ(server->calls(), 20);
}

TEST(ClientBulkTest, AServerWithoutRoomForAStreamIsCalledAndReadNothing) {
  ScriptedServer server({GrantedCall("order")}, 0,
                        {EndAfter(1, Busy().status)});
  const auto client = Connect(server, {.retry = {.attempts_max = 1}});
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(IsGrantOf("order", Claim(*client, "order").get()));
  }
  EXPECT_EQ(server->streams(), 1);
  EXPECT_EQ(server->calls(), 20);
}

TEST(ClientBulkTest, WhatAFullServerRefusedWithItsStreamIsKnownNotToHaveActed) {
  ScriptedServer server({Busy()}, 0, {EndAfter(1, Busy().status)});
  const auto client = Connect(server, {.retry = {.attempts_max = 1}});
  EXPECT_EQ(ErrorReasonOf(Claim(*client, "order").get().status()),
            "OVERLOADED");
}

TEST(ClientBulkTest, StreamsThatAreLostOneAfterTheOtherGiveWayToCalls) {
  ScriptedServer server({GrantedCall("order")}, 0,
                        {EndAfter(1, Lost().status)});
  const auto client = Connect(server);
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(IsGrantOf("order", Claim(*client, "order").get()));
  }
  EXPECT_EQ(server->streams(), 2);
  EXPECT_EQ(server->calls(), 20);
}

TEST(ClientBulkTest, AResultThatIsTooLongForTheChannelHurtsNoNeighbour) {
  Answer call = GrantedCall("small");
  ScriptedServer server({call}, 0, {[](grpc::ServerContext*, BulkWire* wire) {
                          v1::BulkResponse response;
                          *response.add_results() =
                              GrantOf(ReadCommands(wire, 1).at(0));
                          wire->Write(response);
                          ReadCommands(wire, 2);
                          response.add_results()->mutable_error()->set_message(
                              std::string(2000, 'm'));
                          wire->Write(response);
                          return ReadAndAnswerNothing(nullptr, wire);
                        }});
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(1000);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  AsyncClient client(
      grpc::CreateCustomChannel(server.target(),
                                grpc::InsecureChannelCredentials(), arguments),
      {.retry = {.attempts_max = 1}, .bulk = BulkUse::kAlways});
  EXPECT_TRUE(IsGrantOf("small", Claim(client, "small").get()));
  auto second = Claim(client, "small");
  auto third = Claim(client, "small");
  EXPECT_TRUE(IsGrantOf("small", second.get()));
  EXPECT_TRUE(IsGrantOf("small", third.get()));
  EXPECT_TRUE(IsGrantOf("small", Claim(client, "small").get()));
  EXPECT_EQ(server->streams(), 1);
  EXPECT_EQ(server->calls(), 3);
}

// -------------------------------------------------------------- a new channel

// A claim that says which key it was granted.
class KeptClaim final : public internal::BulkCommand {
 public:
  explicit KeptClaim(const std::string& key) { request_.set_key(key); }

  void Lend(v1::Command& command) override {
    internal::LendRequest(request_, command);
  }
  bool urgent() const override { return false; }
  void OnResult(v1::Result& result) override {
    granted_.set_value(result.claim().claimed().downstream_key());
  }
  void OnFailure(const absl::Status& status, bool) override {
    granted_.set_value(status.ToString());
  }
  void OnSendAgain(const absl::Status&, bool) override {
    granted_.set_value("again");
  }

  std::string Granted() { return granted_.get_future().get(); }

 private:
  v1::ClaimRequest request_;
  std::promise<std::string> granted_;
};

TEST(BulkStreamsTest, ACancelledCommandIsCancelledThoughItsStreamEndsFirst) {
  ScriptedServer server({Lost()}, 0, {ReadAndAnswerNothing});
  const auto connection = std::make_shared<const internal::Connection>(
      grpc::CreateChannel(server.target(), grpc::InsecureChannelCredentials()),
      nullptr);
  // Either end may come first.
  for (int i = 0; i < 300; ++i) {
    internal::BulkStreams streams;
    const auto command = std::make_shared<KeptClaim>("order");
    const auto stream =
        streams.Enqueue(connection, true, command, 100, seconds(20));
    ASSERT_NE(stream, nullptr);
    stream->Flush();
    streams.CancelCommands();
    stream->Cancel();
    EXPECT_THAT(command->Granted(), testing::StartsWith("CANCELLED"));
  }
}

TEST(BulkStreamsTest, AStreamThatIsIdleIsClosedInGoodOrderAndReplaced) {
  std::promise<bool> closed_in_order;
  ScriptedServer server({Lost()}, 0,
                        {[&](grpc::ServerContext* context, BulkWire* wire) {
                           GrantAll(context, wire);
                           closed_in_order.set_value(!context->IsCancelled());
                           return grpc::Status::OK;
                         },
                         GrantAll});
  const auto connection = std::make_shared<const internal::Connection>(
      grpc::CreateChannel(server.target(), grpc::InsecureChannelCredentials()),
      nullptr);
  internal::BulkStreams streams(milliseconds(100));
  const auto ask = [&](const std::string& key) {
    const auto command = std::make_shared<KeptClaim>(key);
    const auto stream =
        streams.Enqueue(connection, true, command, 100, seconds(20));
    ASSERT_NE(stream, nullptr);
    stream->Flush();
    EXPECT_EQ(command->Granted(), key);
  };
  ask("first");
  EXPECT_TRUE(closed_in_order.get_future().get());
  ask("second");
  EXPECT_EQ(server->streams(), 2);
}

TEST(BulkStreamsTest, ANewConnectionHasItsOwnStreamAndTheOldOneEndsAnswered) {
  absl::Notification first_came;
  absl::Notification answer_first;
  std::promise<bool> closed_in_order;
  ScriptedServer server({Lost()}, 0,
                        {[&](grpc::ServerContext* context, BulkWire* wire) {
                           v1::BulkResponse response;
                           *response.add_results() =
                               GrantOf(ReadCommands(wire, 1).at(0));
                           first_came.Notify();
                           answer_first.WaitForNotification();
                           wire->Write(response);
                           v1::BulkRequest none;
                           closed_in_order.set_value(!wire->Read(&none) &&
                                                     !context->IsCancelled());
                           return grpc::Status::OK;
                         },
                         GrantAll});
  const auto connect = [&](std::uint64_t generation) {
    return std::make_shared<const internal::Connection>(
        grpc::CreateChannel(server.target(),
                            grpc::InsecureChannelCredentials()),
        nullptr, generation);
  };
  const auto old_connection = connect(0);
  const auto new_connection = connect(1);
  internal::BulkStreams streams;
  const auto send = [&](const auto& connection, const auto& command) {
    const auto stream =
        streams.Enqueue(connection, true, command, 100, seconds(20));
    if (stream != nullptr) stream->Flush();
    return stream;
  };
  const auto first = std::make_shared<KeptClaim>("first");
  const auto second = std::make_shared<KeptClaim>("second");

  const auto old_stream = send(old_connection, first);
  first_came.WaitForNotification();
  const auto new_stream = send(new_connection, second);

  ASSERT_NE(old_stream, nullptr);
  ASSERT_NE(new_stream, nullptr);
  EXPECT_NE(old_stream, new_stream);
  EXPECT_FALSE(old_stream->open());
  EXPECT_EQ(second->Granted(), "second");
  // Whoever still holds the old connection makes a call.
  EXPECT_EQ(send(old_connection, std::make_shared<KeptClaim>("third")),
            nullptr);
  EXPECT_TRUE(new_stream->open());
  answer_first.Notify();
  EXPECT_EQ(first->Granted(), "first");
  EXPECT_TRUE(closed_in_order.get_future().get());
}

}  // namespace
}  // namespace idempotency
