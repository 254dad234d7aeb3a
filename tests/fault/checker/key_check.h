// Is there an order of one record's calls that explains every change of it and
// every answer?
//
// The log gives the order of the changes: state i is the record after i of
// them. Every change has to be made by one operation (or the sweeper). Every
// answer that states a fact has to follow from a state that the record can have
// been in between the call and the answer; the answer to a change goes with a
// change of its own. Of two operations one after the other, the later one never
// sees an earlier state.
//
// That decides it exactly. Answers are taken in their order, and each gets the
// least state that explains it and is not below what was seen by any operation
// that had ended before it began. A lesser choice leaves every later operation
// at least the states that a greater one would.
//
// What ended without a fact may take effect at any time from its call on, also
// after its answer, or never: the log tells.
#ifndef IDEMPOTENCY_TESTS_FAULT_CHECKER_KEY_CHECK_H_
#define IDEMPOTENCY_TESTS_FAULT_CHECKER_KEY_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/fault/checker/database_clock.h"
#include "tests/fault/checker/findings.h"
#include "tests/fault/checker/run.h"

namespace idempotency::fault {

// Finds violations of S1 to S7, S9 to S12 and S15 to S20 in a record's log and
// in what it leaves of the answers; ORDER where no promise has a number for it.
// Use once. Not thread-safe.
class KeyCheck {
 public:
  // All are borrowed.
  KeyCheck(const RecordId& id, const KeyHistory& key, const Run& run,
           const DatabaseClock& clock, Findings& findings);

  void Run();

  // ---- For further checks, after Run().

  // The record after `i` changes; nullptr: none.
  const Record* state(std::size_t i) const { return states_[i]; }
  std::size_t state_count() const { return states_.size(); }
  // The least state that the record can have been in at `t` or later.
  std::size_t FirstStateAt(std::int64_t t) const;
  // The last one that it can have been in at `t` or before.
  std::size_t LastStateAt(std::int64_t t) const;
  // The first grant to this claim token, or to any, by the monotonic clock.
  std::optional<std::int64_t> FirstGrantOf(
      const std::optional<Uuid>& token) const;
  // Was the lease of `state` over at `t`, for certain?
  bool WasOver(const Record& state, std::int64_t t) const;

 private:
  void CheckLog();
  void CheckOneChange(std::size_t i);
  void CheckGrant(const Record& after);
  bool IsSweepers(std::size_t i) const;

  void PlaceAnswers();
  void PlaceAnswer(const Operation& operation);
  bool IsExplainedBy(const Operation& operation, std::size_t i) const;
  bool OnceRan(const Operation& operation, std::size_t i) const;
  std::size_t LeastFor(std::int64_t called) const;
  void RefuseAnswer(const Operation& operation, std::size_t first,
                    std::size_t last);
  std::string NumberOf(const Operation& operation, std::size_t first,
                       std::size_t last) const;

  void AttributeChanges();
  void AttributeChange(std::size_t i);
  void RefuseChange(std::size_t i, const Operation* definite);
  bool MakesChange(const Operation& operation, std::size_t i) const;
  bool MakesChangeOnce(std::size_t i) const;

  // Those that named this claim token.
  const std::vector<const Operation*>& OperationsOf(const Uuid& token) const;

  Step StepTo(std::size_t i) const { return {states_[i - 1], states_[i]}; }
  Span SpanOf(const Operation& operation, std::size_t i) const;
  void Violate(const std::string& number, const std::string& what);
  std::string NameOf(std::size_t i) const;

  const RecordId& id_;
  const KeyHistory& key_;
  const fault::Run& run_;
  const DatabaseClock& clock_;
  Findings& findings_;

  // Of state i; the first is from ever.
  std::vector<const Record*> states_;
  std::vector<absl::Time> since_;
  // What made change i; the first is unused.
  std::vector<bool> is_explained_;
  std::map<Uuid, std::vector<const Operation*>> by_token_;
  std::vector<const Operation*> once_;
  // Of placed answers: when, and the greatest state that was seen by then.
  std::vector<std::pair<std::int64_t, std::size_t>> seen_;
  std::map<std::int64_t, Uuid> owners_;  // by fencing token
  std::int64_t fencing_token_ = 0;
};

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CHECKER_KEY_CHECK_H_
