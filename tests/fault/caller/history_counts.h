// How often each thing happened in a run, by its histories.
#ifndef IDEMPOTENCY_TESTS_FAULT_CALLER_HISTORY_COUNTS_H_
#define IDEMPOTENCY_TESTS_FAULT_CALLER_HISTORY_COUNTS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace idempotency::fault {

// By a word, which is left out where nothing of it happened:
//
// - calls: the names of their paths and kinds; renewal, wait, resolve,
//   checkpoint; /plain and so on, as their owners say; over_body_limit and
//   over_header_limit, of servers that keep 10,000 bytes
// - answers: what WordOf() says; body_omitted, headers_omitted
// - effects: effect_executed, effect_duplicate, effect_refused
// - unanswered; called_twice and answered_unasked, which no history may hold
// - superseded_owner: CLAIM_SUPERSEDED for a Finalize of somebody who had been
//   told Claimed
//   late_claim: CLAIM_RELEASED for a claim whose attempt was known to have
//   ended handed_over: a takeover that was told a checkpoint waited: Claimed or
//   Replay after more than 50 ms of a wait new_life: a first attempt after a
//   final response overlapping_owners: an effect by somebody when another had
//   been told that the key is his
using Counts = std::map<std::string, int>;

// Over all files, which may still be written, or not be there yet.
absl::StatusOr<Counts> CountsOf(const std::vector<std::string>& histories);

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CALLER_HISTORY_COUNTS_H_
