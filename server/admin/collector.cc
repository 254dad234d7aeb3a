#include "server/admin/collector.h"

#include <array>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "server/admin/families.h"
#include "server/admin/process_metrics.h"
#include "server/core/errors.h"

namespace idempotency {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

constexpr double kNanosecond = 1e-9;
constexpr double kOne = 1;

// The names that labels show, in the order of each enum.
constexpr std::array<std::string_view, 17> kCodeNames = {"OK",
                                                         "Canceled",
                                                         "Unknown",
                                                         "InvalidArgument",
                                                         "DeadlineExceeded",
                                                         "NotFound",
                                                         "AlreadyExists",
                                                         "PermissionDenied",
                                                         "ResourceExhausted",
                                                         "FailedPrecondition",
                                                         "Aborted",
                                                         "OutOfRange",
                                                         "Unimplemented",
                                                         "Internal",
                                                         "Unavailable",
                                                         "DataLoss",
                                                         "Unauthenticated"};
constexpr std::array<std::string_view, 6> kClaimResultNames = {
    "claimed",     "claimed_again", "replay",
    "in_progress", "mismatch",      "in_doubt"};
constexpr std::array<std::string_view, 3> kAbandonReasonNames = {
    "lease_lapsed", "outcome_unknown", "server_error"};
constexpr std::array<std::string_view, 4> kFinalizeResultNames = {
    "recorded", "recorded_without_body", "released", "in_doubt"};
constexpr std::array<std::string_view, 3> kReleaseResultNames = {
    "freed", "given_up", "nothing"};
constexpr std::array<std::string_view, 4> kSetbackNames = {
    "unknown", "contended", "unavailable", "rejected"};

// Adds a counter for each value of the enum, with its name as label `name`.
template <typename Counters, std::size_t kNames>
void AddEach(const Counters& counters,
             const std::array<std::string_view, kNames>& names,
             const std::string& label, const Labels& further,
             FamilyBuilder& family) {
  static_assert(Counters::kSize == kNames);
  for (std::size_t i = 0; i < kNames; ++i) {
    Labels labels = further;
    labels.push_back(LabelOf(label, names[i]));
    family.AddCounter(std::move(labels),
                      static_cast<double>(counters.counters[i]));
  }
}

// One scrape.
class Scrape {
 public:
  explicit Scrape(const MetricsSource& source)
      : source_(source), metrics_(source.metrics) {}

  std::vector<MetricFamily> Run() {
    LearnPolicies();
    AddGrpcCalls();
    AddStreams();
    AddErrors();
    AddClaims();
    AddOtherCalls();
    AddConflicts();
    AddQueue();
    AddBatches();
    AddReplayCache();
    AddStatements();
    AddReaper();
    AddServer();
    return std::move(families_);
  }

 private:
  // So that each policy has its series before its first claim.
  void LearnPolicies() {
    const std::shared_ptr<const FleetRules> rules = source_.rules.Get();
    if (rules == nullptr) return;
    for (const auto& [name, policy] : rules->policies) {
      metrics_.policies.At(name);
    }
  }

  void Add(FamilyBuilder&& family) {
    families_.push_back(std::move(family).Finish());
  }

  void AddSingle(const char* name, const char* help, const Counter& counter) {
    FamilyBuilder family(name, help, MetricType::Counter);
    family.AddCounter({}, static_cast<double>(counter));
    Add(std::move(family));
  }

  void AddGauge(const char* name, const char* help, double value) {
    FamilyBuilder family(name, help, MetricType::Gauge);
    family.AddGauge({}, value);
    Add(std::move(family));
  }

  static Labels GrpcLabels(std::string_view type, std::string_view method) {
    return {LabelOf("grpc_type", type),
            LabelOf("grpc_service", "idempotency.v1.IdempotencyService"),
            LabelOf("grpc_method", method)};
  }

