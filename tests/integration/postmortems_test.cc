// Failures that were published by others, played against this service: the
// sequence that hurt them, with two replicas and a real PostgreSQL. The number
// is that of the list below, a double charge or a lost one unless it says
// otherwise.
//
//  1 jetcd 0.8.2 sends an applied transaction again; 2, 3 Powertools: a lease
//    that is missing or zero counts as over, or as endless; 4 Powertools, Diom:
//    whoever comes late completes or unlocks the successor's claim; 5 Unomi: a
//    replica judges a lease by a setting of its own; 6 ShedLock, Quartz: by its
//    own clock; 14 Celery: work outlasts its visibility timeout; 15 dpxdt: a
//    lost owner overwrites the result; 17 etcd: a crash loses the last write;
//    18 nginx before 1.9.13 sends a POST twice; 20 a client takes its timeout
//    for a failure; 21 glibc 2.28 changes the order of an index; 22 PostgreSQL
//    14.0 to 14.3 build unique indexes with holes; 25 a key of one tenant
//    answers another; 27 NATS 2.12.1 acknowledges before it syncs; 29
//    Santander pays a whole schedule twice; 30 GOV.UK Pay: the key and the
//    charge do not expire together.
//
// Elsewhere: 7 to 13 (failover, a database that turns read-only) in
// postmortem_failover_test.cc; 16 (etcd locks, a pause beyond the lease) in
// owner_pause_test.cc; 17 also as FrozenDatabaseGrantsNobodyWithinTheDeadline;
// 24 (good_job and others behind PgBouncer) in pooled_test.cc; 26 (steemit:
// part of a digest compared) as AllBytesOfTheHashAreCompared; 28 (FoundationDB:
// the outcome of a commit is unknown) in lost_replies_test.cc.
//
// Not played: 19 (Akash: a new key for each delivery), which no server can
// see: README tells callers to keep the key before they send; 23 (Sentry,
// Mandrill, Joyent: transaction ids run out), which takes two thousand million
// transactions: README says what to watch.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "tests/integration/fault_calls.h"
#include "tests/integration/http2_answer.h"
#include "tests/integration/load.h"
#include "tests/integration/two_replicas.h"
#include "tests/support/replica.h"
#include "tests/support/tcp_gate.h"
#include "tests/support/temp_folder.h"
#include "tests/support/temp_postgres.h"

namespace idempotency {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr milliseconds kLease{300};
constexpr seconds kLong{20};

class PostmortemTest : public TwoReplicasTest {
 protected:
  // Granted, and its lease over.
  static v1::ClaimRequest Lapsed(const std::string& key) {
    const v1::ClaimRequest claim = ClaimFor(kLease, key);
    Granted(first(), claim);
    WaitUntilAbandoned(claim);
    return claim;
  }
};

// A channel with gRPC's own retries, as a careless user sets them.
std::shared_ptr<grpc::Channel> RetryingChannel(int port) {
  grpc::ChannelArguments arguments;
  arguments.SetServiceConfigJSON(R"({"methodConfig": [{
    "name": [{"service": "idempotency.v1.IdempotencyService"}],
    "retryPolicy": {"maxAttempts": 5, "initialBackoff": "0.05s",
                    "maxBackoff": "0.2s", "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"]}}]})");
  return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port),
                                   grpc::InsecureChannelCredentials(),
                                   arguments);
}

TEST_F(PostmortemTest, No1AnAppliedClaimThatIsSentAgainIsGrantedOnce) {
  const auto gate = Require(TcpGate::Make(first_->port()));
  const auto stub =
      v1::IdempotencyService::NewStub(RetryingChannel(gate->port()));
  const v1::ClaimRequest claim = ClaimOf(RandomKey());
  ASSERT_EQ(Decided(Send(*stub, LookupOf(claim))), "RECORD_NOT_FOUND");

  TcpGate::Cut cut;
  cut.request_contains = claim.key();
  cut.answered = EndsAStream;
  gate->CutAfterNextRequest(cut);
  const v1::Claimed claimed = Granted(*stub, claim);
  EXPECT_TRUE(gate->WaitForCuts(1, kLong));

  // Hedged to both replicas, three times each.
  std::vector<std::future<v1::Claimed>> hedges;
  for (int i = 0; i < 6; ++i) {
    Stub& stub_of_hedge = i % 2 == 0 ? first() : second();
    hedges.push_back(std::async(std::launch::async, [&claim, &stub_of_hedge] {
      return Granted(stub_of_hedge, claim);
    }));
  }
  for (auto& hedge : hedges) {
    const v1::Claimed again = hedge.get();
    EXPECT_EQ(again.fencing_token(), claimed.fencing_token());
    EXPECT_EQ(again.attempt(), 1);
    EXPECT_FALSE(again.has_abandoned());
  }
  EXPECT_EQ(Decided(Send(second(), ByAnother(claim))), "InProgress");
}

