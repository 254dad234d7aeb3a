#include "tests/fault/caller/world.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/request_hash.h"
#include "tests/integration/fault_calls.h"

namespace idempotency::fault {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::size_t kRememberedMax = 8;
constexpr milliseconds kPause{5};
// Some policies forget a response after that.
constexpr milliseconds kFinalFor{1500};
constexpr std::size_t kFinalMax = 1000;
// How far a caller that was held up may catch up.
constexpr std::int64_t kCallsAhead = 100;

std::mt19937_64 RandomOf(const World& world, std::uint64_t number) {
  // Of each value only the lower half counts.
  std::seed_seq seed{world.seed, std::hash<std::string>()(world.caller), number,
                     number >> 32};
  return std::mt19937_64(seed);
}

std::string HashOf(const Key& key) {
  return RequestHash({"POST", "/pay", "text/plain", key.name});
}

// Of another request; maybe one that was looked for until its hash was nearly
// the same.
std::string OtherHash(std::string hash, bool nearly) {
  hash[nearly ? hash.size() - 1 : 0] ^= 1;
  return hash;
}

}  // namespace

std::optional<Mix> MixOf(const std::string& name) {
  if (name == "all") return Mix();
  if (name == "claims") return Mix{.once = 0, .http = 0, .waits = 0, .late = 5};
  if (name == "waits") return Mix{.once = 25, .waits = 80, .keys_at_once = 4};
  if (name == "renewals") return Mix{.once = 60, .late = 5, .renewals = 90};
  if (name == "hot") return Mix{.once = 25, .waits = 40, .keys_at_once = 1};
  return std::nullopt;
}

void Stopping::Stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

void Stopping::SleepFor(milliseconds duration) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  std::unique_lock<Mutex> lock(mutex_);
  changed_.wait_for(lock, duration, [this] { return stopped_.load(); });
}

bool IsUnanswered(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status) || absl::IsUnknown(status);
}

Self::Self(World& world, std::uint64_t number, int group)
    : world_(world),
      group_(group),
      begin_(steady_clock::now()),
      random_(RandomOf(world, number)),
      wallet_(world.wallet_socket) {}

void Self::Pace() {
  while (!stopped()) {
    const auto passed =
        std::chrono::duration_cast<milliseconds>(steady_clock::now() - begin_);
    const std::int64_t due = passed.count() * world_.calls_per_second / 1000;
    if (world_.recorder.calls() < due + kCallsAhead) return;
    SleepFor(kPause);
  }
}

absl::StatusOr<WalletAnswer> Self::AskWallet(const WalletRequest& request) {
  absl::StatusOr<WalletAnswer> answer = wallet_.Ask(request);
  if (!answer.ok() && Chance(70)) answer = wallet_.Ask(request);
  return answer;
}

Route& Self::PlainRoute() {
  const auto& plain = world_.routes.plain;
  return *plain[static_cast<std::size_t>(
      Below(static_cast<int>(plain.size())))];
}

Route& Self::AnyRoute() {
  const int way = Below(100);
  if (way < 45) return PlainRoute();
  if (way < 57) return *world_.routes.hedge;
  if (way < 70) return *world_.routes.retry;
  if (way < 85) return *world_.routes.client;
  return *world_.routes.bulk;
}

milliseconds Self::Timeout() {
  return Chance(3) ? Between(1, 15) : Between(300, 1500);
}

v1::ClaimRequest Self::NewClaim(const Key& key, const std::string& route) {
  v1::ClaimRequest claim = ClaimOf(key.name, key.policy);
  // Now and then the same key, and the same request, of another service.
  claim.set_scope(world_.scope + (Chance(10) ? "/other" : ""));
  claim.set_request_hash(Chance(4) ? OtherHash(HashOf(key), Chance(50))
                                   : HashOf(key));
  claim.set_owner(absl::StrCat(world_.caller, "/", route));
  // Looked at only where the claim makes a record.
  if (Chance(5)) claim.set_policy("fault_record");
  if (Chance(50)) *claim.mutable_lease() = DurationOf(Between(150, 1000));
  if (Chance(world_.mix.waits)) {
    *claim.mutable_wait() = DurationOf(Between(50, 1500));
  }
  if (Chance(10)) claim.set_checkpoint("claimed");
  claim.set_resolve_in_doubt(Chance(40));
  return claim;
}

std::optional<Key> Self::PickKey() {
  const auto now = steady_clock::now();
  return world_.keys.Pick(group_, random_, [&](const std::string& key) {
    const auto seen = final_.find(key);
    return seen != final_.end() && now - seen->second < kFinalFor;
  });
}

void Self::SawFinal(const std::string& key) {
  if (final_.size() > kFinalMax) final_.clear();
  final_[key] = steady_clock::now();
}

void Self::Remember(Request request) {
  if (remembered_.size() == kRememberedMax) remembered_.pop_front();
  remembered_.push_back(std::move(request));
}

void Self::SendARememberedOne() {
  if (remembered_.empty()) return;
  const auto one =
      remembered_.begin() + Below(static_cast<int>(remembered_.size()));
  std::visit(
      [this](const auto& request) {
        AnyRoute().Send(request, Timeout()).status().IgnoreError();
      },
      *one);
  remembered_.erase(one);
}

v1::Response ResponseTo(const std::string& downstream,
                        const std::string& author) {
  return ResponseOf(201, absl::StrCat("charged ", downstream, " ", author));
}

}  // namespace idempotency::fault
