// What a scrape shows of the counters.
#include "server/admin/collector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <ctime>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace idempotency {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class CollectorTest : public ::testing::Test {
 protected:
  CollectorTest() {
    FleetRules rules;
    for (const char* name : {"default", "payment"}) {
      rules.policies[name] = {.name = name};
    }
    rules_.Set(std::move(rules));
  }

  std::vector<prometheus::MetricFamily> Collect() const {
    return collector_.Collect();
  }
  std::string Text() const {
    return prometheus::TextSerializer().Serialize(Collect());
  }

  Metrics metrics_;
  FleetRulesCache rules_;
  std::size_t queued_ = 0;
  bool serving_ = false;
  Collector collector_{{.metrics = metrics_,
                        .rules = rules_,
                        .queued_calls = [this] { return queued_; },
                        .waiting_calls = [] { return std::size_t{7}; },
                        .serving = [this] { return serving_; }}};
};

TEST_F(CollectorTest, EveryFamilyHasANameAHelpAndSeriesFromTheStart) {
  std::set<std::string> names;
  for (const prometheus::MetricFamily& family : Collect()) {
    EXPECT_TRUE(names.insert(family.name).second) << family.name;
    EXPECT_FALSE(family.help.empty()) << family.name;
    // Statements appear with the first connection.
    if (family.name.find("_statement_") != std::string::npos) continue;
    EXPECT_FALSE(family.metric.empty()) << family.name;
  }
}

TEST_F(CollectorTest, NoSeriesIsThereTwice) {
  for (const prometheus::MetricFamily& family : Collect()) {
    std::set<std::vector<prometheus::ClientMetric::Label>> seen;
    for (const prometheus::ClientMetric& metric : family.metric) {
      EXPECT_TRUE(seen.insert(metric.label).second) << family.name;
    }
  }
}

TEST_F(CollectorTest, CodesHaveTheNamesThatDashboardsRead) {
  Count(metrics_.Of(CallKind::kLookup).handled[5]);
  EXPECT_THAT(Text(),
              HasSubstr("grpc_server_handled_total{grpc_type=\"unary\","
                        "grpc_service=\"idempotency.v1.IdempotencyService\","
                        "grpc_method=\"Lookup\",grpc_code=\"NotFound\"} 1\n"));
}