TEST_F(PostmortemTest, No2AClaimWithoutALeaseHasThatOfItsPolicy) {
  const v1::ClaimRequest claim = ClaimOf(RandomKey());
  const v1::Claimed claimed = Granted(first(), claim);
  EXPECT_GT(MillisecondsOf(claimed.lease()), seconds(25));
  EXPECT_EQ(Decided(Send(second(), ByAnother(claim))), "InProgress");
}

TEST_F(PostmortemTest, No3ALeaseOfZeroIsRefusedAndClaimsNothing) {
  v1::ClaimRequest claim = ClaimOf(RandomKey());
  claim.mutable_lease();
  EXPECT_EQ(Decided(Send(first(), claim)), "INVALID_FIELD");
  EXPECT_EQ(Decided(Send(first(), LookupOf(claim))), "RECORD_NOT_FOUND");
}

TEST_F(PostmortemTest, No4WhoeverComesLateNeitherCompletesNorUnlocks) {
  const v1::ClaimRequest late = Lapsed(RandomKey());
  v1::ClaimRequest successor = ByAnother(late);
  successor.clear_lease();
  Granted(second(), successor);

  EXPECT_EQ(Decided(Send(first(), FinalizeOf(late, 201, "late"))),
            "CLAIM_SUPERSEDED");
  for (const auto disposition :
       {v1::ReleaseRequest::DISPOSITION_NEVER_EXECUTED,
        v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED,
        v1::ReleaseRequest::DISPOSITION_OUTCOME_UNKNOWN}) {
    EXPECT_EQ(Decided(Send(first(), ReleaseOf(late, disposition))),
              "CLAIM_SUPERSEDED");
  }
  EXPECT_EQ(Decided(Send(first(), ByAnother(late))), "InProgress");
}

TEST_F(PostmortemTest, No5AShorterPolicyStealsNoLeaseThatRuns) {
  Sql("INSERT INTO ttl_policies (name, lease) VALUES ('rolling', '1 minute')");
  const v1::ClaimRequest claim = ClaimOf(RandomKey(), "rolling");
  Granted(first(), claim);
  Sql("UPDATE ttl_policies SET lease = '100 ms' WHERE name = 'rolling'");
  // As a rolling upgrade would, with what is new in its memory.
  RequireOk(second_->Restart());
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_EQ(Decided(Send(second(), ByAnother(claim))), "InProgress");
  EXPECT_EQ(Decided(Send(second(), FinalizeOf(claim, 201, "mine"))),
            "RESULT_RECORDED");
}

// A file for skewed_clock.cc: how many nanoseconds a clock is off.
std::string ClockFile(const TempFolder& folder, std::chrono::nanoseconds by) {
  const std::string path = absl::StrCat(folder.path(), "/", by.count());
  const std::int64_t offset = by.count();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(&offset), sizeof offset);
  return path;
}

TEST_F(PostmortemTest, No6AReplicasClockDecidesNothing) {
  const auto folder = Require(TempFolder::Make());
  for (const std::chrono::hours shift : {1h, -1h}) {
    SCOPED_TRACE(shift.count());
    Replica::Options options;
    options.database = *database_;
    options.environment = {"LD_PRELOAD=" SKEWED_CLOCK,
                           "SKEWED_CLOCK=" + ClockFile(*folder, shift)};
    const auto shifted = Require(Replica::Start(options));
    const std::string key = RandomKey();
    const v1::ClaimRequest claim = ClaimFor(seconds(30), key);
    const v1::Claimed claimed = Granted(first(), claim);
    const v1::ClaimRequest other = ByAnother(claim);
    EXPECT_EQ(Decided(Send(shifted->stub(), other)), "InProgress");

    const v1::ClaimRequest lapsed = Lapsed(RandomKey());
    const v1::Claimed taken = Granted(shifted->stub(), ByAnother(lapsed));
    EXPECT_EQ(taken.attempt(), 2);
    // A token that grew by an hour would lock the true clock out.
    EXPECT_LT(taken.fencing_token() - claimed.fencing_token(),
              std::chrono::microseconds(kLong).count());
    EXPECT_GT(taken.fencing_token(), claimed.fencing_token());
    EXPECT_EQ(Decided(Send(shifted->stub(), FinalizeOf(claim, 201, "mine"))),
              "RESULT_RECORDED");
    EXPECT_EQ(Decided(Send(first(), other)), "Replay");
  }
}

