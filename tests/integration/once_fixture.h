// What the tests of RunOnce over the wire share.
#ifndef IDEMPOTENCY_TESTS_INTEGRATION_ONCE_FIXTURE_H_
#define IDEMPOTENCY_TESTS_INTEGRATION_ONCE_FIXTURE_H_

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

#include "client/run_once.h"
#include "tests/integration/wire_fixture.h"

namespace idempotency {

// For keys whose function must not run.
inline FunctionResult MustNotRun(Execution&) {
  ADD_FAILURE() << "the function ran";
  return OutcomeUnknown{};
}

// The result has a response, and this is its body.
inline testing::AssertionResult Answers(const RunResult& result,
                                        RunOutcome outcome,
                                        const std::string& body) {
  if (result.outcome == outcome && result.has_response() &&
      result.status.ok() && result.response.body() == body) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure()
         << NameOf(result.outcome) << " '" << result.response.body() << "' "
         << result.status;
}

class RunOnceTest : public WireTest {
 protected:
  RunOnceTest() : once_(RunOnce::Connect(replica().target())) {}

  // With a key of its own. It does not wait for other owners.
  static Operation AnOperation(const std::string& policy = "default") {
    return {.scope = kScope,
            .key = NewKey(),
            .request_hash = std::string(32, 'h'),
            .policy = policy,
            .wait = std::chrono::milliseconds(0)};
  }
  static Operation Waiting(Operation operation) {
    operation.wait = kPatience;
    return operation;
  }
  // With a short lease that is not renewed.
  static Operation Lapsing(Operation operation) {
    operation.lease = std::chrono::milliseconds(500);
    operation.renew = false;
    return operation;
  }

  static LookupReply LookUp(const Operation& operation) {
    v1::LookupRequest lookup;
    lookup.set_scope(operation.scope);
    lookup.set_key(operation.key);
    return Send(lookup);
  }
  static v1::Record RecordOf(const Operation& operation) {
    const LookupReply reply = LookUp(operation);
    EXPECT_TRUE(reply.status.ok()) << reply.status.error_message();
    return reply->record();
  }

  // Asked by somebody else, with a function that must not run.
  RunResult Ask(const Operation& operation) {
    return once_->Run(operation, MustNotRun);
  }

  // One attempt that may have acted, and whose outcome nobody knows.
  void Abandon(const Operation& operation) {
    const RunResult result = once_->Run(operation, [](Execution&) {
      return OutcomeUnknown{absl::UnavailableError("the line went dead")};
    });
    EXPECT_EQ(result.outcome, RunOutcome::kUnknown) << result.status;
  }

  const std::unique_ptr<RunOnce> once_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_INTEGRATION_ONCE_FIXTURE_H_
