// What the threads of a caller share, and what each has for itself.
#ifndef IDEMPOTENCY_TESTS_FAULT_CALLER_WORLD_H_
#define IDEMPOTENCY_TESTS_FAULT_CALLER_WORLD_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "client/run_once.h"
#include "idempotency/v1/idempotency.pb.h"
#include "server/core/mutex.h"
#include "tests/fault/caller/keys.h"
#include "tests/fault/caller/recorder.h"
#include "tests/fault/caller/routes.h"
#include "tests/fault/caller/wallet.h"

namespace idempotency::fault {

// How often what is done, in hundredths.
struct Mix {
  int once = 15;      // operations through RunOnce
  int http = 8;       // operations through the middleware; the rest by hand
  int waits = 15;     // claims that wait for other owners
  int late = 15;      // owners that pause for longer than their lease
  int renewals = 25;  // owners that renew
  int keys_at_once = 8;
};

// By name; nothing if there is none of that name.
std::optional<Mix> MixOf(const std::string& name);

// Thread-safe.
class Stopping {
 public:
  void Stop();
  bool stopped() const { return stopped_; }
  // Sleeps until then, or until all is to stop.
  void SleepFor(std::chrono::milliseconds duration);

 private:
  Mutex mutex_;
  ConditionVariable changed_;
  std::atomic<bool> stopped_ = false;
};

struct World {
  std::string scope;
  std::string caller;
  std::string wallet_socket;
  std::uint64_t seed = 0;
  std::int64_t calls_per_second = 0;
  Mix mix;
  Recorder& recorder;
  Keys& keys;
  Routes& routes;
  std::vector<std::unique_ptr<RunOnce>>& onces;
  Stopping& stopping;
};

// Whether the call has to be sent again for an answer: perhaps it was carried
// out.
bool IsUnanswered(const absl::Status& status);

// The random choices, the wallet's connection and the memory of one thread.
// Not thread-safe.
class Self {
 public:
  // `number`: of the thread, so that it makes choices of its own.
  Self(World& world, std::uint64_t number, int group);

  World& world() { return world_; }
  const World& world() const { return world_; }
  int group() const { return group_; }

  // 0 to bound - 1.
  int Below(int bound) {
    return static_cast<int>(random_() % static_cast<unsigned>(bound));
  }
  bool Chance(int hundredths) { return Below(100) < hundredths; }
  std::chrono::milliseconds Between(int least_ms, int most_ms) {
    return std::chrono::milliseconds(least_ms + Below(most_ms - least_ms + 1));
  }
  std::mt19937_64& random() { return random_; }

  bool stopped() const { return world_.stopping.stopped(); }
  void SleepFor(std::chrono::milliseconds duration) {
    world_.stopping.SleepFor(duration);
  }
  // Until another call is due.
  void Pace();

  // Asked twice if it does not answer, now and then.
  absl::StatusOr<WalletAnswer> AskWallet(const WalletRequest& request);

  // Any way on which calls go.
  Route& AnyRoute();
  Route& PlainRoute();
  std::chrono::milliseconds Timeout();

  // A claim by this thread for an attempt of its own.
  v1::ClaimRequest NewClaim(const Key& key, const std::string& route);

  // A key to work on.
  std::optional<Key> PickKey();
  // It is left alone for some time, mostly.
  void SawFinal(const std::string& key);

  // To be sent once more, some time: a duplicate that comes late.
  using Request =
      std::variant<v1::ClaimRequest, v1::FinalizeRequest, v1::ReleaseRequest>;
  void Remember(Request request);
  void SendARememberedOne();

 private:
  World& world_;
  const int group_;
  const std::chrono::steady_clock::time_point begin_;
  std::mt19937_64 random_;
  WalletClient wallet_;
  std::deque<Request> remembered_;
  // When that was seen.
  absl::flat_hash_map<std::string, std::chrono::steady_clock::time_point>
      final_;
};

// What an operation of that downstream key answers; `author` may be empty.
v1::Response ResponseTo(const std::string& downstream,
                        const std::string& author);

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CALLER_WORLD_H_
