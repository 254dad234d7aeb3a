// Many calls that are sent at once, none waiting for another.
#ifndef IDEMPOTENCY_TESTS_INTEGRATION_BURST_H_
#define IDEMPOTENCY_TESTS_INTEGRATION_BURST_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <latch>
#include <memory>
#include <utility>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/client_context.h"
#include "tests/integration/wire_fixture.h"

namespace idempotency {

inline void StartCall(v1::IdempotencyService::Stub& stub,
                      grpc::ClientContext& context,
                      const v1::ClaimRequest& request,
                      v1::ClaimResponse& response,
                      std::function<void(grpc::Status)> done) {
  stub.async()->Claim(&context, &request, &response, std::move(done));
}
inline void StartCall(v1::IdempotencyService::Stub& stub,
                      grpc::ClientContext& context,
                      const v1::FinalizeRequest& request,
                      v1::FinalizeResponse& response,
                      std::function<void(grpc::Status)> done) {
  stub.async()->Finalize(&context, &request, &response, std::move(done));
}
inline void StartCall(v1::IdempotencyService::Stub& stub,
                      grpc::ClientContext& context,
                      const v1::LookupRequest& request,
                      v1::LookupResponse& response,
                      std::function<void(grpc::Status)> done) {
  stub.async()->Lookup(&context, &request, &response, std::move(done));
}

// Sends the requests when it is made. Not thread-safe. Its destructor waits
// for the answers, at most until their deadlines.
template <typename Request, typename Response>
class Burst {
 public:
  Burst(const Replica& replica, const std::vector<Request>& requests,
        std::chrono::milliseconds timeout = kPatience)
      : left_(static_cast<std::ptrdiff_t>(requests.size())) {
    for (const Request& request : requests) {
      calls_.push_back(std::make_unique<Call>());
      Call& call = *calls_.back();
      call.request = request;
      call.context.set_deadline(std::chrono::system_clock::now() + timeout);
      StartCall(replica.stub(), call.context, call.request, call.reply.message,
                [this, &call](grpc::Status status) {
                  call.reply.status = std::move(status);
                  ++answered_;
                  left_.count_down();
                });
    }
  }
  Burst(const Burst&) = delete;
  Burst& operator=(const Burst&) = delete;
  ~Burst() { left_.wait(); }

  // How many have been answered so far.
  std::size_t answered() const { return answered_; }

  // Waits for all answers; they come in the order of the requests.
  std::vector<Reply<Response>> Wait() {
    left_.wait();
    std::vector<Reply<Response>> replies;
    for (const auto& call : calls_) {
      call->reply.pushback = PushbackOf(call->context);
      replies.push_back(call->reply);
    }
    return replies;
  }

 private:
  struct Call {
    Request request;
    grpc::ClientContext context;
    Reply<Response> reply;
  };

  std::vector<std::unique_ptr<Call>> calls_;
  std::atomic<std::size_t> answered_{0};
  std::latch left_;
};

using ClaimBurst = Burst<v1::ClaimRequest, v1::ClaimResponse>;
using FinalizeBurst = Burst<v1::FinalizeRequest, v1::FinalizeResponse>;
using LookupBurst = Burst<v1::LookupRequest, v1::LookupResponse>;

// Returns when the calls that were sent before have reached the replica's
// lanes: calls of one connection arrive in order, and so have those before the
// ones that are answered here.
inline void WaitForArrival(const Replica& replica) {
  constexpr int kAnswers = 20;
  const auto stub = grpc::health::v1::Health::NewStub(replica.channel());
  for (int i = 0; i < kAnswers; ++i) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    grpc::health::v1::HealthCheckResponse response;
    EXPECT_TRUE(stub->Check(&context, {}, &response).ok());
  }
}

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_INTEGRATION_BURST_H_
