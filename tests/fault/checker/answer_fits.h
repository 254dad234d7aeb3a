// Does an answer say what was decided? Whatever it does not say is not
// compared; times are compared to the microsecond.
#ifndef IDEMPOTENCY_TESTS_FAULT_CHECKER_ANSWER_FITS_H_
#define IDEMPOTENCY_TESTS_FAULT_CHECKER_ANSWER_FITS_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/core/types.h"
#include "tests/fault/checker/history.h"

namespace idempotency::fault {

bool Fits(const absl::StatusOr<ClaimOutcome>& decided,
          const AnswerEvent& answer);
bool Fits(const absl::StatusOr<FinalizeOutcome>& decided,
          const AnswerEvent& answer);
bool Fits(const absl::StatusOr<ReleaseOutcome>& decided,
          const AnswerEvent& answer);
bool Fits(const absl::StatusOr<LookupOutcome>& decided,
          const AnswerEvent& answer);

// Is the digest in `answer` that of this recorded response? A response of which
// something was left out has none to compare.
bool HasResponse(const AnswerEvent& answer, const Response& response,
                 const std::string& response_digest);

// Does `answer` tell of this abandoned attempt, or of none if there is none?
bool TellsOf(const std::optional<Abandoned>& abandoned,
             const AnswerEvent& answer);

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CHECKER_ANSWER_FITS_H_
