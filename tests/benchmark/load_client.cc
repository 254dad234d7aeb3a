// Load generator of the benchmark: raw HTTP/2, one thread, a closed or an open
// loop.
// Prints one line of JSON; exits with 1 if any answer was wrong.
#include <unistd.h>

#include <charconv>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/benchmark/latency_json.h"
#include "tests/benchmark/load_generator.h"
#include "tests/benchmark/workload.h"

ABSL_FLAG(std::string, target, "127.0.0.1:50051",
          "The server, as IPv4 address and port.");
ABSL_FLAG(
    std::string, mode, "pairs",
    "pairs: Claim, then Finalize, of fresh keys. claim: Claims of fresh "
    "keys. replay: Claims of finalized keys. crowd: --in_flight Claims of "
    "one key at once. echo: the calls of pairs, against the echo "
    "server.");
ABSL_FLAG(std::string, scope, "benchmark", "The scope of every key.");
ABSL_FLAG(int, in_flight, 64,
          "Calls in flight, over all connections; with --rate, at most.");
ABSL_FLAG(double, rate, 0,
          "Open loop: so many fresh keys (or replays) arrive each second, and "
          "latency counts from when a call was to begin. 0: a closed loop.");
ABSL_FLAG(int, deadline_ms, 20'000, "The deadline of each call.");
ABSL_FLAG(bool, idempotency_keys, false,
          "Each call has its key as metadata too, for a sidecar.");
ABSL_FLAG(bool, refusals_allowed, false,
          "The server may refuse calls as UNAVAILABLE or DEADLINE_EXCEEDED; "
          "they are counted by themselves.");
ABSL_FLAG(int, body_bytes, static_cast<int>(idempotency::benchmark::kBodyBytes),
          "Bytes of the response's body, at least 100.");
ABSL_FLAG(int, connections, 4, "HTTP/2 connections.");
ABSL_FLAG(double, warm_up, 0.5, "Seconds before the measured time.");
ABSL_FLAG(double, seconds, 2, "Seconds that are measured.");
ABSL_FLAG(int, records, 1000, "With replay: how many keys are finalized.");

namespace idempotency::benchmark {
namespace {

nlohmann::json ReportJson(const LoadReport& report, const std::string& mode,
                          const LoadOptions& options,
                          const LoadGenerator& generator) {
  const uint64_t calls = report.claims.count() + report.finalizes.count() +
                         report.refusals.count();
  nlohmann::json json = {
      {"mode", mode},
      {"in_flight", options.in_flight},
      {"connections", options.connections},
      {"seconds", report.seconds},
      {"calls", calls},
      {"calls_per_second", static_cast<double>(calls) / report.seconds},
      {"client_cpu_seconds", report.client_cpu_seconds},
      {"claim_ms", LatencyJson(report.claims)},
      {"checked", generator.checked_calls()},
      {"errors", generator.wrong_calls()}};
  if (options.rate > 0) json["rate"] = options.rate;
  if (options.refusals_allowed) {
    json["refused"] = report.refusals.count();
    json["late"] = report.late;  // of those
    json["refused_ms"] = LatencyJson(report.refusals);
  }
  if (mode == "pairs" || mode == "echo") {
    json["pairs_per_second"] =
        static_cast<double>(report.pairs) / report.seconds;
    json["finalize_ms"] = LatencyJson(report.finalizes);
  }
  return json;
}

absl::Status ParseTarget(const std::string& target, LoadOptions* options) {
  const size_t colon = target.rfind(':');
  if (colon != std::string::npos) {
    options->host = target.substr(0, colon);
    const char* end = target.data() + target.size();
    auto [rest, error] =
        std::from_chars(target.data() + colon + 1, end, options->port);
    if (error == std::errc() && rest == end) return absl::OkStatus();
  }
  return absl::InvalidArgumentError("--target must be address:port");
}

absl::Status ReadOptions(LoadOptions* options) {
  const int in_flight = absl::GetFlag(FLAGS_in_flight);
  const int connections = absl::GetFlag(FLAGS_connections);
  if (in_flight < 1 || connections < 1 || absl::GetFlag(FLAGS_records) < 1) {
    return absl::InvalidArgumentError(
        "--in_flight, --connections and --records must be at least 1");
  }
  const int body_bytes = absl::GetFlag(FLAGS_body_bytes);
  options->deadline_ms = absl::GetFlag(FLAGS_deadline_ms);
  options->rate = absl::GetFlag(FLAGS_rate);
  // gRPC writes a timeout with at most eight digits.
  if (options->deadline_ms < 1 || options->deadline_ms > 99'999'999 ||
      body_bytes < 100 || options->rate < 0) {
    return absl::InvalidArgumentError(
        "--deadline_ms, --body_bytes or --rate is out of range");
  }
  options->body_bytes = static_cast<size_t>(body_bytes);
  options->idempotency_keys = absl::GetFlag(FLAGS_idempotency_keys);
  options->refusals_allowed = absl::GetFlag(FLAGS_refusals_allowed);
  options->in_flight = static_cast<size_t>(in_flight);
  options->connections = static_cast<size_t>(connections);
  options->scope = absl::GetFlag(FLAGS_scope);
  options->warm_up_seconds = absl::GetFlag(FLAGS_warm_up);
  options->seconds = absl::GetFlag(FLAGS_seconds);
  return ParseTarget(absl::GetFlag(FLAGS_target), options);
}

// All calls in flight at once ask for one key, and exactly one may get it.
absl::Status MeasureCrowd(LoadGenerator& generator, size_t claims,
                          LoadReport* report) {
  // Connections are made and threads are awake by then.
  const std::vector<RecordName> first = RandomRecords(16);
  absl::Status status = generator.RunToEnd(*MakeRecordingWorkload(first));
  if (!status.ok()) return status;
  const std::unique_ptr<CrowdWorkload> crowd = MakeCrowdWorkload(claims);
  std::cerr << "measuring" << std::endl;
  // Whoever counts what the crowd costs looks at the counters now.
  absl::SleepFor(absl::Milliseconds(100));
  status = generator.RunToEnd(*crowd, report);
  std::cerr << "measured" << std::endl;
  if (status.ok() && generator.wrong_calls() == 0 &&
      (crowd->claimed() != 1 || crowd->in_progress() != claims - 1)) {
    return absl::InternalError(
        absl::StrCat(crowd->claimed(), " of the crowd were Claimed and ",
                     crowd->in_progress(), " InProgress"));
  }
  return status;
}

absl::Status Measure(const std::string& mode, const LoadOptions& options,
                     LoadGenerator& generator, LoadReport* report) {
  if (mode == "pairs" || mode == "echo") {
    return generator.RunMeasured(*MakePairWorkload(), report);
  }
  if (mode == "claim") {
    return generator.RunMeasured(*MakeClaimWorkload(), report);
  }
  if (mode == "replay") {
    const std::vector<RecordName> records =
        RandomRecords(static_cast<size_t>(absl::GetFlag(FLAGS_records)));
    absl::Status status = generator.RunToEnd(*MakeRecordingWorkload(records));
    if (!status.ok()) return status;
    return generator.RunMeasured(*MakeReplayWorkload(records), report);
  }
  if (mode == "crowd" && options.rate == 0) {
    return MeasureCrowd(generator, options.in_flight, report);
  }
  return absl::InvalidArgumentError(
      "--mode must be pairs, claim, replay, crowd (without --rate) or echo");
}

int Run() {
  LoadOptions options;
  const std::string mode = absl::GetFlag(FLAGS_mode);
  absl::Status status = ReadOptions(&options);
  if (!status.ok()) {
    std::cerr << "load_client: " << status.message() << std::endl;
    return 2;
  }
  LoadGenerator generator(options);
  LoadReport report;
  status = generator.Connect();
  if (status.ok()) status = Measure(mode, options, generator, &report);
  if (!status.ok()) {
    std::cerr << "load_client: " << status.message() << std::endl;
    return absl::IsInvalidArgument(status) ? 2 : 1;
  }
  std::cout << ReportJson(report, mode, options, generator).dump() << std::endl;
  return generator.wrong_calls() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace idempotency::benchmark

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Sends Claim and Finalize as fast as the server answers, or at a "
      "constant rate, checks every answer, and prints the rates as one line of "
      "JSON.");
  absl::ParseCommandLine(argc, argv);
  return idempotency::benchmark::Run();
}
