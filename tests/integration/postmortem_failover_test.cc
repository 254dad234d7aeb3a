// Published failures of others when a database failed over, played against a
// primary and a synchronous standby. The numbers go on those of
// postmortems_test.cc:
//
//  7 Airbnb: a read on a standby that lagged behind made a payment happen
//    twice; 8 Twilio 2013: the store turned read-only after the charge, the
//    balance was never updated, and the card was charged again and again; 9
//    Razorpay 2019 and 12 GitLab infrastructure #7282: what had been
//    acknowledged was only on the node that failed; 10 GitHub 2018-10-21: after
//    a partition both sides had taken writes; 11 Stolon #514 and the patch that
//    Yandex proposed for PostgreSQL: the wait for the standby is cut short by a
//    cancel or a restart, everybody sees the row, and the standby that never
//    had it is promoted; 13 MongoDB SERVER-55305: a write is executed twice
//    because the record of it was rolled back.
//
// The same under load, again and again: tests/fault/failover.py.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/integration/fault_calls.h"
#include "tests/support/replica.h"
#include "tests/support/temp_postgres.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr char kStandby[] = "s1";
constexpr char kDatabase[] = "records";
// Shorter than what a call waits for that can't be answered.
constexpr milliseconds kImpatient{600};
constexpr seconds kPatience{30};
// No test outlasts it.
constexpr std::chrono::minutes kLease{30};

// From MakeStandby() on, commits of primary() wait for standby_.
class PostmortemFailoverTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    primary_ =
        Require(TempPostgres::Make({.fsync = false, .settings = {}})).release();
    Require(primary_->CreateDatabase(kDatabase));
  }
  static void TearDownTestSuite() {
    delete primary_;
    primary_ = nullptr;
  }

  void MakeStandby() {
    standby_ = Require(TempPostgres::MakeStandby(*primary_, kStandby));
    WaitUntil(
        *primary_,
        "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'",
        "1");
    Configure("synchronous_standby_names", kStandby);
  }
  // The primary is the next test's too.
  void TearDown() override {
    RequireOk(primary_->Start());
    Configure("synchronous_standby_names", "");
    standby_.reset();
  }

  static TempPostgres& primary() { return *primary_; }
  static std::string OnlyTo(const TempPostgres& postgres) {
    return postgres.Uri(kDatabase);
  }
  // As deployments do that fail over: whichever of both can be written.
  std::string ToBoth() const {
    return absl::StrCat("postgresql://idempotency@127.0.0.1:", primary_->port(),
                        ",127.0.0.1:", standby_->port(), "/", kDatabase);
  }

  // On the primary, whose other sessions learn of it soon.
  static void Configure(const std::string& name, const std::string& value) {
    Require(primary_->Run(
        absl::StrCat("ALTER SYSTEM SET ", name, " = '", value, "'")));
    Require(primary_->Run("SELECT pg_reload_conf()"));
    WaitUntil(*primary_, "SHOW " + name, value);
  }

  static void WaitUntil(TempPostgres& postgres, const std::string& sql,
                        const std::string& answer) {
    const auto deadline = std::chrono::steady_clock::now() + seconds(20);
    std::string last;
    while ((last = Require(postgres.Run(sql, kDatabase))) != answer) {
      if (std::chrono::steady_clock::now() > deadline) {
        throw std::runtime_error(sql + ": " + last);
      }
      std::this_thread::sleep_for(milliseconds(10));
    }
  }
  void WaitForACommitWithoutStandby() {
    WaitUntil(*primary_,
              "SELECT count(*) > 0 FROM pg_stat_activity WHERE "
              "wait_event = 'SyncRep'",
              "t");
  }
  static void CancelCommitsThatWait() {
    Require(primary_->Run(
        "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE "
        "wait_event = 'SyncRep'"));
  }
  // The standby takes over as it was when it stopped.
  void FailOverToStoppedStandby() {
    RequireOk(primary_->Stop(TempPostgres::StopMode::kImmediate));
    RequireOk(standby_->Start());
    RequireOk(standby_->Promote());
  }
  // What is decided once the call is served, which a failover delays.
  template <typename Request>
  static std::string Patiently(Stub& stub, const Request& request) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (true) {
      const auto response = Send(stub, request);
      if (!IsUnserved(response.status()) ||
          std::chrono::steady_clock::now() > deadline) {
        return Decided(response);
      }
    }
  }
  static std::string RecordedStatus(TempPostgres& postgres,
                                    const v1::ClaimRequest& claim) {
    return Require(postgres.Run(
        absl::StrCat("SELECT status_code FROM idempotency_records WHERE key = "
                     "'",
                     claim.key(), "'"),
        kDatabase));
  }

  std::unique_ptr<TempPostgres> standby_;

 private:
  static TempPostgres* primary_;
};

