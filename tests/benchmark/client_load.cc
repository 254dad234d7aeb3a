// Load through the C++ client: Claims of fresh keys, finalized or not, in a
// closed loop. Prints one line of JSON, as load_client does; exits with 1 if
// any answer was wrong.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/async_client.h"
#include "client/environment.h"
#include "tests/benchmark/latency_json.h"
#include "tests/benchmark/workload.h"

ABSL_FLAG(std::string, target, "127.0.0.1:50051", "The server, a gRPC name.");
ABSL_FLAG(std::string, mode, "pairs",
          "pairs: Claim, then Finalize. claim: Claims alone.");
ABSL_FLAG(std::string, scope, "benchmark", "The scope of every key.");
ABSL_FLAG(std::string, bulk, "auto",
          "auto: as the client chooses. never: a gRPC call for each.");
ABSL_FLAG(int, in_flight, 64, "Calls in flight.");
ABSL_FLAG(double, warm_up, 0.5, "Seconds before the measured time.");
ABSL_FLAG(double, seconds, 2, "Seconds that are measured.");

namespace idempotency::benchmark {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWrongAnswersShown = 5;
constexpr std::chrono::seconds kTimeout{30};

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) +
           static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::string RandomBytes(std::size_t count) {
  thread_local std::mt19937_64 generator{std::random_device{}()};
  std::string bytes(count, '\0');
  for (std::size_t i = 0; i < count; i += sizeof(std::uint64_t)) {
    const std::uint64_t bits = generator();
    std::memcpy(&bytes[i], &bits, std::min(sizeof(bits), count - i));
  }
  return bytes;
}

// A key as long as a UUID.
std::string RandomKey() {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string key = RandomBytes(kKeyBytes);
  for (char& digit : key) digit = kDigits[digit & 15];
  return key;
}

// Empty if it is the answer to the Claim of a fresh key, else what is wrong.
std::string CheckClaimed(const absl::StatusOr<v1::ClaimResponse>& answer) {
  if (!answer.ok()) return answer.status().ToString();
  const v1::Claimed& claimed = answer->claimed();
  if (claimed.attempt() != 1 || claimed.has_abandoned()) {
    return absl::StrCat("outcome ", static_cast<int>(answer->outcome_case()),
                        ", not Claimed with a first attempt");
  }
  if (claimed.fencing_token() <= 0 || claimed.downstream_key().empty() ||
      !claimed.has_lease()) {
    return "Claimed lacks a fencing token, a downstream key or a lease";
  }
  return "";
}

std::string CheckRecorded(const absl::StatusOr<v1::FinalizeResponse>& answer) {
  if (!answer.ok()) return answer.status().ToString();
  if (answer->result() == v1::FinalizeResponse::RESULT_RECORDED) return "";
  return absl::StrCat("result ", static_cast<int>(answer->result()),
                      " in place of RESULT_RECORDED");
}

// What the loops have seen. Thread-safe.
class Tally {
 public:
  void Claimed(Clock::time_point started, const std::string& wrong) {
    absl::MutexLock lock(&mutex_);
    Add("Claim", wrong, started, claims_);
  }

  void Finalized(Clock::time_point started, const std::string& wrong) {
    absl::MutexLock lock(&mutex_);
    Add("Finalize", wrong, started, finalizes_);
  }

  // Answers between the two calls are measured.
  void BeginMeasuring() {
    absl::MutexLock lock(&mutex_);
    measuring_ = true;
    cpu_seconds_ = -CpuSeconds();
    begin_ = Clock::now();
  }
  void EndMeasuring() {
    absl::MutexLock lock(&mutex_);
    measuring_ = false;
    cpu_seconds_ += CpuSeconds();
    seconds_ = std::chrono::duration<double>(Clock::now() - begin_).count();
  }

  nlohmann::json Report() const {
    absl::MutexLock lock(&mutex_);
    const std::uint64_t calls = claims_.count() + finalizes_.count();
    nlohmann::json json = {
        {"mode", absl::GetFlag(FLAGS_mode)},
        {"in_flight", absl::GetFlag(FLAGS_in_flight)},
        {"bulk", absl::GetFlag(FLAGS_bulk)},
        {"seconds", seconds_},
        {"calls", calls},
        {"calls_per_second", static_cast<double>(calls) / seconds_},
        {"client_cpu_seconds", cpu_seconds_},
        {"claim_ms", LatencyJson(claims_)},
        {"checked", checked_},
        {"errors", errors_}};
    if (finalizes_.count() > 0) {
      json["pairs_per_second"] =
          static_cast<double>(finalizes_.count()) / seconds_;
      json["finalize_ms"] = LatencyJson(finalizes_);
    }
    return json;
  }

  int errors() const {
    absl::MutexLock lock(&mutex_);
    return errors_;
  }

