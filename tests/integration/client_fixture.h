// What the tests of the client share: requests, and a time that obeys.
#ifndef IDEMPOTENCY_TESTS_INTEGRATION_CLIENT_FIXTURE_H_
#define IDEMPOTENCY_TESTS_INTEGRATION_CLIENT_FIXTURE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "client/environment.h"
#include "idempotency/v1/idempotency.pb.h"

namespace idempotency {

// A timer moves the clock, is written down, and is due at once. Random() is
// half of the range, so that a jittered wait is half of its bound.
class VirtualTime final : public ClientEnvironment {
 public:
  TimePoint Now() override {
    const std::lock_guard lock(mutex_);
    return now_;
  }
  std::unique_ptr<Timer> RunAfter(std::chrono::nanoseconds duration,
                                  std::function<void()> callback) override {
    const std::lock_guard lock(mutex_);
    now_ += duration;
    sleeps_.push_back(duration);
    return SystemEnvironment()->RunAfter(std::chrono::nanoseconds(0),
                                         std::move(callback));
  }
  std::uint64_t Random() override { return std::uint64_t{1} << 63; }

  std::vector<std::chrono::nanoseconds> sleeps() {
    const std::lock_guard lock(mutex_);
    return sleeps_;
  }

 private:
  std::mutex mutex_;
  TimePoint now_{std::chrono::hours(1)};
  std::vector<std::chrono::nanoseconds> sleeps_;
};

inline v1::ClaimRequest ARequest() {
  v1::ClaimRequest request;
  request.set_scope("payments");
  request.set_key("order-1");
  request.set_request_hash(std::string(32, 'h'));
  return request;
}

inline v1::FinalizeRequest AFinalize(std::string body) {
  v1::FinalizeRequest request;
  request.set_scope("payments");
  request.set_key("order-1");
  request.set_claim_token(NewClaimToken());
  request.mutable_response()->set_status_code(201);
  request.mutable_response()->set_body(std::move(body));
  return request;
}

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_INTEGRATION_CLIENT_FIXTURE_H_
