// Callers that ask for anything at any time, and often twice.
#ifndef IDEMPOTENCY_TESTS_SIMULATION_RAW_CALLERS_H_
#define IDEMPOTENCY_TESTS_SIMULATION_RAW_CALLERS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/simulation/caller_parts.h"

namespace idempotency {

// Not thread-safe.
class RawCallers {
 public:
  // Keys whose callers may say whatever they like, and keys that belong to
  // operations too: of these nobody says what would make them untrue.
  struct Keys {
    std::vector<RecordId> free;
    std::vector<RecordId> shared;
  };

  RawCallers(const CallerParts& parts, const Keys& keys);

  // Fibers that ask until the weather is calm.
  void Start(std::size_t callers);
  std::uint64_t operations() const { return operations_; }
  // Fibers that have not ended.
  int asking() const { return asking_; }

  // In calm weather: a caller of each key who can resolve what is in doubt must
  // get it, or the response, soon (L2).
  void AskForEveryKey();

 private:
  // An execution attempt of some caller.
  struct Attempt {
    Uuid token;
    int number = 0;
    std::string request_hash;
    std::int64_t fencing_token = 0;  // once it was told one
  };
  struct Key {
    RecordId id;
    bool shared = false;
    std::vector<Attempt> attempts;
  };

  void AskAnything();
  void AskForClaim(Key& key);
  void AskToFinalize(Key& key);
  void AskToRelease(Key& key);
  void AskToLookup(Key& key);
  void InsistOn(Key& key);
  // Sends it, perhaps again and again, and waits for an answer.
  template <typename Command, typename Outcome>
  std::optional<absl::StatusOr<Outcome>> Ask(const Command& command,
                                             Patience patience, int times);
  Patience AnyPatience(bool waits);
  Attempt& AnyAttempt(Key& key);
  Attempt& NewAttempt(Key& key);
  void NoteClaim(const ClaimCommand& command, const ClaimOutcome& outcome);
  Microseconds AnyDuration();

  const CallerParts parts_;
  std::vector<Key> keys_;
  int attempts_ = 0;
  std::uint64_t operations_ = 0;
  int asking_ = 0;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SIMULATION_RAW_CALLERS_H_
