// RunOnce over scripted answers and a time of the test's.
#ifndef IDEMPOTENCY_TESTS_UNIT_RUN_ONCE_DRIVER_FIXTURE_H_
#define IDEMPOTENCY_TESTS_UNIT_RUN_ONCE_DRIVER_FIXTURE_H_

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "client/run_once.h"
#include "tests/unit/once_fixture.h"
#include "tests/unit/scripted_coordinator.h"

namespace idempotency {

inline constexpr std::chrono::seconds kLease{9};

inline Operation TheOperation() {
  return {
      .scope = "payments", .key = "key", .request_hash = std::string(32, 'h')};
}

class RunOnceDriverTest : public ::testing::Test {
 protected:
  RunOnceDriverTest() {
    coordinator_->on_claim = [](const v1::ClaimRequest&) {
      return ClaimedFor(kLease);
    };
    coordinator_->on_renewal = coordinator_->on_claim;
    coordinator_->on_finalize = [](const v1::FinalizeRequest&) {
      v1::FinalizeResponse recorded;
      recorded.set_result(v1::FinalizeResponse::RESULT_RECORDED);
      return recorded;
    };
    options_.client.environment = environment_;
  }
  ~RunOnceDriverTest() override { once_.reset(); }

  void TakesOver() {
    coordinator_->on_claim = [](const v1::ClaimRequest&) {
      return ClaimedFor(kLease, 2);
    };
  }

  RunOnce& once() {
    if (once_ == nullptr) {
      once_ = std::make_unique<RunOnce>(coordinator_, options_);
    }
    return *once_;
  }

  // Starts it; the future has its one result.
  std::future<RunResult> Start(AsyncFunction function,
                               AsyncResolver resolve = nullptr) {
    const auto result = std::make_shared<std::promise<RunResult>>();
    once().Start(
        TheOperation(), std::move(function),
        [result](const RunResult& delivered) { result->set_value(delivered); },
        std::move(resolve));
    return result->get_future();
  }

  std::shared_ptr<ScriptedCoordinator> coordinator_ =
      std::make_shared<ScriptedCoordinator>();
  const std::shared_ptr<ManualEnvironment> environment_ =
      std::make_shared<ManualEnvironment>();
  RunOnceOptions options_;
  std::unique_ptr<RunOnce> once_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_UNIT_RUN_ONCE_DRIVER_FIXTURE_H_