TempPostgres* PostmortemFailoverTest::primary_ = nullptr;

TEST_F(PostmortemFailoverTest, No7AStandbyAnswersNeitherClaimsNorLookups) {
  MakeStandby();
  const auto replica = StartReplica(OnlyTo(primary()));
  const v1::ClaimRequest claim = ClaimFor(kLease, RandomKey());
  ASSERT_EQ(Decided(Send(replica->stub(), claim)), "Claimed");
  Replica::Options options;
  options.database = OnlyTo(*standby_);
  options.migrate = false;
  options.wait_until_serving = false;
  options.flags = {"--store_patience=200ms"};
  const auto lagging = Require(Replica::Start(std::move(options)));
  RequireOk(lagging->process().WaitForPort(lagging->port()));
  EXPECT_EQ(Decided(Send(lagging->stub(), claim)), "STORE_UNAVAILABLE");
  EXPECT_EQ(Decided(Send(lagging->stub(), LookupOf(claim))),
            "STORE_UNAVAILABLE");
  EXPECT_TRUE(lagging->WaitUntilNotServing().ok());
}

TEST_F(PostmortemFailoverTest,
       No8AStoreThatIsReadOnlyAfterTheChargeChargesOnce) {
  const auto replica =
      StartReplica(OnlyTo(primary()), {"--store_patience=200ms"});
  Stub& stub = replica->stub();
  const v1::ClaimRequest claim = ClaimFor(milliseconds(500), RandomKey());
  const auto charged = Require(Send(stub, claim));
  ASSERT_TRUE(charged.has_claimed());
  Configure("default_transaction_read_only", "on");
  EXPECT_EQ(Decided(Send(stub, FinalizeOf(claim, 200, "charged"))),
            "STORE_UNAVAILABLE");
  EXPECT_EQ(Decided(Send(stub, ByAnother(claim))), "STORE_UNAVAILABLE");
  Configure("default_transaction_read_only", "off");
  const auto retried = Require(ClaimPatiently(stub, ByAnother(claim)));
  ASSERT_TRUE(retried.has_claimed()) << retried.ShortDebugString();
  // So it asks the channel first, which knows the charge by this key.
  EXPECT_EQ(retried.claimed().abandoned().attempt(), 1);
  EXPECT_EQ(retried.claimed().downstream_key(),
            charged.claimed().downstream_key());
}

TEST_F(PostmortemFailoverTest, No9And12WhatIsAcknowledgedIsOnTheStandby) {
  MakeStandby();
  const auto replica = StartReplica(ToBoth());
  Stub& stub = replica->stub();
  const v1::ClaimRequest kept = ClaimFor(kLease, RandomKey());
  ASSERT_EQ(Decided(Send(stub, kept)), "Claimed");
  ASSERT_EQ(Decided(Send(stub, FinalizeOf(kept, 200, "kept"))),
            "RESULT_RECORDED");
  const v1::ClaimRequest late = ClaimFor(kLease, RandomKey());
  ASSERT_EQ(Decided(Send(stub, late)), "Claimed");
  RequireOk(standby_->Stop(TempPostgres::StopMode::kImmediate));
  EXPECT_TRUE(IsUnserved(
      Send(stub, FinalizeOf(late, 200, "late"), kImpatient).status()));
  FailOverToStoppedStandby();
  RequireOk(replica->WaitUntilServing());
  EXPECT_EQ(Patiently(stub, ByAnother(kept)), "Replay");
  EXPECT_EQ(Patiently(stub, ByAnother(late)), "InProgress");
  EXPECT_EQ(Patiently(stub, FinalizeOf(late, 200, "late")), "RESULT_RECORDED");
}

