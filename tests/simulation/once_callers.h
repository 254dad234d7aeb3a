// Callers that execute operations once, by the client's own state machine and
// retries, and the payment channel that they charge.
#ifndef IDEMPOTENCY_TESTS_SIMULATION_ONCE_CALLERS_H_
#define IDEMPOTENCY_TESTS_SIMULATION_ONCE_CALLERS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/once_machine.h"
#include "tests/simulation/caller_parts.h"

namespace idempotency {

// Callers hang up, die, or stand still for a while. What is promised besides
// what the history's checker knows:
//   charged-knowingly  what the channel could tell is not done again
//   permission         nobody is permitted beside a newer grant, and no
//                      function starts without permission
//   delivery           one result, before the end, true to what ran
//   recorded           what a caller recorded itself is in the record, and what
//                      it was told of others' was
//   end                every operation ends in bounded time
//   stuck              afterwards a fresh caller gets a response
// Not thread-safe.
class OnceCallers {
 public:
  OnceCallers(const CallerParts& parts, std::vector<RecordId> keys);
  ~OnceCallers();
  OnceCallers(const OnceCallers&) = delete;
  OnceCallers& operator=(const OnceCallers&) = delete;

  // Operations that begin within the next `span`.
  void Start(std::size_t operations, Microseconds span);
  // In calm weather, one for each key: it must get a response.
  void StartForEveryKey();

  // The newest grant of a key is another one.
  void GrantChanged(const RecordId& id, std::int64_t fencing_token);

  // Have all ended that did not die?
  bool AllEnded() const;
  void CheckEnd();

  // Calls that were made, repeats not counted.
  std::uint64_t calls() const { return calls_; }
  // How often what happened.
  const std::map<std::string, std::uint64_t>& events() const { return events_; }

 private:
  using TimePoint = OnceMachine::TimePoint;
  struct Client;
  template <typename Wire>
  class Call;

  void Violate(const Client& client, const std::string& promise,
               const std::string& what);
  void CheckRecorded(const Client& client);
  // In a process: not if it died, later if it stands still.
  void Later(Client& client, Microseconds delay, std::function<void()> task);
  Microseconds AnyDelay();

  Client& NewClient(const Operation& operation, bool resolves);
  void StartAfter(Client& client, Microseconds delay);
  Operation AnyOperation();
  void AddTrouble(Client& client);
  bool LeaseMayBeCut() const;
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

  // Answered once, in the process, within the timeout.
  template <typename Wire>
  void Send(
      Client& client, const typename Wire::Request& request,
      Milliseconds timeout,
      std::function<void(absl::StatusOr<typename Wire::Response>)> answered);
  void Spoil(v1::ClaimResponse& response, Microseconds took) const;

  const CallerParts parts_;
  const std::vector<RecordId> keys_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::size_t first_of_the_end_ = 0;  // those of StartForEveryKey()
  // The channel: when it charged for each downstream key.
  std::map<std::string, TimePoint> charges_;
  std::map<RecordId, std::int64_t> fencing_tokens_;
  std::map<std::string, std::uint64_t> events_;
  std::uint64_t calls_ = 0;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SIMULATION_ONCE_CALLERS_H_
