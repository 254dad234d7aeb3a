// The states that one record went through, as its log has them, and when.
#ifndef IDEMPOTENCY_TESTS_FAULT_CHECKER_STATES_H_
#define IDEMPOTENCY_TESTS_FAULT_CHECKER_STATES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/fault/checker/database_clock.h"
#include "tests/fault/checker/explain.h"
#include "tests/fault/checker/run.h"

namespace idempotency::fault {

// State i is the record after i changes; state 0 is from ever, and no row.
class States {
 public:
  // All are borrowed.
  States(const RecordId& id, const KeyHistory& key, const DatabaseClock& clock);

  const RecordId& id() const { return id_; }
  const KeyHistory& key() const { return key_; }
  const DatabaseClock& clock() const { return clock_; }

  std::size_t count() const { return states_.size(); }
  // nullptr: no row.
  const Record* at(std::size_t i) const { return states_[i]; }

  // ---- Of change i, the one to state i; from 1 on.

  const Change& ChangeTo(std::size_t i) const { return key_.changes[i - 1]; }
  Step StepTo(std::size_t i) const { return {states_[i - 1], states_[i]}; }
  // When it was made: not before, and not after.
  std::int64_t EarliestOf(std::size_t i) const { return made_[i].earliest; }
  std::int64_t LatestOf(std::size_t i) const { return made_[i].latest; }
  // The same by the database's clock: not after. It is decided before it is
  // logged, and the clock may have been set back meanwhile.
  absl::Time DecidedBy(std::size_t i) const;
  std::string NameOf(std::size_t i) const;

  // ---- Monotonic times.

  // The least state that the record can have been in at `t` or later.
  std::size_t FirstAt(std::int64_t t) const;
  // The last one that it can have been in at `t` or before.
  std::size_t LastAt(std::int64_t t) const;
  // Was the lease of `state` over at `t`, for certain?
  bool WasOver(const Record& state, std::int64_t t) const;

  // ---- When, by the database's clock, something was decided:

  // an operation that made change i;
  Span SpanOfChange(const Operation& operation, std::size_t i) const;
  // one that was answered out of state i.
  Span SpanOfRead(const Operation& operation, std::size_t i) const;

  // Those that named this claim token.
  const std::vector<const Operation*>& OperationsOf(const Uuid& token) const;

 private:
  struct Made {
    std::int64_t earliest = 0;
    std::int64_t latest = 0;
  };

  const RecordId& id_;
  const KeyHistory& key_;
  const DatabaseClock& clock_;
  std::vector<const Record*> states_{};
  std::vector<Made> made_{};
  std::map<Uuid, std::vector<const Operation*>> by_token_{};
};

// For the texts of violations: "Claim c1-2", and what it was told.
std::string Describe(const Operation& operation);
std::string WordOf(const AnswerEvent& answer);

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CHECKER_STATES_H_