  static void AddHandled(const std::array<Counter, 17>& by_code,
                         const Labels& labels, FamilyBuilder& handled) {
    for (std::size_t code = 0; code < kCodeNames.size(); ++code) {
      Labels with_code = labels;
      with_code.push_back(LabelOf("grpc_code", kCodeNames[code]));
      handled.AddCounter(std::move(with_code),
                         static_cast<double>(by_code[code]));
    }
  }

  // The names and labels that gRPC's dashboards know.
  void AddGrpcCalls() {
    FamilyBuilder started("grpc_server_started_total",
                          "Total number of RPCs started on the server.",
                          MetricType::Counter);
    FamilyBuilder handled("grpc_server_handled_total",
                          "Total number of RPCs completed on the server, "
                          "regardless of success or failure.",
                          MetricType::Counter);
    FamilyBuilder received("grpc_server_msg_received_total",
                           "Total number of RPC stream messages received on "
                           "the server.",
                           MetricType::Counter);
    FamilyBuilder sent("grpc_server_msg_sent_total",
                       "Total number of gRPC stream messages sent by the "
                       "server.",
                       MetricType::Counter);
    FamilyBuilder seconds("grpc_server_handling_seconds",
                          "Histogram of response latency (seconds) of gRPC "
                          "that had been application-level handled by the "
                          "server.",
                          MetricType::Histogram);
    for (std::size_t i = 0; i < kCallKinds; ++i) {
      const CallMetrics& call = metrics_.calls[i];
      const Labels labels = GrpcLabels("unary", kCallNames[i]);
      // A unary call brings one message, and is answered by one if all is OK.
      started.AddCounter(labels, static_cast<double>(call.started));
      received.AddCounter(labels, static_cast<double>(call.started));
      sent.AddCounter(labels, static_cast<double>(call.handled[0]));
      AddHandled(call.handled, labels, handled);
      seconds.AddHistogram(labels, call.handling_time, kNanosecond);
    }
    const StreamMetrics& bulk = metrics_.bulk;
    const Labels labels = GrpcLabels("bidi_stream", "Bulk");
    started.AddCounter(labels, static_cast<double>(bulk.started));
    received.AddCounter(labels, static_cast<double>(bulk.received));
    sent.AddCounter(labels, static_cast<double>(bulk.sent));
    AddHandled(bulk.handled, labels, handled);
    Add(std::move(started));
    Add(std::move(handled));
    Add(std::move(received));
    Add(std::move(sent));
    Add(std::move(seconds));
  }

  void AddStreams() {
    AddGauge("idempotency_bulk_streams", "Streams of Bulk that are open.",
             static_cast<double>(metrics_.bulk.open));
    AddGauge("idempotency_reply_bytes",
             "Memory of answers that their callers have not read yet: recorded "
             "responses, and everything that streams of Bulk are to send.",
             static_cast<double>(metrics_.reply_bytes));
  }

  void AddErrors() {
    FamilyBuilder errors("idempotency_errors_total",
                         "Errors that calls were answered, by the reason in "
                         "their ErrorInfo.",
                         MetricType::Counter);
    for (std::size_t i = 0; i < kCallKinds; ++i) {
      const auto& refused = metrics_.calls[i].refused;
      for (std::size_t reason = 0; reason < refused.kSize; ++reason) {
        errors.AddCounter(
            {LabelOf("call", kCallNames[i]),
             LabelOf("reason", ReasonName(static_cast<Reason>(reason)))},
            static_cast<double>(refused.counters[reason]));
      }
    }
    Add(std::move(errors));
  }

