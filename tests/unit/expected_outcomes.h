// The tables of outcomes stated a second time, as ordered rows of which the
// first that fits holds, and what each row's answer means for the record. It
// shares no code with server/core/transitions.
#ifndef IDEMPOTENCY_TESTS_UNIT_EXPECTED_OUTCOMES_H_
#define IDEMPOTENCY_TESTS_UNIT_EXPECTED_OUTCOMES_H_

#include <optional>
#include <string_view>

#include "server/core/errors.h"
#include "server/core/types.h"
#include "tests/unit/situations.h"

namespace idempotency {

template <typename Outcome>
struct Expected {
  std::string_view row;  // the words of the table's row that fits
  std::optional<Reason> error{};
  std::optional<Outcome> outcome{};  // without `error`
  // The record afterwards, but for its version; nullopt: nothing is written.
  std::optional<Record> after{};
  bool evidence = false;
};

Expected<ClaimOutcome> ExpectedClaim(const Situation& situation,
                                     const ClaimChoice& choice);
Expected<FinalizeOutcome> ExpectedFinalize(const Situation& situation,
                                           const FinalizeChoice& choice);
Expected<ReleaseOutcome> ExpectedRelease(const Situation& situation,
                                         const ReleaseChoice& choice);
// The state to be shown, or nullopt: RECORD_NOT_FOUND.
std::optional<VisibleState> ExpectedLookup(const Situation& situation);

// How a record compares after what no row has a say in is set to nothing: the
// time of giving up where nothing was given up, and the version.
Record Comparable(Record record);

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_UNIT_EXPECTED_OUTCOMES_H_
