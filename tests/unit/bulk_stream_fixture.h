// Streams of Bulk, one open at a time, of a service without a gRPC server.
#ifndef IDEMPOTENCY_TESTS_UNIT_BULK_STREAM_FIXTURE_H_
#define IDEMPOTENCY_TESTS_UNIT_BULK_STREAM_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "tests/unit/grpc_sides.h"
#include "tests/unit/service_fixture.h"

namespace idempotency {

class BulkStreamFixture : public ServiceFixture {
 protected:
  void SetUp() override { Open(); }
  void TearDown() override {
    if (side_ == nullptr) return;
    side_->Cancel();
    RunLanesDry();
    if (side_->writing()) side_->FinishWrite(false);
    ASSERT_TRUE(side_->end().has_value());
    side_->Done();
    EXPECT_EQ(metrics_.bulk.open, 0);
    EXPECT_EQ(metrics_.reply_bytes, 0u);
  }

  // A stream of the service that runs; ends what was open before.
  void Open() {
    side_ = std::make_unique<BulkSide>();
    context_ = std::make_unique<grpc::CallbackServerContext>();
    side_->Bind(service_->streams().Open(context_.get()));
  }
  void Reopen(const ServiceOptions& options) {
    TearDown();
    side_ = nullptr;
    Restart(options);
    Open();
  }

  static v1::Command ClaimOf(std::uint64_t id) {
    v1::Command command;
    command.set_id(id);
    SetClaim("key-" + std::to_string(id), *command.mutable_claim());
    return command;
  }
  static v1::Command LookupOf(std::uint64_t id) {
    v1::Command command;
    command.set_id(id);
    command.mutable_lookup()->set_scope("payments");
    command.mutable_lookup()->set_key("key-" + std::to_string(id));
    return command;
  }
  void Send(const std::vector<v1::Command>& commands) {
    v1::BulkRequest message;
    for (const v1::Command& command : commands) {
      *message.add_commands() = command;
    }
    ASSERT_TRUE(side_->reading());
    side_->Send(message);
  }
  void SendClaims(std::uint64_t first, std::size_t count) {
    std::vector<v1::Command> commands;
    for (std::size_t i = 0; i < count; ++i)
      commands.push_back(ClaimOf(first + i));
    Send(commands);
  }

  // Sends Finalizes of 1 MiB each as long as they are read, or 20; how many?
  std::size_t SendMebibytes() {
    std::size_t sent = 0;
    v1::Command finalize;
    finalize.mutable_finalize()->set_scope("payments");
    finalize.mutable_finalize()->set_claim_token(kToken);
    finalize.mutable_finalize()->mutable_response()->set_status_code(201);
    finalize.mutable_finalize()->mutable_response()->set_body(
        std::string(1 << 20, 'b'));
    while (side_->reading() && sent < 20) {
      finalize.set_id(sent);
      finalize.mutable_finalize()->set_key(std::to_string(sent));
      Send({finalize});
      ++sent;
    }
    return sent;
  }

  // Lets every message out that is to be written.
  void WriteAll() {
    while (side_->writing()) side_->FinishWrite();
  }
  std::vector<v1::Result> Results() const {
    std::vector<v1::Result> results;
    for (const v1::BulkResponse& message : side_->messages()) {
      results.insert(results.end(), message.results().begin(),
                     message.results().end());
    }
    return results;
  }
  std::vector<std::size_t> ResultsByMessage() const {
    std::vector<std::size_t> counts;
    for (const v1::BulkResponse& message : side_->messages()) {
      counts.push_back(static_cast<std::size_t>(message.results_size()));
    }
    return counts;
  }
  static std::string ReasonOf(const google::rpc::Status& error) {
    google::rpc::ErrorInfo info;
    for (const auto& detail : error.details()) {
      if (detail.UnpackTo(&info)) return info.reason();
    }
    return "";
  }
  static std::string ReasonOf(const grpc::Status& status) {
    google::rpc::Status packed;
    packed.ParseFromString(status.error_details());
    return ReasonOf(packed);
  }

  std::unique_ptr<grpc::CallbackServerContext> context_;
  std::unique_ptr<BulkSide> side_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_UNIT_BULK_STREAM_FIXTURE_H_