  void AddClaims() {
    FamilyBuilder claims("idempotency_claims_total",
                         "Claims that were decided, by the policy of their "
                         "record and by outcome.",
                         MetricType::Counter);
    FamilyBuilder takeovers("idempotency_takeovers_total",
                            "Claims that took an abandoned attempt over, by "
                            "why it was abandoned.",
                            MetricType::Counter);
    FamilyBuilder prevented("idempotency_duplicates_prevented_total",
                            "Claims told not to execute, because the work was "
                            "done, under way or in doubt.",
                            MetricType::Counter);
    metrics_.policies.ForEach([&](std::string_view policy,
                                  const PolicyMetrics& counts) {
      const Labels labels = {LabelOf("policy", policy)};
      AddEach(counts.claims, kClaimResultNames, "outcome", labels, claims);
      AddEach(counts.takeovers, kAbandonReasonNames, "reason", labels,
              takeovers);
      prevented.AddCounter(
          labels, static_cast<double>(counts.claims[ClaimResult::kReplay] +
                                      counts.claims[ClaimResult::kInProgress] +
                                      counts.claims[ClaimResult::kInDoubt]));
    });
    Add(std::move(claims));
    Add(std::move(takeovers));
    Add(std::move(prevented));
  }

  void AddOtherCalls() {
    FamilyBuilder finalizes("idempotency_finalizes_total",
                            "Finalizes that were accepted, by what became of "
                            "the response.",
                            MetricType::Counter);
    AddEach(metrics_.finalizes, kFinalizeResultNames, "outcome", {}, finalizes);
    Add(std::move(finalizes));
    FamilyBuilder releases("idempotency_releases_total",
                           "Releases that were accepted, by what became of the "
                           "claim.",
                           MetricType::Counter);
    AddEach(metrics_.releases, kReleaseResultNames, "outcome", {}, releases);
    Add(std::move(releases));
  }

  void AddConflicts() {
    FamilyBuilder conflicts("idempotency_conflicts_total",
                            "Responses that were refused as evidence of a "
                            "second execution, by their status.",
                            MetricType::Counter);
    conflicts.AddCounter({LabelOf("status", "below_500")},
                         static_cast<double>(metrics_.conflicts));
    conflicts.AddCounter({LabelOf("status", "500_and_above")},
                         static_cast<double>(metrics_.conflicts_server_error));
    Add(std::move(conflicts));
    AddSingle("idempotency_conflicts_not_kept_total",
              "Of those, responses beyond the number of rows that are kept of "
              "a record.",
              metrics_.conflicts_not_kept);
  }

  void AddQueue() {
    AddGauge("idempotency_queue_calls", "Calls that wait for a lane.",
             static_cast<double>(source_.queued_calls()));
    AddGauge("idempotency_waiting_calls",
             "Claims that wait for another owner's end.",
             static_cast<double>(source_.waiting_calls()));
    FamilyBuilder seconds("idempotency_queue_seconds",
                          "How long calls waited for a lane until they first "
                          "went to the database.",
                          MetricType::Histogram);
    seconds.AddHistogram({}, metrics_.queue_time, kNanosecond);
    Add(std::move(seconds));
    FamilyBuilder dropped("idempotency_dropped_calls_total",
                          "Calls that were answered without the database, "
                          "by why.",
                          MetricType::Counter);
    const auto add = [&](std::string_view reason, const Counter& count) {
      dropped.AddCounter({LabelOf("reason", reason)},
                         static_cast<double>(count));
    };
    add("overloaded", metrics_.overloaded);
    add("expired", metrics_.expired_in_queue);
    add("cancelled", metrics_.cancelled_in_queue);
    Add(std::move(dropped));
  }

  void AddBatches() {
    FamilyBuilder batches("idempotency_batch_calls",
                          "How many calls went to the database together.",
                          MetricType::Histogram);
    for (std::size_t i = 0; i < kCallKinds; ++i) {
      batches.AddHistogram({LabelOf("call", kCallNames[i])},
                           metrics_.batches[i], kOne);
    }
    Add(std::move(batches));
    AddSingle(
        "idempotency_followers_answered_total",
        "Claims and lookups that were answered from the outcome of another "
        "one of the same key.",
        metrics_.followers_answered);
    FamilyBuilder setbacks("idempotency_setbacks_total",
                           "Calls that a batch did not settle and that were "
                           "tried again or refused, by why.",
                           MetricType::Counter);
    AddEach(metrics_.setbacks, kSetbackNames, "class", {}, setbacks);
    Add(std::move(setbacks));
  }

