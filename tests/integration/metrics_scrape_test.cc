// The metrics of real servers, scraped over HTTP: every outcome moves exactly
// the series that it should.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "tests/integration/metrics_page.h"
#include "tests/integration/wire_fixture.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;

using Deltas = std::map<std::string, double>;

class MetricsScrapeTest : public WireTest {
 protected:
  static void SetUpTestSuite() {
    const auto database = TempPostgres::SharedDatabase();
    ASSERT_TRUE(database.ok()) << database.status();
    StartReplica(*database,
                 {"--admin_listen=127.0.0.1:0", "--reaper_pause=50ms"});
  }

  static MetricsPage Scrape() {
    absl::StatusOr<MetricsPage> page = MetricsPage::Get(AdminPortOf(replica()));
    EXPECT_TRUE(page.ok()) << page.status();
    return *std::move(page);
  }

  // What `act` adds to the series of `prefix`, without those it leaves alone.
  // The prefix is left out of their names.
  template <typename Act>
  static Deltas DeltasOf(const std::string& prefix, Act act) {
    const MetricsPage before = Scrape();
    act();
    const MetricsPage after = Scrape();
    Deltas deltas;
    for (const auto& [series, value] : after.Under(prefix)) {
      const double delta =
          value - (before.Has(series) ? before.Value(series) : 0);
      if (delta != 0) deltas[series.substr(prefix.size())] = delta;
    }
    return deltas;
  }

  static v1::ClaimRequest Under(const std::string& policy) {
    v1::ClaimRequest claim = ClaimFor(NewKey());
    claim.set_policy(policy);
    return claim;
  }
  static v1::ClaimRequest Resolving(v1::ClaimRequest claim) {
    claim.set_resolve_in_doubt(true);
    return claim;
  }

  // One claim of each outcome under the policy `payment`.
  static void ClaimWithEveryOutcome() {
    const v1::ClaimRequest claim = Under("payment");
    Granted(claim);
    // Another policy's name changes nothing: the record has its own.
    v1::ClaimRequest again = claim;
    again.set_policy("order");
    Granted(again);
    EXPECT_TRUE(Send(ByAnother(again))->has_in_progress());
    v1::ClaimRequest other = ByAnother(claim);
    other.set_request_hash(std::string(32, 'o'));
    EXPECT_TRUE(Send(other)->has_mismatch());
    Finalized(FinalizeOf(claim, 200, "paid"));
    Replayed(ByAnother(claim));
    Replayed(ByAnother(claim));

    const v1::ClaimRequest doubtful = Under("payment");
    Granted(doubtful);
    Send(ReleaseOf(doubtful, v1::ReleaseRequest::DISPOSITION_OUTCOME_UNKNOWN));
    InDoubtOf(ByAnother(doubtful));
    Granted(Resolving(ByAnother(doubtful)));
  }
};

TEST_F(MetricsScrapeTest,
       EveryOutcomeOfAClaimIsCountedUnderThePolicyOfTheRecord) {
  EXPECT_EQ(DeltasOf("idempotency_claims_total", ClaimWithEveryOutcome),
            (Deltas{{"{policy=\"payment\",outcome=\"claimed\"}", 3},
                    {"{policy=\"payment\",outcome=\"claimed_again\"}", 1},
                    {"{policy=\"payment\",outcome=\"replay\"}", 2},
                    {"{policy=\"payment\",outcome=\"in_progress\"}", 1},
                    {"{policy=\"payment\",outcome=\"mismatch\"}", 1},
                    {"{policy=\"payment\",outcome=\"in_doubt\"}", 1}}));
}

TEST_F(MetricsScrapeTest,
       PreventedDuplicatesAreThoseThatWouldHaveExecutedAgain) {
  EXPECT_EQ(
      DeltasOf("idempotency_duplicates_prevented_total", ClaimWithEveryOutcome),
      (Deltas{{"{policy=\"payment\"}", 4}}));
}

TEST_F(MetricsScrapeTest, TakeoversSayWhyTheAttemptWasAbandoned) {
  const Deltas deltas = DeltasOf("idempotency_takeovers_total", [] {
    ClaimWithEveryOutcome();
    const v1::ClaimRequest lapsed =
        WithLease(Under("order"), milliseconds(100));
    Granted(lapsed);
    WaitForLeaseEnd(lapsed);
    const v1::ClaimRequest successor = ByAnother(lapsed);
    Granted(successor);
    Granted(successor);  // again: no further takeover
    const v1::ClaimRequest failed = Under("order");
    Granted(failed);
    Finalized(FinalizeOf(failed, 503));
    Granted(ByAnother(failed));
  });
  EXPECT_EQ(deltas,
            (Deltas{{"{policy=\"payment\",reason=\"outcome_unknown\"}", 1},
                    {"{policy=\"order\",reason=\"lease_lapsed\"}", 1},
                    {"{policy=\"order\",reason=\"server_error\"}", 1}}));
}

