// What the tests of the client's stream share: claims that are answered later,
// and what a service may do with a stream.
#ifndef IDEMPOTENCY_TESTS_INTEGRATION_CLIENT_BULK_FIXTURE_H_
#define IDEMPOTENCY_TESTS_INTEGRATION_CLIENT_BULK_FIXTURE_H_

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/async_client.h"
#include "tests/integration/client_fixture.h"
#include "tests/integration/scripted_service.h"

namespace idempotency {

using ClaimAnswer = absl::StatusOr<v1::ClaimResponse>;

template <typename Response>
std::pair<Answered<Response>, std::future<absl::StatusOr<Response>>>
Promised() {
  auto promise = std::make_shared<std::promise<absl::StatusOr<Response>>>();
  auto future = promise->get_future();
  return {[promise](absl::StatusOr<Response> answer) {
            promise->set_value(std::move(answer));
          },
          std::move(future)};
}

inline std::future<ClaimAnswer> Claim(
    AsyncClient& client, const std::string& key,
    std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  v1::ClaimRequest request = ARequest();
  request.set_key(key);
  request.set_claim_token(NewClaimToken());
  auto [answered, future] = Promised<v1::ClaimResponse>();
  client.Claim(request, {.timeout = timeout}, std::move(answered));
  return std::move(future);
}

inline std::vector<std::future<ClaimAnswer>> ClaimMany(AsyncClient& client,
                                                       int count) {
  std::vector<std::future<ClaimAnswer>> answers;
  for (int i = 0; i < count; ++i) {
    answers.push_back(Claim(client, "order-" + std::to_string(i)));
  }
  return answers;
}

// Granted, and the answer to this key and no other.
inline testing::AssertionResult IsGrantOf(const std::string& key,
                                          const ClaimAnswer& answer) {
  if (answer.ok() && answer->claimed().downstream_key() == key) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure()
         << key << ": " << answer.status() << " "
         << (answer.ok() ? answer->ShortDebugString() : "");
}

inline void ExpectGrants(std::vector<std::future<ClaimAnswer>>& answers) {
  for (std::size_t i = 0; i < answers.size(); ++i) {
    EXPECT_TRUE(IsGrantOf("order-" + std::to_string(i), answers[i].get()));
  }
}

// Grants the key of the command.
inline v1::Result GrantOf(const v1::Command& command) {
  v1::Result result;
  result.set_id(command.id());
  result.mutable_claim()->mutable_claimed()->set_downstream_key(
      command.claim().key());
  return result;
}

// The error of a command that reaches a stream which is to end.
inline v1::Result DrainingFor(const v1::Command& command) {
  v1::Result result;
  result.mutable_error()->ParseFromString(
      Refused(grpc::StatusCode::UNAVAILABLE, "DRAINING")
          .status.error_details());
  result.set_id(command.id());
  return result;
}

// At least so many, of one or more messages; fewer where the caller ends.
inline std::vector<v1::Command> ReadCommands(BulkWire* wire,
                                             std::size_t count) {
  std::vector<v1::Command> commands;
  v1::BulkRequest request;
  while (commands.size() < count && wire->Read(&request)) {
    commands.insert(commands.end(), request.commands().begin(),
                    request.commands().end());
  }
  return commands;
}

// ------------------------------------------------- what becomes of a stream

inline grpc::Status GrantAll(grpc::ServerContext*, BulkWire* wire) {
  v1::BulkRequest request;
  while (wire->Read(&request)) {
    v1::BulkResponse response;
    for (const v1::Command& command : request.commands()) {
      *response.add_results() = GrantOf(command);
    }
    wire->Write(response);
  }
  return grpc::Status::OK;
}

inline grpc::Status ReadAndAnswerNothing(grpc::ServerContext*, BulkWire* wire) {
  v1::BulkRequest request;
  while (wire->Read(&request)) {
  }
  return grpc::Status::OK;
}

// Reads that many commands, answers none and ends.
inline StreamScript EndAfter(std::size_t commands, grpc::Status status) {
  return [=](grpc::ServerContext*, BulkWire* wire) {
    ReadCommands(wire, commands);
    return status;
  };
}

inline grpc::Status Unknown(grpc::ServerContext*, BulkWire*) {
  return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "unknown method");
}

// The answer to a claim that came as a call.
inline Answer GrantedCall(const std::string& key) {
  Answer answer = Granted();
  answer.claim.mutable_claimed()->set_downstream_key(key);
  return answer;
}

inline std::unique_ptr<AsyncClient> Connect(const ScriptedServer& server,
                                            ClientOptions options = {}) {
  options.bulk = BulkUse::kAlways;
  options.retry.backoff_initial = std::chrono::milliseconds(1);
  return AsyncClient::Connect(server.target(), options);
}

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_INTEGRATION_CLIENT_BULK_FIXTURE_H_