 private:
  void Add(const char* call, const std::string& wrong,
           Clock::time_point started, LatencyHistogram& histogram)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ++checked_;
    if (measuring_) histogram.Add((Clock::now() - started).count());
    if (!wrong.empty() && ++errors_ <= kWrongAnswersShown) {
      std::cerr << "client_load: wrong answer to " << call << ": " << wrong
                << std::endl;
    }
  }

  mutable absl::Mutex mutex_;
  bool measuring_ ABSL_GUARDED_BY(mutex_) = false;
  Clock::time_point begin_ ABSL_GUARDED_BY(mutex_);
  double seconds_ ABSL_GUARDED_BY(mutex_) = 0;
  double cpu_seconds_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t checked_ ABSL_GUARDED_BY(mutex_) = 0;
  int errors_ ABSL_GUARDED_BY(mutex_) = 0;
  LatencyHistogram claims_ ABSL_GUARDED_BY(mutex_);
  LatencyHistogram finalizes_ ABSL_GUARDED_BY(mutex_);
};

// What all loops share; outlives the client.
struct Run {
  explicit Run(int loops) : running(loops) {}

  Tally tally;
  std::atomic<bool> stop = false;
  absl::BlockingCounter running;
};

// One of the calls in flight: each call from the answer to the one before.
class Loop {
 public:
  Loop(Run& run, AsyncClient& client)
      : run_(run),
        client_(client),
        finalizes_(absl::GetFlag(FLAGS_mode) == "pairs") {
    claim_.set_scope(absl::GetFlag(FLAGS_scope));
    finalize_.set_scope(claim_.scope());
    *finalize_.mutable_response() = RecordedResponse();
  }

  void Next() {
    if (run_.stop) {
      run_.running.DecrementCount();
      return;
    }
    claim_.set_key(RandomKey());
    claim_.set_request_hash(RandomBytes(kHashBytes));
    claim_.set_claim_token(NewClaimToken(client_.environment()));
    started_ = Clock::now();
    client_.Claim(claim_, {}, [this](absl::StatusOr<v1::ClaimResponse> answer) {
      const std::string wrong = CheckClaimed(answer);
      run_.tally.Claimed(started_, wrong);
      if (finalizes_ && wrong.empty()) {
        Finalize();
      } else {
        Next();
      }
    });
  }

 private:
  void Finalize() {
    finalize_.set_key(claim_.key());
    finalize_.set_claim_token(claim_.claim_token());
    started_ = Clock::now();
    client_.Finalize(finalize_, {},
                     [this](absl::StatusOr<v1::FinalizeResponse> answer) {
                       run_.tally.Finalized(started_, CheckRecorded(answer));
                       Next();
                     });
  }

  Run& run_;
  AsyncClient& client_;
  const bool finalizes_;
  v1::ClaimRequest claim_;
  v1::FinalizeRequest finalize_;
  Clock::time_point started_;
};

int Measure() {
  const int in_flight = absl::GetFlag(FLAGS_in_flight);
  const std::string bulk = absl::GetFlag(FLAGS_bulk);
  const std::string mode = absl::GetFlag(FLAGS_mode);
  if (in_flight < 1 || (mode != "pairs" && mode != "claim") ||
      (bulk != "auto" && bulk != "never")) {
    std::cerr << "client_load: --in_flight must be at least 1, --mode pairs "
                 "or claim, --bulk auto or never\n";
    return 2;
  }
  Run run(in_flight);
  std::vector<std::unique_ptr<Loop>> loops;
  // Ends before what its answers use.
  const auto client = AsyncClient::Connect(
      absl::GetFlag(FLAGS_target),
      {.timeout = kTimeout,
       .bulk = bulk == "auto" ? BulkUse::kAuto : BulkUse::kNever});
  for (int i = 0; i < in_flight; ++i) {
    loops.push_back(std::make_unique<Loop>(run, *client));
  }
  for (const auto& loop : loops) loop->Next();
  absl::SleepFor(absl::Seconds(absl::GetFlag(FLAGS_warm_up)));
  std::cerr << "measuring" << std::endl;
  run.tally.BeginMeasuring();
  absl::SleepFor(absl::Seconds(absl::GetFlag(FLAGS_seconds)));
  run.tally.EndMeasuring();
  std::cerr << "measured" << std::endl;
  run.stop = true;
  run.running.Wait();
  std::cout << run.tally.Report().dump() << std::endl;
  return run.tally.errors() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace idempotency::benchmark

int main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  absl::SetProgramUsageMessage(
      "Sends Claims, and Finalizes, through the C++ client as fast as they are "
      "answered, checks every answer, and prints the rates as one line of "
      "JSON.");
  absl::ParseCommandLine(argc, argv);
  return idempotency::benchmark::Measure();
}
