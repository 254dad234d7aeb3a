// Callers that execute operations once, the coordinator's real decisions over a
// table in memory, a bad network between them, and a payment channel: a seed
// decides everything that happens.
#ifndef IDEMPOTENCY_TESTS_UNIT_ONCE_WORLD_H_
#define IDEMPOTENCY_TESTS_UNIT_ONCE_WORLD_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/once_machine.h"
#include "server/core/metrics.h"
#include "server/core/optimistic_store.h"
#include "tests/support/manual_clock.h"
#include "tests/support/memory_table.h"

namespace idempotency {

// What the world has to notice, planted between the machine and the world.
enum class OnceBug {
  kNone,
  kPermissionFromTheAnswer,
  kOwnResponseAfterARefusal,
  kHangUpSaysNeverExecuted,
  kThrowSaysNotExecuted,
  kResolverSkipped,
  kFunctionStartsUnasked,
};

// Calls are lost before or after they take effect, arrive late or twice, and
// are answered late or with an error. Callers hang up, die, or stand still for
// a while. The promises:
//   charged-twice      a key has one effective charge, over all its attempts
//   charged-knowingly  what the channel could tell is not done again
//   permission         nobody is permitted beside a newer grant, and no
//                      function starts without permission
//   delivery           one result, before the end, true to what ran
//   recorded           a recorded result is what everybody is told
//   end                every operation ends in bounded time
//   stuck              afterwards a fresh caller gets a response
// Not thread-safe.
class OnceWorld {
 public:
  OnceWorld(std::uint64_t seed, OnceBug bug);
  ~OnceWorld();
  OnceWorld(const OnceWorld&) = delete;
  OnceWorld& operator=(const OnceWorld&) = delete;

  void Run();

  // Each begins with the promise's name and a colon.
  const std::vector<std::string>& violations() const { return violations_; }
  // How often what happened.
  const std::map<std::string, int>& events() const { return counts_; }

 private:
  using TimePoint = OnceMachine::TimePoint;
  using Milliseconds = std::chrono::milliseconds;
  using Task = std::function<void()>;
  struct Client;

  bool Chance(unsigned percent) { return random_() % 100 < percent; }
  std::size_t Below(std::size_t bound) { return random_() % bound; }
  double Fraction() { return static_cast<double>(random_() >> 11) * 0x1.0p-53; }
  Milliseconds AnyDelay();
  void Violation(const std::string& promise, const std::string& what);

  // Time.
  void At(TimePoint time, Task task) { tasks_.emplace(time, std::move(task)); }
  // In a process: not if it died, later if it stands still.
  void Later(Client& client, Milliseconds delay, Task task);
  void RunUntilIdle();

  // The callers.
  Client& NewClient(const Operation& operation, bool resolves);
  Operation AnyOperation();
  void AddTrouble(Client& client);
  template <typename Event>
  void Feed(Client& client, const Event& event);
  void SetTimer(Client& client);
  void StartFunction(Client& client);
  void Charge(Client& client, bool asks);
  FunctionResult EndOf(Client& client, std::size_t kind) const;

  void Perform(Client& client, OnceMachine::SendClaim& action);
  void Perform(Client& client, OnceMachine::SendRenewal& action);
  void Perform(Client& client, OnceMachine::SendFinalize& action);
  void Perform(Client& client, OnceMachine::SendLookup& action);
  void Perform(Client& client, OnceMachine::SendRelease& action);
  void Perform(Client& client, OnceMachine::RunFunction& action);
  void Perform(Client& client, OnceMachine::RunResolver& action);
  void Perform(Client& client, OnceMachine::Withdraw& action);
  void Perform(Client& client, OnceMachine::CheckpointStored& action);
  void Perform(Client& client, OnceMachine::Deliver& action);
  void Perform(Client& client, OnceMachine::End& action);

  // The network: `answered` is called in the process, once.
  template <typename Request, typename Response>
  void Send(Client& client, const Request& request, Milliseconds timeout,
            std::function<void(absl::StatusOr<Response>)> answered);
  template <typename Request, typename Respond>
  void Arrive(const Request& request, TimePoint wait_ends, Respond respond);

  // The coordinator.
  absl::StatusOr<v1::ClaimResponse> Decide(const v1::ClaimRequest& request);
  absl::StatusOr<v1::FinalizeResponse> Decide(
      const v1::FinalizeRequest& request);
  absl::StatusOr<v1::LookupResponse> Decide(const v1::LookupRequest& request);
  absl::StatusOr<v1::ReleaseResponse> Decide(const v1::ReleaseRequest& request);
  void CheckPermissions(const RecordId& id);
  void CheckRecorded(const Client& client);

  const OnceBug bug_;
  std::mt19937_64 random_;
  MemoryDatabase database_;
  ManualClock clock_;
  Metrics metrics_;
  OptimisticStore store_;
  bool calm_ = false;  // no trouble any more
  TimePoint now_;
  std::multimap<TimePoint, Task> tasks_;
  std::vector<std::unique_ptr<Client>> clients_;
  // The channel: when it charged for each downstream key, and which of these
  // belong to one key.
  std::map<std::string, TimePoint> charges_;
  std::map<std::string, std::set<std::string>> charged_;
  std::map<RecordId, std::int64_t> fencing_tokens_;
  std::map<std::string, int> counts_;
  std::vector<std::string> violations_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_UNIT_ONCE_WORLD_H_
