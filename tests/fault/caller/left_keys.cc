#include "tests/fault/caller/left_keys.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/fault/caller/world.h"
#include "tests/fault/checker/hex.h"
#include "tests/integration/fault_calls.h"

namespace idempotency::fault {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::size_t kThreads = 24;
constexpr milliseconds kTimeout{1'500};
constexpr milliseconds kPause{20};
// Longer than the checker takes for an answer in time.
constexpr milliseconds kPatience{6'000};

bool ReadLine(const std::string& line, LeftKey& key) {
  const std::vector<std::string> fields = absl::StrSplit(line, '\t');
  std::int64_t left = 0;
  if (fields.size() != 4 || !absl::SimpleAtoi(fields[3], &left)) return false;
  std::string* const texts[] = {&key.scope, &key.key, &key.request_hash};
  for (std::size_t i = 0; i < std::size(texts); ++i) {
    std::optional<std::string> text = FromHex(fields[i]);
    if (!text.has_value() || text->empty()) return false;
    *texts[i] = *std::move(text);
  }
  key.lease_left = milliseconds(left);
  return true;
}

class Asker {
 public:
  Asker(const Routes& routes, const LeftKey& key, std::size_t number,
        steady_clock::time_point lease_end)
      : routes_(routes),
        number_(number),
        lease_end_(lease_end),
        patience_end_(std::max(steady_clock::now(), lease_end) + kPatience),
        claim_(ClaimOf(key.key)) {
    claim_.set_scope(key.scope);
    claim_.set_request_hash(key.request_hash);
    claim_.set_owner("left");
  }

  void Run(bool waits) {
    UntilDecided(LookupOf(claim_)).status().IgnoreError();
    auto answer = Claim(waits);
    while (waits && answer.ok() && answer->has_in_progress() && HasTime()) {
      std::this_thread::sleep_for(kPause);
      answer = Claim(waits);
    }
    if (!answer.ok() || !answer->has_in_doubt()) return;
    claim_.set_resolve_in_doubt(true);
    Claim(waits).status().IgnoreError();
  }

 private:
  bool HasTime() const { return steady_clock::now() < patience_end_; }

  // By one server after the other.
  template <typename Request>
  auto UntilDecided(const Request& request)
      -> decltype(std::declval<Route&>().Send(request, milliseconds())) {
    while (true) {
      Route& route = *routes_.plain[number_++ % routes_.plain.size()];
      auto answer = route.Send(request, TimeoutOf(request));
      if (answer.ok() || !IsUnanswered(answer.status()) || !HasTime()) {
        return answer;
      }
      std::this_thread::sleep_for(kPause);
    }
  }
  absl::StatusOr<v1::ClaimResponse> Claim(bool waits) {
    // A little more, since it is the database's clock that counts.
    const auto left = std::chrono::ceil<milliseconds>(
        lease_end_ - steady_clock::now() + milliseconds(200));
    claim_.clear_wait();
    if (waits && left > milliseconds(0)) {
      *claim_.mutable_wait() = DurationOf(left);
    }
    return UntilDecided(claim_);
  }

  static milliseconds TimeoutOf(const v1::ClaimRequest& claim) {
    return kTimeout + MillisecondsOf(claim.wait());
  }
  static milliseconds TimeoutOf(const v1::LookupRequest&) { return kTimeout; }

  const Routes& routes_;
  std::size_t number_;
  const steady_clock::time_point lease_end_;
  const steady_clock::time_point patience_end_;
  v1::ClaimRequest claim_;
};

}  // namespace

absl::StatusOr<std::vector<LeftKey>> ReadLeftKeys(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError("there is no file " + path);
  std::vector<LeftKey> keys;
  for (std::string line; std::getline(file, line);) {
    if (ReadLine(line, keys.emplace_back())) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": line ", keys.size(), " names no key: ", line));
  }
  return keys;
}

void AskForLeftKeys(const Routes& routes, std::vector<LeftKey> keys,
                    milliseconds lease_max) {
  const steady_clock::time_point begin = steady_clock::now();
  // All waits then end with their leases, however few the threads are.
  std::sort(keys.begin(), keys.end(), [](const LeftKey& a, const LeftKey& b) {
    return a.lease_left < b.lease_left;
  });
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i; (i = next++) < keys.size();) {
      Asker(routes, keys[i], i, begin + keys[i].lease_left)
          .Run(keys[i].lease_left <= lease_max);
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < std::min(kThreads, keys.size()); ++i) {
    threads.emplace_back(work);
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace idempotency::fault
