// Two replicas on one database, for tests in which what one of them was told
// has to hold at the other.
#ifndef IDEMPOTENCY_TESTS_INTEGRATION_TWO_REPLICAS_H_
#define IDEMPOTENCY_TESTS_INTEGRATION_TWO_REPLICAS_H_

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "tests/integration/fault_calls.h"
#include "tests/support/replica.h"
#include "tests/support/temp_postgres.h"

namespace idempotency {

// The replicas are those of the test suite.
class TwoReplicasTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    database_ = new std::string(Require(TempPostgres::SharedDatabase()));
    first_ = StartReplica(*database_).release();
    second_ = StartReplica(*database_).release();
  }
  static void TearDownTestSuite() {
    delete second_;
    delete first_;
    delete database_;
  }

  static Stub& first() { return first_->stub(); }
  static Stub& second() { return second_->stub(); }

  static std::string Sql(const std::string& sql) {
    return Require(TempPostgres::RunAt(*database_, sql));
  }

  // Fails the test unless the claim is granted in the end.
  static v1::Claimed Granted(Stub& stub, const v1::ClaimRequest& claim) {
    const auto answer = ClaimPatiently(stub, claim);
    EXPECT_EQ(Decided(answer), "Claimed");
    return answer.ok() ? answer->claimed() : v1::Claimed();
  }

  // Waits until the attempt is abandoned.
  static void WaitUntilAbandoned(const v1::ClaimRequest& claim) {
    while (Decided(Send(second(), LookupOf(claim))) == "STATE_IN_PROGRESS") {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    ASSERT_EQ(Decided(Send(second(), LookupOf(claim))), "STATE_IN_DOUBT");
  }

  static inline std::string* database_ = nullptr;
  static inline Replica* first_ = nullptr;
  static inline Replica* second_ = nullptr;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_INTEGRATION_TWO_REPLICAS_H_