TEST_F(MetricsScrapeTest, FinalizesAreCountedByWhatBecameOfTheResponse) {
  const Deltas deltas = DeltasOf("idempotency_finalizes_total", [] {
    const v1::ClaimRequest claim = Under("order");
    Granted(claim);
    Finalized(FinalizeOf(claim, 201, "x"));
    Finalized(FinalizeOf(claim, 201, "x"));  // a repeat is accepted, too
    const v1::ClaimRequest large = Under("order");
    Granted(large);
    v1::FinalizeRequest omitted = FinalizeOf(large, 200);
    omitted.mutable_response()->set_body_omitted(true);
    Finalized(omitted);
    for (const char* policy : {"order", "payment"}) {
      const v1::ClaimRequest failed = Under(policy);
      Granted(failed);
      Finalized(FinalizeOf(failed, 500));
    }
    // A refusal is none.
    EXPECT_FALSE(Send(FinalizeOf(ByAnother(claim), 201, "x")).status.ok());
  });
  EXPECT_EQ(deltas, (Deltas{{"{outcome=\"recorded\"}", 2},
                            {"{outcome=\"recorded_without_body\"}", 1},
                            {"{outcome=\"released\"}", 1},
                            {"{outcome=\"in_doubt\"}", 1}}));
}

TEST_F(MetricsScrapeTest, ReleasesAreCountedByWhatBecameOfTheClaim) {
  const Deltas deltas = DeltasOf("idempotency_releases_total", [] {
    const v1::ClaimRequest freed = Under("order");
    Granted(freed);
    Send(ReleaseOf(freed, v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED));
    const v1::ClaimRequest given_up = Under("order");
    Granted(given_up);
    Send(ReleaseOf(given_up, v1::ReleaseRequest::DISPOSITION_OUTCOME_UNKNOWN));
    Send(ReleaseOf(ClaimFor(NewKey()),
                   v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED));
  });
  EXPECT_EQ(deltas, (Deltas{{"{outcome=\"freed\"}", 1},
                            {"{outcome=\"given_up\"}", 1},
                            {"{outcome=\"nothing\"}", 1}}));
}

// Finalizes that were refused: work that was done twice.
void RefuseTwo(const v1::FinalizeRequest& below,
               const v1::FinalizeRequest& above, const Replica& replica) {
  EXPECT_TRUE(IsRefusedAs(SendTo(replica, below), "CLAIM_SUPERSEDED"));
  EXPECT_TRUE(IsRefusedAs(SendTo(replica, above), "CLAIM_SUPERSEDED"));
}

TEST_F(MetricsScrapeTest, RefusedResponsesAreConflictsByTheirStatus) {
  const v1::ClaimRequest claim = Under("order");
  Granted(claim);
  Finalized(FinalizeOf(claim, 200, "first"));
  EXPECT_EQ(DeltasOf("idempotency_conflicts",
                     [&] {
                       RefuseTwo(FinalizeOf(ByAnother(claim), 200, "second"),
                                 FinalizeOf(ByAnother(claim), 500), replica());
                     }),
            (Deltas{{"_total{status=\"below_500\"}", 1},
                    {"_total{status=\"500_and_above\"}", 1}}));
  EXPECT_EQ(DeltasOf("idempotency_errors_total",
                     [&] {
                       RefuseTwo(FinalizeOf(ByAnother(claim), 200, "third"),
                                 FinalizeOf(ByAnother(claim), 500), replica());
                     }),
            (Deltas{{"{call=\"Finalize\",reason=\"CLAIM_SUPERSEDED\"}", 2}}));
}

TEST_F(MetricsScrapeTest, ErrorsAreCountedByCallAndReason) {
  const Deltas deltas = DeltasOf("idempotency_errors_total", [] {
    Send(LookupOf(ClaimFor(NewKey())));
    Send(ClaimFor(""));
    Send(Under("a-name-that-only-this-caller-knows"));
    Send(ReleaseOf(ClaimFor(NewKey()),
                   v1::ReleaseRequest::DISPOSITION_UNSPECIFIED));
  });
  EXPECT_EQ(deltas,
            (Deltas{{"{call=\"Lookup\",reason=\"RECORD_NOT_FOUND\"}", 1},
                    {"{call=\"Claim\",reason=\"INVALID_FIELD\"}", 1},
                    {"{call=\"Claim\",reason=\"UNKNOWN_POLICY\"}", 1},
                    {"{call=\"Release\",reason=\"INVALID_FIELD\"}", 1}}));
  EXPECT_THAT(Scrape().text(),
              testing::Not(testing::HasSubstr("only-this-caller")));
}

std::string GrpcSeries(const std::string& method, const std::string& more) {
  return "{grpc_type=\"unary\",grpc_service=\"idempotency.v1."
         "IdempotencyService\",grpc_method=\"" +
         method + "\"" + more + "}";
}