TEST_F(PostmortemTest, No14WorkThatOutlastsItsLeaseIsTakenOverAndTold) {
  const std::string key = RandomKey();
  const v1::ClaimRequest slow = ClaimFor(kLease, key);
  const v1::Claimed first_grant = Granted(first(), slow);
  // The queue delivers it again while the first worker is at it.
  const v1::Claimed second_grant = Granted(second(), ByAnother(slow));
  EXPECT_EQ(second_grant.attempt(), 2);
  EXPECT_EQ(second_grant.abandoned().fencing_token(),
            first_grant.fencing_token());
  EXPECT_EQ(second_grant.downstream_key(), first_grant.downstream_key());
  EXPECT_EQ(Decided(Send(first(), FinalizeOf(slow, 201, "slow"))),
            "CLAIM_SUPERSEDED");
}

TEST_F(PostmortemTest, No15TheWinnersResultStaysAndTheLosersIsEvidence) {
  const v1::ClaimRequest late = Lapsed(RandomKey());
  const v1::ClaimRequest winner = ByAnother(late);
  Granted(second(), winner);
  const v1::FinalizeRequest won = FinalizeOf(winner, 201, "the winner's");
  ASSERT_EQ(Decided(Send(second(), won)), "RESULT_RECORDED");
  // Also if it has the same to say.
  for (const char* const body : {"the loser's", "the winner's"}) {
    EXPECT_EQ(Decided(Send(first(), FinalizeOf(late, 201, body))),
              "CLAIM_SUPERSEDED");
  }
  EXPECT_THAT(MissingReplays(first(), {{winner, won.response()}}), IsEmpty());
  EXPECT_EQ(Sql(absl::StrCat("SELECT count(*) FROM idempotency_conflicts "
                             "WHERE key = '",
                             late.key(), "'")),
            "2");
}

TEST_F(PostmortemTest, No18WhatAProxySendsTwiceLateIsAnsweredAsTheFirst) {
  const v1::ClaimRequest claim = ClaimOf(RandomKey());
  const v1::Claimed claimed = Granted(first(), claim);
  EXPECT_EQ(Granted(second(), claim).fencing_token(), claimed.fencing_token());
  const v1::FinalizeRequest finalize = FinalizeOf(claim, 201, "paid");
  ASSERT_EQ(Decided(Send(first(), finalize)), "RESULT_RECORDED");
  EXPECT_EQ(Decided(Send(second(), finalize)), "RESULT_RECORDED");
  EXPECT_EQ(Decided(Send(second(), claim)), "Replay");

  const v1::ClaimRequest freed = ClaimOf(RandomKey());
  Granted(first(), freed);
  const v1::ReleaseRequest release =
      ReleaseOf(freed, v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED);
  ASSERT_EQ(Decided(Send(first(), release)), "released");
  const v1::ClaimRequest next = ByAnother(freed);
  Granted(first(), next);
  // Neither revives what was released nor ends what came after it.
  EXPECT_EQ(Decided(Send(second(), freed)), "InProgress");
  EXPECT_EQ(Decided(Send(second(), release)), "CLAIM_SUPERSEDED");
  EXPECT_EQ(Decided(Send(second(), FinalizeOf(next, 201, "paid"))),
            "RESULT_RECORDED");
}

