// Replays that a replica gives from memory, beside a second one on the same
// database: they cost no statement, outlive the database's absence, and end
// with their record.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "tests/integration/fault_calls.h"
#include "tests/integration/metrics_page.h"
#include "tests/support/tcp_gate.h"
#include "tests/support/temp_postgres.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

class CachedReplaysTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    database_ = Require(TempPostgres::SharedDatabase());
    writer_ = StartReplica(database_);
    gate_ = Require(TcpGate::Make(Require(TempPostgres::Shared())->port()));
    reader_ = StartReplica(ThroughPort(database_, gate_->port()),
                           {"--admin_listen=127.0.0.1:0",
                            "--store_patience=100ms", "--reaper_pause=50ms"});
  }
  static void TearDownTestSuite() {
    reader_.reset();
    writer_.reset();
    gate_.reset();
  }

  static std::string Query(const std::string& sql) {
    return Require(TempPostgres::RunAt(database_, sql));
  }

  // A record that was finalized at the writer, and seen by nobody since.
  static v1::ClaimRequest FinalizedElsewhere(const std::string& policy = "") {
    const v1::ClaimRequest claim = ClaimOf(RandomKey(), policy);
    EXPECT_EQ(Decided(Send(writer_->stub(), claim)), "Claimed");
    EXPECT_EQ(Decided(Send(writer_->stub(),
                           FinalizeOf(claim, 201, "body of " + claim.key()))),
              "RESULT_RECORDED");
    return claim;
  }

  static absl::StatusOr<v1::ClaimResponse> AskReader(
      const v1::ClaimRequest& claim) {
    return Send(reader_->stub(), ByAnother(claim));
  }

  static MetricsPage Metrics() {
    return Require(MetricsPage::Get(AdminPortOf(*reader_)));
  }
  // Statements that a Claim may send.
  static double Statements(const MetricsPage& page) {
    double sum = 0;
    for (const char* name : {"insert_new", "read_records", "replace"}) {
      sum += page.Sum(std::string("idempotency_statement_seconds_count"
                                  "{statement=\"") +
                      name + "\"}");
    }
    return sum;
  }

  static std::string database_;
  static std::unique_ptr<Replica> writer_;
  static std::unique_ptr<TcpGate> gate_;
  static std::unique_ptr<Replica> reader_;
};

std::string CachedReplaysTest::database_;
std::unique_ptr<Replica> CachedReplaysTest::writer_;
std::unique_ptr<TcpGate> CachedReplaysTest::gate_;
std::unique_ptr<Replica> CachedReplaysTest::reader_;

TEST_F(CachedReplaysTest, AreTheFirstOneByteForByteWithoutAStatement) {
  constexpr int kRepeats = 50;
  const v1::ClaimRequest claim = FinalizedElsewhere();
  const MetricsPage at_first = Metrics();
  const auto first = AskReader(claim);
  ASSERT_EQ(Decided(first), "Replay");
  EXPECT_EQ(first->replay().response().body(), "body of " + claim.key());
  const MetricsPage before = Metrics();
  EXPECT_GT(Statements(before), Statements(at_first));
  for (int i = 0; i < kRepeats; ++i) {
    const auto again = AskReader(claim);
    ASSERT_EQ(Decided(again), "Replay");
    ASSERT_EQ(again->SerializeAsString(), first->SerializeAsString());
  }
  // Its own token's repeat, a renewal, and another request are answered alike.
  EXPECT_EQ(Decided(Send(reader_->stub(), claim)), "Replay");
  v1::ClaimRequest renewal = claim;
  renewal.set_renew_fencing_token(1);
  EXPECT_EQ(Decided(Send(reader_->stub(), renewal)), "Replay");
  v1::ClaimRequest other = ByAnother(claim);
  other.set_request_hash(std::string(32, 'o'));
  const auto mismatch = Send(reader_->stub(), other);
  ASSERT_EQ(Decided(mismatch), "Mismatch");
  EXPECT_EQ(mismatch->SerializeAsString(),
            Send(writer_->stub(), other)->SerializeAsString());

  const MetricsPage after = Metrics();
  EXPECT_EQ(Statements(after), Statements(before));
  const auto grown = [&](const std::string& series) {
    return after.Value(series) - before.Value(series);
  };
  EXPECT_EQ(grown("idempotency_replay_cache_hits_total"), kRepeats + 3);
  EXPECT_EQ(grown("idempotency_claims_total{policy=\"default\",outcome="
                  "\"replay\"}"),
            kRepeats + 2);
  EXPECT_GE(after.Value("idempotency_replay_cache_entries"), 1);
  EXPECT_GT(after.Value("idempotency_replay_cache_bytes"), 200);
}

TEST_F(CachedReplaysTest, AreNeverOfWhatIsNotFinal) {
  // Seen running here, then finalized elsewhere.
  const v1::ClaimRequest claim = ClaimOf(RandomKey());
  ASSERT_EQ(Decided(Send(writer_->stub(), claim)), "Claimed");
  EXPECT_EQ(Decided(AskReader(claim)), "InProgress");
  EXPECT_EQ(Decided(Send(writer_->stub(), FinalizeOf(claim, 200, "x"))),
            "RESULT_RECORDED");
  EXPECT_EQ(Decided(AskReader(claim)), "Replay");
  // Seen running here, then released elsewhere.
  const v1::ClaimRequest released = ClaimOf(RandomKey());
  ASSERT_EQ(Decided(Send(writer_->stub(), released)), "Claimed");
  EXPECT_EQ(Decided(AskReader(released)), "InProgress");
  EXPECT_EQ(
      Decided(Send(
          writer_->stub(),
          ReleaseOf(released, v1::ReleaseRequest::DISPOSITION_NEVER_EXECUTED))),
      "released");
  EXPECT_EQ(Decided(AskReader(released)), "Claimed");
}

TEST_F(CachedReplaysTest, EndWithTheirRecord) {
  Query(
      "INSERT INTO ttl_policies (name, lease, retention) VALUES ('brief', "
      "'100 ms', '700 ms')");
  const v1::ClaimRequest claim = FinalizedElsewhere("brief");
  int replays = 0;
  const steady_clock::time_point end = steady_clock::now() + seconds(10);
  for (;;) {
    ASSERT_LT(steady_clock::now(), end);
    // No row: swept, and so over too.
    const bool over =
        Query("SELECT count(*) FROM idempotency_records WHERE key = '" +
              claim.key() + "' AND expires_at > clock_timestamp()") == "0";
    const auto answer = AskReader(claim);
    if (Decided(answer) == "Claimed") {
      EXPECT_EQ(answer->claimed().attempt(), 1);
      break;
    }
    ASSERT_EQ(Decided(answer), "Replay");
    ASSERT_FALSE(over) << "replayed after its end";
    ++replays;
  }
  EXPECT_GT(replays, 1);
}

TEST_F(CachedReplaysTest, AreGivenWhileTheDatabaseIsAway) {
  const v1::ClaimRequest claim = FinalizedElsewhere();
  const v1::ClaimRequest unseen = FinalizedElsewhere();
  ASSERT_EQ(Decided(AskReader(claim)), "Replay");
  gate_->Refuse();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Decided(AskReader(claim)), "Replay");
    const auto unserved =
        Send(reader_->stub(), ByAnother(unseen), milliseconds(500));
    EXPECT_TRUE(IsUnserved(unserved.status())) << Decided(unserved);
  }
  gate_->Open();
  EXPECT_EQ(Decided(ClaimPatiently(reader_->stub(), ByAnother(unseen))),
            "Replay");
}

}  // namespace
}  // namespace idempotency