TEST_F(MetricsScrapeTest, GrpcsOwnFamiliesSeeEveryCall) {
  const auto act = [] {
    const v1::ClaimRequest claim = ClaimFor(NewKey());
    Granted(claim);
    RecordOf(claim);
    Finalized(FinalizeOf(claim, 200));
    EXPECT_TRUE(IsInvalid(Send(ClaimFor("")), "key"));
    // Not UTF-8: refused before any handler of the service sees it.
    v1::LookupRequest unparsable;
    unparsable.set_scope(kScope);
    unparsable.set_key("\xff");
    EXPECT_EQ(Send(unparsable).status.error_code(), grpc::StatusCode::INTERNAL);
    Send(ReleaseOf(claim, v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED));
  };
  const auto code = [](const char* method, const std::string& name) {
    return GrpcSeries(method, ",grpc_code=\"" + name + "\"");
  };
  const Deltas started = {{GrpcSeries("Claim", ""), 2},
                          {GrpcSeries("Finalize", ""), 1},
                          {GrpcSeries("Lookup", ""), 2},
                          {GrpcSeries("Release", ""), 1}};
  EXPECT_EQ(DeltasOf("grpc_server_started_total", act), started);
  EXPECT_EQ(DeltasOf("grpc_server_msg_received_total", act), started);
  EXPECT_EQ(DeltasOf("grpc_server_handling_seconds_count", act), started);
  EXPECT_EQ(DeltasOf("grpc_server_msg_sent_total", act),
            (Deltas{{GrpcSeries("Claim", ""), 1},
                    {GrpcSeries("Finalize", ""), 1},
                    {GrpcSeries("Lookup", ""), 1}}));
  EXPECT_EQ(DeltasOf("grpc_server_handled_total", act),
            (Deltas{{code("Claim", "OK"), 1},
                    {code("Claim", "InvalidArgument"), 1},
                    {code("Finalize", "OK"), 1},
                    {code("Lookup", "OK"), 1},
                    {code("Lookup", "Internal"), 1},
                    {code("Release", "FailedPrecondition"), 1}}));
}

TEST_F(MetricsScrapeTest, WhatGrpcRefusesByItselfIsNotCounted) {
  const auto act = [] {
    const FinalizeReply reply =
        Send(FinalizeOf(ClaimFor(NewKey()), 200, std::string(5 << 20, 'x')));
    EXPECT_EQ(reply.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  };
  EXPECT_EQ(DeltasOf("grpc_server_", act), Deltas());
}

TEST_F(MetricsScrapeTest, BatchesStatementsAndWaitsAreThoseOfTheCalls) {
  constexpr int kCalls = 7;
  const auto act = [] {
    for (int i = 0; i < kCalls; ++i) Granted(ClaimFor(NewKey()));
  };
  EXPECT_EQ(DeltasOf("idempotency_batch_calls_count", act),
            (Deltas{{"{call=\"Claim\"}", kCalls}}));
  EXPECT_EQ(DeltasOf("idempotency_batch_calls_sum", act),
            (Deltas{{"{call=\"Claim\"}", kCalls}}));
  EXPECT_EQ(DeltasOf("idempotency_queue_seconds_count", act),
            (Deltas{{"", kCalls}}));
  EXPECT_EQ(
      DeltasOf("idempotency_statement_seconds_count{statement=\"insert_new\"}",
               act),
      (Deltas{{"", kCalls}}));
  EXPECT_EQ(Scrape().Sum("idempotency_statement_errors_total"), 0);
  EXPECT_EQ(Scrape().Value("idempotency_queue_calls"), 0);
}

TEST_F(MetricsScrapeTest, TheReapersWorkIsCounted) {
  AddPolicy("brief", "'100 ms', '1 s', '100 ms', 'take_over', 'release'");
  AddPolicy("brief-held", "'100 ms', '1 s', '100 ms', 'hold', 'hold'");
  const MetricsPage before = Scrape();
  Granted(Under("brief"));
  Granted(Under("brief-held"));
  const auto grown = [&](const std::string& series) {
    const MetricsPage now = Scrape();
    return now.Value(series) > before.Value(series);
  };
  WaitUntil([&] {
    return grown("idempotency_reaper_unfinished_total{policy=\"brief\"}") &&
           grown("idempotency_reaper_rows_total{result=\"deleted\"}") &&
           grown("idempotency_reaper_rows_total{result=\"parked\"}") &&
           grown("idempotency_reaper_sweeps_total{result=\"ok\"}");
  });
  const double last =
      Scrape().Value("idempotency_reaper_last_sweep_timestamp_seconds");
  EXPECT_NEAR(last, static_cast<double>(std::time(nullptr)), 10);
  EXPECT_EQ(
      Scrape().Value("idempotency_reaper_sweeps_total{result=\"failed\"}"), 0);
}

TEST_F(MetricsScrapeTest, TheServerSaysThatItServesAndWhatItIs) {
  const MetricsPage page = Scrape();
  EXPECT_EQ(page.Value("idempotency_serving"), 1);
  EXPECT_EQ(page.Sum("idempotency_build_info{version=\""), 1);
  EXPECT_GT(page.Value("process_resident_memory_bytes"), 1e6);
}

}  // namespace
}  // namespace idempotency