TEST_F(CollectorTest, BucketsHoldThoseBelowThemToo) {
  for (const int milliseconds : {0, 1, 1, 30, 60'000}) {
    ObserveTime(metrics_.queue_time, std::chrono::milliseconds(milliseconds));
  }
  const std::string text = Text();
  const std::vector<std::pair<std::string, int>> buckets = {
      {"0.0001", 1}, {"0.001", 3}, {"0.025", 3},
      {"0.05", 4},   {"10", 4},    {"+Inf", 5}};
  for (const auto& [bound, count] : buckets) {
    EXPECT_THAT(text, HasSubstr("idempotency_queue_seconds_bucket{le=\"" +
                                bound + "\"} " + std::to_string(count) + "\n"));
  }
  EXPECT_THAT(text, HasSubstr("idempotency_queue_seconds_count 5\n"));
  EXPECT_THAT(text, HasSubstr("idempotency_queue_seconds_sum 60.032"));
}

TEST_F(CollectorTest, PoliciesThatAreGoneKeepTheirSeries) {
  Count(metrics_.policies.At("payment").claims[ClaimResult::kReplay]);
  ASSERT_THAT(Text(), HasSubstr("policy=\"payment\""));
  FleetRules rules;
  rules.policies["default"] = {.name = "default"};
  rules_.Set(std::move(rules));
  EXPECT_THAT(Text(), HasSubstr("idempotency_claims_total{policy=\"payment\","
                                "outcome=\"replay\"} 1\n"));
}

TEST_F(CollectorTest, PoliciesBeyondTheBoundShareOneLabel) {
  FleetRules rules;
  for (int i = 0; i < 300; ++i) {
    const std::string name = "policy-" + std::to_string(1000 + i);
    rules.policies[name] = {.name = name};
  }
  rules_.Set(std::move(rules));
  Collect();
  Count(metrics_.policies.At("policy-1299").claims[ClaimResult::kClaimed]);
  std::set<std::string> policies;
  for (const prometheus::MetricFamily& family : Collect()) {
    for (const prometheus::ClientMetric& metric : family.metric) {
      for (const auto& label : metric.label) {
        if (label.name == "policy") policies.insert(label.value);
      }
    }
  }
  EXPECT_EQ(policies.size(), Metrics::kPoliciesMax + 1);
  EXPECT_TRUE(policies.contains("other"));
  EXPECT_THAT(Text(), HasSubstr("idempotency_claims_total{policy=\"other\","
                                "outcome=\"claimed\"} 1\n"));
}

TEST_F(CollectorTest, OddNamesOfPoliciesAreEscaped) {
  FleetRules rules;
  rules.policies["a\"b\\c"] = {};
  rules_.Set(std::move(rules));
  EXPECT_THAT(Text(), HasSubstr("{policy=\"a\\\"b\\\\c\"}"));
}

TEST_F(CollectorTest, WhatWasToldNotToExecuteIsADuplicatePrevented) {
  PolicyMetrics& counts = metrics_.policies.At("default");
  std::uint64_t by = 1;
  for (std::size_t i = 0; i < counts.claims.kSize; ++i, by *= 10) {
    Count(counts.claims.counters[i], by);
  }
  // Replays, in progress and in doubt; neither grants nor mismatches.
  EXPECT_THAT(Text(), HasSubstr("idempotency_duplicates_prevented_total{"
                                "policy=\"default\"} 101100\n"));
}

TEST_F(CollectorTest, GaugesSayWhatIsNow) {
  queued_ = 7;
  EXPECT_THAT(Text(), HasSubstr("idempotency_queue_calls 7\n"));
  EXPECT_THAT(Text(), HasSubstr("idempotency_serving 0\n"));
  serving_ = true;
  EXPECT_THAT(Text(), HasSubstr("idempotency_serving 1\n"));
}

TEST_F(CollectorTest, BeforeTheRulesAreKnownThereAreNoPolicies) {
  const FleetRulesCache unread;
  const Collector collector({.metrics = metrics_,
                             .rules = unread,
                             .queued_calls = [] { return std::size_t{0}; },
                             .waiting_calls = [] { return std::size_t{0}; },
                             .serving = [] { return false; }});
  EXPECT_THAT(prometheus::TextSerializer().Serialize(collector.Collect()),
              Not(HasSubstr("policy=")));
}

TEST_F(CollectorTest, TheProcessHasSensibleFigures) {
  std::map<std::string, double> values;
  for (const prometheus::MetricFamily& family : Collect()) {
    if (!family.name.starts_with("process_")) continue;
    const prometheus::ClientMetric& metric = family.metric.front();
    values[family.name] = family.type == prometheus::MetricType::Counter
                              ? metric.counter.value
                              : metric.gauge.value;
  }
  ASSERT_EQ(values.size(), 6u);
  EXPECT_GT(values["process_cpu_seconds_total"], 0);
  EXPECT_GT(values["process_resident_memory_bytes"], 1e6);
  EXPECT_GT(values["process_virtual_memory_bytes"],
            values["process_resident_memory_bytes"]);
  EXPECT_GE(values["process_open_fds"], 1);
  EXPECT_LE(values["process_open_fds"], values["process_max_fds"]);
  const double now = static_cast<double>(std::time(nullptr));
  EXPECT_LE(values["process_start_time_seconds"], now + 2);
  EXPECT_GT(values["process_start_time_seconds"], now - 3600);
}

}  // namespace
}  // namespace idempotency
