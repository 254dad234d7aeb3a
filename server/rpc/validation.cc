#include "server/rpc/validation.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/core/digest.h"
#include "server/core/errors.h"
#include "server/core/header_codec.h"
#include "server/core/limits.h"
#include "server/core/uuid.h"

namespace idempotency {
namespace {

// What google.protobuf.Duration itself allows.
constexpr std::int64_t kProtoSecondsMax = 315'576'000'000;
constexpr std::int32_t kProtoNanosMax = 999'999'999;

bool IsControl(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7f;
}

bool HasControl(std::string_view text) {
  return std::any_of(text.begin(), text.end(), IsControl);
}

bool IsScopeChar(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
         (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

// Segments of at least one character, joined by single slashes.
bool IsScope(std::string_view scope) {
  bool in_segment = false;
  for (const char c : scope) {
    if (c == '/' ? !in_segment : !IsScopeChar(c)) return false;
    in_segment = c != '/';
  }
  return in_segment;
}

std::string SizeProblem(std::size_t size, std::string_view unit,
                        std::size_t min, std::size_t max) {
  std::string problem = "has " + std::to_string(size) + " ";
  problem.append(unit).append(", want ");
  if (min > 0) problem += std::to_string(min) + " to ";
  if (min == 0) problem += "at most ";
  return problem + std::to_string(max);
}

bool IsValid(const google::protobuf::Duration& duration) {
  const std::int64_t seconds = duration.seconds();
  const std::int32_t nanos = duration.nanos();
  return seconds >= -kProtoSecondsMax && seconds <= kProtoSecondsMax &&
         nanos >= -kProtoNanosMax && nanos <= kProtoNanosMax &&
         !(seconds > 0 && nanos < 0) && !(seconds < 0 && nanos > 0);
}

absl::Duration FromProto(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) +
         absl::Nanoseconds(duration.nanos());
}

// Reads field after field and keeps the first problem. What it returns for a
// bad field means nothing.
class FieldReader {
 public:
  const absl::Status& status() const { return status_; }

  RecordId Id(const std::string& scope, const std::string& key) {
    if (CheckSize("scope", scope.size(), "characters", 1,
                  limits::kScopeCharsMax) &&
        !IsScope(scope)) {
      Fail("scope", "want segments of A-Z a-z 0-9 . _ - joined by single /");
    }
    if (CheckSize("key", key.size(), "bytes", 1, limits::kKeyBytesMax)) {
      CheckNoControl("key", key);
    }
    return {.scope = scope, .key = key};
  }

  std::string RequestHash(const std::string& hash) {
    CheckSize("request_hash", hash.size(), "bytes",
              limits::kRequestHashBytesMin, limits::kRequestHashBytesMax);
    return hash;
  }

  Uuid ClaimToken(const std::string& token) {
    const std::optional<Uuid> uuid = ParseUuid(token);
    if (!uuid.has_value()) {
      Fail("claim_token",
           "is no UUID, want 8-4-4-4-12 hexadecimal digits drawn at random");
      return {};
    }
    if (uuid->is_nil() || uuid->is_max()) {
      Fail("claim_token",
           "is the nil or the max UUID, want one drawn at random");
    }
    return *uuid;
  }

  std::string PolicyName(const std::string& name) {
    if (CheckSize("policy", name.size(), "bytes", 0,
                  limits::kPolicyNameBytesMax)) {
      CheckNoControl("policy", name);
    }
    return name;
  }

  std::optional<absl::Duration> Lease(const v1::ClaimRequest& request) {
    if (!request.has_lease()) return std::nullopt;
    const absl::Duration lease = ReadDuration("lease", request.lease());
    if (lease <= absl::ZeroDuration()) Fail("lease", "want more than 0");
    return std::min(lease, absl::FromChrono(limits::kDurationMax));
  }

  std::chrono::nanoseconds Timeout(const v1::Command& command) {
    if (!command.has_timeout()) return std::chrono::nanoseconds::max();
    const absl::Duration timeout = ReadDuration("timeout", command.timeout());
    if (timeout <= absl::ZeroDuration()) Fail("timeout", "want more than 0");
    return absl::ToChronoNanoseconds(timeout);
  }

  void Wait(const v1::ClaimRequest& request) {
    if (!request.has_wait()) return;
    if (ReadDuration("wait", request.wait()) < absl::ZeroDuration()) {
      Fail("wait", "is negative, want 0 or more");
    }
  }

  std::optional<std::string> Checkpoint(const v1::ClaimRequest& request) {
    if (!request.has_checkpoint()) return std::nullopt;
    CheckSize("checkpoint", request.checkpoint().size(), "bytes", 0,
              limits::kCheckpointBytesMax);
    return request.checkpoint();
  }

  std::int64_t NotNegative(std::string_view field, std::int64_t number) {
    if (number < 0) Fail(field, "is negative, want 0 or more");
    return number;
  }

  // Shown to people and kept as text, so that control characters are no part
  // of it either.
  std::string Owner(const std::string& owner) {
    if (CheckSize("owner", owner.size(), "bytes", 0, limits::kOwnerBytesMax)) {
      CheckNoControl("owner", owner);
    }
    return owner;
  }

  Disposition DispositionOf(v1::ReleaseRequest::Disposition disposition) {
    switch (disposition) {
      case v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED:
        return Disposition::kNotExecuted;
      case v1::ReleaseRequest::DISPOSITION_OUTCOME_UNKNOWN:
        return Disposition::kOutcomeUnknown;
      case v1::ReleaseRequest::DISPOSITION_NEVER_EXECUTED:
        return Disposition::kNeverExecuted;
      default:
        Fail("disposition", "is unspecified or unknown, say what happened");
        return Disposition::kOutcomeUnknown;
    }
  }

  void CheckResponse(const v1::FinalizeRequest& request) {
    if (!request.has_response()) return Fail("response", "is missing");
    const v1::Response& response = request.response();
    if (response.status_code() < 0 ||
        response.status_code() > limits::kStatusCodeMax) {
      Fail("response.status_code",
           "want 0 to " + std::to_string(limits::kStatusCodeMax));
    }
    if (response.body_omitted() && !response.body().empty()) {
      Fail("response.body_omitted", "is set beside a body, want one of them");
    }
    if (response.headers_omitted() && response.headers_size() > 0) {
      Fail("response.headers_omitted", "is set beside headers, want one");
    }
  }

 private:
  void Fail(std::string_view field, std::string_view problem) {
    if (status_.ok()) status_ = InvalidField(field, problem);
  }

  bool CheckSize(std::string_view field, std::size_t size,
                 std::string_view unit, std::size_t min, std::size_t max) {
    if (size >= min && size <= max) return true;
    Fail(field, SizeProblem(size, unit, min, max));
    return false;
  }

  void CheckNoControl(std::string_view field, std::string_view text) {
    if (HasControl(text)) {
      Fail(field, "has a control character (U+0000 to U+001F or U+007F)");
    }
  }

  absl::Duration ReadDuration(std::string_view field,
                              const google::protobuf::Duration& duration) {
    if (!IsValid(duration)) {
      Fail(field,
           "is no valid duration: seconds or nanos out of range, or of "
           "different signs");
    }
    return FromProto(duration);
  }

  absl::Status status_;
};

std::size_t HeaderBytes(const v1::Response& response) {
  std::size_t bytes = 0;
  for (const v1::Header& header : response.headers()) {
    bytes += header.name().size() + header.value().size();
  }
  return bytes;
}

Response AsSent(const v1::Response& response, std::size_t header_bytes) {
  constexpr std::size_t kFramesPerHeader = 16;
  Response sent{.status_code = response.status_code(),
                .headers = {},
                .body = response.body(),
                .body_omitted = response.body_omitted(),
                .headers_omitted = response.headers_omitted()};
  sent.headers.reserve(header_bytes +
                       kFramesPerHeader * response.headers().size());
  for (const v1::Header& header : response.headers()) {
    AppendHeader({header.name(), header.value()}, sent.headers);
  }
  return sent;
}

}  // namespace

absl::StatusOr<ClaimCommand> ValidateClaim(const v1::ClaimRequest& request) {
  FieldReader fields;
  ClaimCommand command;
  command.id = fields.Id(request.scope(), request.key());
  command.request_hash = fields.RequestHash(request.request_hash());
  command.claim_token = fields.ClaimToken(request.claim_token());
  command.policy_name = fields.PolicyName(request.policy());
  command.lease = fields.Lease(request);
  fields.Wait(request);
  command.checkpoint = fields.Checkpoint(request);
  command.resolve_in_doubt = request.resolve_in_doubt();
  command.renew_fencing_token =
      fields.NotNegative("renew_fencing_token", request.renew_fencing_token());
  command.checkpoint_number =
      fields.NotNegative("checkpoint_number", request.checkpoint_number());
  command.owner = fields.Owner(request.owner());
  if (!fields.status().ok()) return fields.status();
  return command;
}

absl::Duration WaitOf(const v1::ClaimRequest& request) {
  return std::min(FromProto(request.wait()),
                  absl::FromChrono(limits::kWaitMax));
}

absl::StatusOr<FinalizeCommand> ValidateFinalize(
    const v1::FinalizeRequest& request, std::size_t body_bytes_max) {
  FieldReader fields;
  FinalizeCommand command;
  command.id = fields.Id(request.scope(), request.key());
  command.claim_token = fields.ClaimToken(request.claim_token());
  fields.CheckResponse(request);
  if (!fields.status().ok()) return fields.status();

  const std::size_t header_bytes = HeaderBytes(request.response());
  const auto header_count =
      static_cast<std::size_t>(request.response().headers_size());
  command.response = AsSent(request.response(), header_bytes);
  command.response_digest = ResponseDigest(command.response);
  if (command.response.body.size() > body_bytes_max) {
    command.response.body = {};
    command.response.body_omitted = true;
  }
  if (header_count > limits::kHeadersMax ||
      header_bytes > limits::kHeaderBytesMax) {
    command.response.headers = {};
    command.response.headers_omitted = true;
  }
  return command;
}

absl::StatusOr<LookupCommand> ValidateLookup(const v1::LookupRequest& request) {
  FieldReader fields;
  LookupCommand command{.id = fields.Id(request.scope(), request.key())};
  if (!fields.status().ok()) return fields.status();
  return command;
}

absl::StatusOr<ReleaseCommand> ValidateRelease(
    const v1::ReleaseRequest& request) {
  FieldReader fields;
  ReleaseCommand command;
  command.id = fields.Id(request.scope(), request.key());
  command.claim_token = fields.ClaimToken(request.claim_token());
  command.disposition = fields.DispositionOf(request.disposition());
  if (!fields.status().ok()) return fields.status();
  return command;
}

absl::StatusOr<std::chrono::nanoseconds> ValidateTimeout(
    const v1::Command& command) {
  FieldReader fields;
  const std::chrono::nanoseconds timeout = fields.Timeout(command);
  if (!fields.status().ok()) return fields.status();
  return timeout;
}

absl::Status UnparsableMessage() {
  return MakeError(Reason::kInternal,
                   "the message can't be parsed; strings must be UTF-8");
}

}  // namespace idempotency