TEST_F(PostmortemTest, No20ATimeoutIsDoubtAndADeclineIsAnAnswer) {
  const v1::ClaimRequest payment = ClaimOf(RandomKey(), "payment");
  const v1::Claimed claimed = Granted(first(), payment);
  // The provider takes three seconds, the caller waits for two.
  ASSERT_EQ(
      Decided(Send(
          first(),
          ReleaseOf(payment, v1::ReleaseRequest::DISPOSITION_OUTCOME_UNKNOWN))),
      "released");
  const v1::ClaimRequest retry = ByAnother(payment);
  const auto doubt = Send(second(), retry);
  ASSERT_EQ(Decided(doubt), "InDoubt");
  EXPECT_EQ(doubt->in_doubt().abandoned().downstream_key(),
            claimed.downstream_key());
  // The provider's answer comes after all.
  EXPECT_EQ(Decided(Send(first(), FinalizeOf(payment, 201, "charged"))),
            "RESULT_RECORDED");
  EXPECT_EQ(Decided(Send(second(), retry)), "Replay");

  v1::ClaimRequest other_amount = retry;
  other_amount.set_request_hash(std::string(32, '5'));
  EXPECT_EQ(Decided(Send(second(), other_amount)), "Mismatch");

  const v1::ClaimRequest declined = ClaimOf(RandomKey(), "payment");
  Granted(first(), declined);
  const v1::FinalizeRequest no = FinalizeOf(declined, 402, "declined");
  ASSERT_EQ(Decided(Send(first(), no)), "RESULT_RECORDED");
  EXPECT_THAT(MissingReplays(second(), {{declined, no.response()}}), IsEmpty());
}

TEST_F(PostmortemTest, No21NoIndexOfNamesHasALocalesOrder) {
  EXPECT_EQ(Sql(R"sql(
    SELECT count(*), count(*) FILTER (WHERE c.collname = 'C')
    FROM pg_index AS i
    JOIN pg_attribute AS a
      ON a.attrelid = i.indexrelid AND a.attcollation <> 0
    JOIN pg_collation AS c ON c.oid = a.attcollation
    WHERE i.indisunique
      AND i.indrelid IN ('idempotency_records'::regclass,
                         'idempotency_conflicts'::regclass,
                         'ttl_policies'::regclass, 'scope_policies'::regclass)
  )sql"),
            "6\t6");
}

TEST_F(PostmortemTest, No22IndexesRebuiltUnderLoadMissNothing) {
  Load load({first_->channel(), second_->channel()}, {.threads = 8});
  ASSERT_TRUE(load.WaitForAcknowledged(200, kLong));
  Sql("REINDEX TABLE CONCURRENTLY idempotency_records");
  ASSERT_TRUE(load.WaitForAcknowledged(200, kLong));
  load.Stop();
  EXPECT_THAT(load.wrong(), IsEmpty());
  Sql("CREATE EXTENSION IF NOT EXISTS amcheck");
  // Raises an error where a row is not in its index.
  Sql("SELECT bt_index_check(indexrelid, true) FROM pg_index "
      "WHERE indrelid = 'idempotency_records'::regclass");
  EXPECT_EQ(Sql("SELECT count(*) FROM (SELECT FROM idempotency_records "
                "GROUP BY scope, key HAVING count(*) > 1) AS twice"),
            "0");
  EXPECT_THAT(MissingReplays(second(), load.acknowledged()), IsEmpty());
}

TEST_F(PostmortemTest, No25AnotherTenantsKeyIsAnotherRecord) {
  const v1::ClaimRequest ours = ClaimOf(RandomKey());
  Granted(first(), ours);
  ASSERT_EQ(Decided(Send(first(), FinalizeOf(ours, 200, "our secret"))),
            "RESULT_RECORDED");
  v1::ClaimRequest theirs = ByAnother(ours);
  for (const char* const scope : {"faults/theirs", "fault", "Faults"}) {
    SCOPED_TRACE(scope);
    theirs.set_scope(scope);
    EXPECT_EQ(Decided(Send(first(), LookupOf(theirs))), "RECORD_NOT_FOUND");
    const v1::Claimed claimed = Granted(second(), theirs);
    EXPECT_EQ(claimed.attempt(), 1);
  }
  EXPECT_EQ(Decided(Send(second(), FinalizeOf(theirs, 200, "theirs"))),
            "RESULT_RECORDED");
  const auto replay = Send(first(), ours);
  ASSERT_EQ(Decided(replay), "Replay");
  EXPECT_EQ(replay->replay().response().body(), "our secret");
}

// Runs each payment of the schedule and says how many charges there were.
int ChargesOf(Client& client, const std::vector<std::string>& schedule) {
  int charges = 0;
  for (const std::string& key : schedule) {
    v1::ClaimRequest claim = ClaimOf(key, "payment");
    const auto answer = client.Claim(claim);
    if (Decided(answer) == "Replay") continue;
    EXPECT_EQ(Decided(answer), "Claimed");
    ++charges;
    EXPECT_EQ(Decided(client.Finalize(FinalizeOf(claim, 201, key))),
              "RESULT_RECORDED");
  }
  return charges;
}

