#include "server/core/errors.h"

#include <array>
#include <cstddef>

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace idempotency {
namespace {

constexpr char kReasonUrl[] = "idempotency.v1/reason";
constexpr char kFieldUrl[] = "idempotency.v1/field";
constexpr char kRetryDelayUrl[] = "idempotency.v1/retry-delay-ms";

struct ReasonRow {
  std::string_view name;
  absl::StatusCode code;
};

// In the order of `Reason`.
constexpr std::array<ReasonRow, 14> kReasons = {{
    {"INVALID_FIELD", absl::StatusCode::kInvalidArgument},
    {"UNKNOWN_POLICY", absl::StatusCode::kInvalidArgument},
    {"POLICY_NOT_ALLOWED", absl::StatusCode::kInvalidArgument},
    {"CLAIM_RELEASED", absl::StatusCode::kFailedPrecondition},
    {"CLAIM_SUPERSEDED", absl::StatusCode::kFailedPrecondition},
    {"ALREADY_FINALIZED", absl::StatusCode::kFailedPrecondition},
    {"RECORD_NOT_FOUND", absl::StatusCode::kNotFound},
    {"STORE_UNAVAILABLE", absl::StatusCode::kUnavailable},
    {"OVERLOADED", absl::StatusCode::kUnavailable},
    {"DRAINING", absl::StatusCode::kUnavailable},
    {"OUTCOME_UNKNOWN", absl::StatusCode::kUnavailable},
    {"DEADLINE_EXCEEDED", absl::StatusCode::kDeadlineExceeded},
    {"RECORD_CORRUPT", absl::StatusCode::kDataLoss},
    {"INTERNAL", absl::StatusCode::kInternal},
}};
static_assert(kReasons.size() ==
              static_cast<std::size_t>(Reason::kInternal) + 1);

const ReasonRow& RowOf(Reason reason) {
  return kReasons[static_cast<std::size_t>(reason)];
}

absl::string_view ToAbsl(std::string_view text) {
  return absl::string_view(text.data(), text.size());
}

}  // namespace

std::string_view ReasonName(Reason reason) { return RowOf(reason).name; }

absl::StatusCode CodeOf(Reason reason) { return RowOf(reason).code; }

absl::Status MakeError(Reason reason, std::string_view message) {
  absl::Status status(CodeOf(reason), ToAbsl(message));
  status.SetPayload(kReasonUrl, absl::Cord(ToAbsl(ReasonName(reason))));
  return status;
}

absl::Status InvalidField(std::string_view field, std::string_view problem) {
  absl::Status status = MakeError(
      Reason::kInvalidField, std::string(field).append(": ").append(problem));
  status.SetPayload(kFieldUrl, absl::Cord(ToAbsl(field)));
  return status;
}

absl::Status WithRetryDelay(absl::Status error,
                            std::chrono::milliseconds delay) {
  error.SetPayload(kRetryDelayUrl, absl::Cord(std::to_string(delay.count())));
  return error;
}

std::optional<std::chrono::milliseconds> DelayAskedBy(
    const absl::Status& status) {
  const absl::optional<absl::Cord> delay = status.GetPayload(kRetryDelayUrl);
  if (!delay.has_value()) return std::nullopt;
  return std::chrono::milliseconds(std::stoll(std::string(*delay)));
}

bool HasReason(const absl::Status& status) {
  return status.GetPayload(kReasonUrl).has_value();
}

bool IsStoreAway(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnavailable ||
         status.code() == absl::StatusCode::kUnknown ||
         (status.code() == absl::StatusCode::kFailedPrecondition &&
          !HasReason(status));
}

Reason ReasonOf(const absl::Status& status) {
  const absl::optional<absl::Cord> name = status.GetPayload(kReasonUrl);
  if (name.has_value()) {
    for (std::size_t i = 0; i < kReasons.size(); ++i) {
      if (*name == ToAbsl(kReasons[i].name)) return static_cast<Reason>(i);
    }
  }
  switch (status.code()) {
    case absl::StatusCode::kDeadlineExceeded:
      return Reason::kDeadlineExceeded;
    case absl::StatusCode::kUnavailable:
      return Reason::kStoreUnavailable;
    default:
      return Reason::kInternal;
  }
}

std::string FieldOf(const absl::Status& status) {
  const absl::optional<absl::Cord> field = status.GetPayload(kFieldUrl);
  return field.has_value() ? std::string(*field) : std::string();
}

}  // namespace idempotency