  void AddReplayCache() {
    AddSingle("idempotency_replay_cache_hits_total",
              "Claims that were answered from the cache of replays.",
              metrics_.replay_cache_hits);
    AddGauge("idempotency_replay_cache_entries",
             "Records in the cache of replays.",
             static_cast<double>(metrics_.replay_cache_entries));
    AddGauge("idempotency_replay_cache_bytes",
             "Memory that the cache of replays holds.",
             static_cast<double>(metrics_.replay_cache_bytes));
  }

  void AddStatements() {
    FamilyBuilder seconds("idempotency_statement_seconds",
                          "Time from sending a statement to the database's "
                          "answer, or its failure.",
                          MetricType::Histogram);
    FamilyBuilder errors("idempotency_statement_errors_total",
                         "Statements that failed, by what is known of their "
                         "effect.",
                         MetricType::Counter);
    metrics_.statements.ForEach(
        [&](std::string_view statement, const StatementMetrics& counts) {
          const Labels labels = {LabelOf("statement", statement)};
          seconds.AddHistogram(labels, counts.time, kNanosecond);
          AddEach(counts.errors, kSetbackNames, "class", labels, errors);
        });
    Add(std::move(seconds));
    Add(std::move(errors));
  }

  void AddReaper() {
    FamilyBuilder rows("idempotency_reaper_rows_total",
                       "Rows that the reaper dealt with: records deleted, held "
                       "records parked, evidence deleted.",
                       MetricType::Counter);
    const auto add_rows = [&](std::string_view what, const Counter& count) {
      rows.AddCounter({LabelOf("result", what)}, static_cast<double>(count));
    };
    add_rows("deleted", metrics_.reaped);
    add_rows("parked", metrics_.parked);
    add_rows("conflict_deleted", metrics_.conflicts_reaped);
    Add(std::move(rows));
    FamilyBuilder unfinished("idempotency_reaper_unfinished_total",
                             "Of the deleted records, those whose attempt "
                             "never ended, by policy.",
                             MetricType::Counter);
    metrics_.policies.ForEach(
        [&](std::string_view policy, const PolicyMetrics& counts) {
          unfinished.AddCounter({LabelOf("policy", policy)},
                                static_cast<double>(counts.unfinished_reaped));
        });
    Add(std::move(unfinished));
    FamilyBuilder sweeps("idempotency_reaper_sweeps_total",
                         "Sweeps of the reaper, by how they went.",
                         MetricType::Counter);
    sweeps.AddCounter({LabelOf("result", "ok")},
                      static_cast<double>(metrics_.sweeps));
    sweeps.AddCounter({LabelOf("result", "failed")},
                      static_cast<double>(metrics_.sweeps_failed));
    Add(std::move(sweeps));
    AddGauge("idempotency_reaper_last_sweep_timestamp_seconds",
             "When the reaper last succeeded, in seconds since the unix epoch; "
             "0: not yet.",
             static_cast<double>(metrics_.last_sweep_unix_ms) / 1000);
  }

  void AddServer() {
    AddGauge("idempotency_serving",
             "1 while grpc.health.v1 says SERVING, else 0.",
             source_.serving() ? 1 : 0);
    FamilyBuilder build("idempotency_build_info", "The version that runs.",
                        MetricType::Gauge);
    build.AddGauge({LabelOf("version", IDEMPOTENCY_VERSION)}, 1);
    Add(std::move(build));
    std::vector<MetricFamily> process = CollectProcessMetrics();
    families_.insert(families_.end(), std::make_move_iterator(process.begin()),
                     std::make_move_iterator(process.end()));
  }

  const MetricsSource& source_;
  Metrics& metrics_;
  std::vector<MetricFamily> families_;
};

}  // namespace

Collector::Collector(MetricsSource source) : source_(std::move(source)) {}

std::vector<MetricFamily> Collector::Collect() const {
  return Scrape(source_).Run();
}

}  // namespace idempotency