TEST_F(PostmortemTest, No29AScheduleThatRunsTwicePaysOnce) {
  std::vector<std::string> schedule;
  for (int i = 0; i < 200; ++i) schedule.push_back(RandomKey());
  EXPECT_EQ(ChargesOf(first_->client(), schedule), 200);
  EXPECT_EQ(ChargesOf(second_->client(), schedule), 0);
}

TEST_F(PostmortemTest, No30AfterTheRetentionTheDownstreamKeyIsStillTheSame) {
  Sql("INSERT INTO ttl_policies (name, lease, retention) "
      "VALUES ('brief', '300 ms', '300 ms')");
  const v1::ClaimRequest claim = ClaimOf(RandomKey(), "brief");
  const v1::Claimed claimed = Granted(first(), claim);
  ASSERT_EQ(Decided(Send(first(), FinalizeOf(claim, 201, "charged"))),
            "RESULT_RECORDED");
  const v1::ClaimRequest later = ByAnother(claim);
  v1::Claimed again;
  for (auto answer = Send(second(), later);; answer = Send(second(), later)) {
    if (Decided(answer) == "Claimed") {
      again = answer->claimed();
      break;
    }
    ASSERT_EQ(Decided(answer), "Replay");
    std::this_thread::sleep_for(milliseconds(20));
  }
  // A new life of the key, which the channel still knows as the same payment.
  EXPECT_EQ(again.attempt(), 1);
  EXPECT_GT(again.fencing_token(), claimed.fencing_token());
  EXPECT_EQ(again.downstream_key(), claimed.downstream_key());
}

// Each with a PostgreSQL of its own.

TEST(PostmortemDatabaseTest, No17AKilledDatabaseKeepsWhatWasAcknowledged) {
  const auto postgres = Require(TempPostgres::Make());
  const auto replica = StartReplica(Require(postgres->CreateDatabase()));
  Load load({replica->channel()}, {.threads = 8});
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(load.WaitForAcknowledged(50, kLong));
    RequireOk(postgres->Restart(TempPostgres::StopMode::kImmediate));
  }
  ASSERT_TRUE(load.WaitForAcknowledged(50, kLong));
  load.Stop();
  EXPECT_THAT(load.wrong(), IsEmpty());
  EXPECT_THAT(MissingReplays(replica->stub(), load.acknowledged()), IsEmpty());
}

std::unique_ptr<Replica> StartStrictReplica(const std::string& database,
                                            const std::string& durability) {
  Replica::Options options;
  options.database = database;
  options.flags = {"--require_durability=" + durability};
  options.wait_until_serving = false;
  return Require(Replica::Start(options));
}

// Told to the operator with the remedy, and nothing is acknowledged.
void ExpectUnserved(const Replica& replica, const std::string& remedy) {
  RequireOk(replica.WaitForLogLine(remedy).status());
  RequireOk(replica.WaitUntilNotServing());
  EXPECT_EQ(Decided(Send(replica.stub(), ClaimOf(RandomKey()))),
            "STORE_UNAVAILABLE");
}

TEST(PostmortemDatabaseTest, No27ADatabaseThatNeverSyncsIsNotServed) {
  const auto replica =
      StartStrictReplica(Require(TempPostgres::SharedDatabase()), "crash");
  ExpectUnserved(*replica, "set fsync to on");
}

TEST(PostmortemDatabaseTest, No27ADatabaseThatStopsToWaitIsServedNoMore) {
  const auto postgres = Require(TempPostgres::Make());
  const auto replica =
      StartStrictReplica(Require(postgres->CreateDatabase()), "crash");
  RequireOk(replica->WaitUntilServing());
  // Sessions that are open keep the setting that they have.
  RequireOk(
      postgres->Run("ALTER ROLE CURRENT_USER SET synchronous_commit = off")
          .status());
  ExpectUnserved(*replica, "set synchronous_commit to on");
  RequireOk(postgres->Run("ALTER ROLE CURRENT_USER RESET synchronous_commit")
                .status());
  RequireOk(replica->WaitUntilServing());
  EXPECT_EQ(Decided(ClaimPatiently(replica->stub(), ClaimOf(RandomKey()))),
            "Claimed");
}

TEST(PostmortemDatabaseTest, No9To12AFailoverNeedsASynchronousStandby) {
  const auto postgres = Require(TempPostgres::Make());
  const auto replica =
      StartStrictReplica(Require(postgres->CreateDatabase()), "failover");
  ExpectUnserved(*replica, "set synchronous_standby_names");
}

}  // namespace
}  // namespace idempotency