TEST_F(PostmortemFailoverTest, No10TheOldPrimaryGrantsNothingAfterAPromotion) {
  MakeStandby();
  const auto west = StartReplica(OnlyTo(primary()));
  RequireOk(standby_->Promote());
  const auto east = StartReplica(OnlyTo(*standby_));
  const v1::ClaimRequest claim = ClaimFor(kLease, RandomKey());
  EXPECT_TRUE(
      IsUnserved(Send(west->stub(), ByAnother(claim), kImpatient).status()));
  EXPECT_EQ(Decided(Send(east->stub(), claim)), "Claimed");
  const v1::FinalizeRequest finalize = FinalizeOf(claim, 200, "of the east");
  EXPECT_TRUE(IsUnserved(Send(west->stub(), finalize, kImpatient).status()));
  EXPECT_EQ(Decided(Send(east->stub(), finalize)), "RESULT_RECORDED");
}

TEST_F(PostmortemFailoverTest,
       No11ARowThatOnlyTheOldPrimaryShowedIsNotRecorded) {
  MakeStandby();
  const auto replica = StartReplica(ToBoth());
  const auto other = StartReplica(ToBoth());
  Stub& stub = replica->stub();
  const v1::ClaimRequest claim = ClaimFor(kLease, RandomKey());
  ASSERT_EQ(Decided(Send(stub, claim)), "Claimed");
  RequireOk(standby_->Stop(TempPostgres::StopMode::kImmediate));
  EXPECT_TRUE(IsUnserved(
      Send(stub, FinalizeOf(claim, 200, "lost"), kImpatient).status()));
  WaitForACommitWithoutStandby();
  CancelCommitsThatWait();
  RequireOk(primary().Restart(TempPostgres::StopMode::kImmediate));
  EXPECT_EQ(RecordedStatus(primary(), claim), "200");
  // A read shows it, and what was shown is kept in memory.
  ASSERT_EQ(Decided(ClaimPatiently(other->stub(), ByAnother(claim))), "Replay");
  EXPECT_TRUE(IsUnserved(
      Send(stub, FinalizeOf(claim, 200, "lost"), kImpatient).status()));

  FailOverToStoppedStandby();
  EXPECT_EQ(RecordedStatus(*standby_, claim), "");
  RequireOk(replica->WaitUntilServing());
  ASSERT_EQ(Patiently(stub, FinalizeOf(claim, 201, "kept")), "RESULT_RECORDED");
  // From the time on that it has met the new primary, at the latest.
  ASSERT_EQ(Patiently(other->stub(), LookupOf(claim)), "STATE_FINALIZED");
  const auto replayed =
      Require(ClaimPatiently(other->stub(), ByAnother(claim)));
  EXPECT_EQ(replayed.replay().response().body(), "kept");
}

TEST_F(PostmortemFailoverTest, No13AClaimThatIsRolledBackIsGrantedOnce) {
  MakeStandby();
  const auto replica = StartReplica(ToBoth());
  Stub& stub = replica->stub();
  RequireOk(standby_->Stop(TempPostgres::StopMode::kImmediate));
  const v1::ClaimRequest claim = ClaimFor(kLease, RandomKey());
  auto granted =
      std::async(std::launch::async, [&] { return Patiently(stub, claim); });
  WaitForACommitWithoutStandby();
  FailOverToStoppedStandby();
  EXPECT_EQ(granted.get(), "Claimed");
  EXPECT_EQ(Patiently(stub, claim), "Claimed");
  EXPECT_EQ(Patiently(stub, ByAnother(claim)), "InProgress");
}

}  // namespace
}  // namespace idempotency
