// A history in words, for whoever has to find out what went wrong.
#ifndef IDEMPOTENCY_TESTS_SIMULATION_HISTORY_TEXT_H_
#define IDEMPOTENCY_TESTS_SIMULATION_HISTORY_TEXT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/core/types.h"

namespace idempotency {

// Seconds of the database's clock, in a simulated hour.
std::string TimeText(absl::Time time);
std::string TextOfToken(const Uuid& token);
std::string TextOfRow(const Record* row);

std::string TextOfCall(const ClaimCommand& claim);
std::string TextOfCall(const FinalizeCommand& finalize);
std::string TextOfCall(const LookupCommand& lookup);
std::string TextOfCall(const ReleaseCommand& release);

// The name that an answer is counted by.
std::string NameOfAnswer(const absl::Status& status);
const char* NameOfAnswer(const ClaimOutcome& outcome);

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SIMULATION_HISTORY_TEXT_H_
