// Input: a serialised idempotency.v1.BulkRequest. Its commands are checked,
// decided one after the other over records in memory, and answered, each a
// little later than the one before: by its id in milliseconds, at most an hour.
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "server/core/errors.h"
#include "server/core/header_codec.h"
#include "server/core/limits.h"
#include "server/core/policies.h"
#include "server/core/transitions.h"
#include "server/rpc/conversion.h"
#include "server/rpc/status.h"
#include "server/rpc/validation.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/record_rules.h"

namespace idempotency {
namespace {

using fuzz::Require;

constexpr std::size_t kBodyBytesMax = 64;
constexpr std::uint64_t kStepMax = 3'600'000;

const FleetRules& Rules() {
  static const FleetRules rules = [] {
    const Policy by_default{.name = "default",
                            .lease = absl::Seconds(30),
                            .max_lease = absl::Hours(1),
                            .retention = absl::Hours(24)};
    FleetRules made;
    made.policies["default"] = by_default;
    Policy payment = by_default;
    payment.name = "payment";
    payment.on_abandoned = OnAbandoned::kHold;
    payment.on_server_error = OnServerError::kHold;
    made.policies["payment"] = payment;
    Policy task = by_default;
    task.name = "task";
    task.retention.reset();
    task.on_server_error = OnServerError::kRecord;
    made.policies["task"] = task;
    made.scopes["payments"] = {.policy = "payment", .enforced = true};
    return made;
  }();
  return rules;
}

void CheckId(const RecordId& id) {
  Require(!id.scope.empty() && id.scope.size() <= limits::kScopeCharsMax,
          "a scope has 1 to 128 characters");
  Require(id.scope.front() != '/' && id.scope.back() != '/' &&
              id.scope.find("//") == std::string::npos,
          "the segments of a scope are not empty");
  Require(!id.key.empty() && id.key.size() <= limits::kKeyBytesMax,
          "a key has 1 to 255 bytes");
  Require(std::none_of(id.key.begin(), id.key.end(),
                       [](unsigned char c) { return c < ' ' || c == 0x7f; }),
          "a key has no control character");
}

void CheckRefusal(const absl::Status& refusal) {
  Require(ReasonOf(refusal) == Reason::kInvalidField &&
              absl::IsInvalidArgument(refusal),
          "what is refused is INVALID_FIELD");
  Require(!FieldOf(refusal).empty(), "a refusal names its field");
}

class World {
 public:
  void Take(const v1::Command& command) {
    now_ += absl::Milliseconds(command.id() % kStepMax);
    const auto timeout = ValidateTimeout(command);
    if (!timeout.ok()) return CheckRefusal(timeout.status());
    Require(timeout->count() > 0, "a caller waits for more than no time");
    switch (command.command_case()) {
      case v1::Command::kClaim:
        return Answer(Claim(command.claim()));
      case v1::Command::kFinalize:
        return Answer(Finalize(command.finalize()));
      case v1::Command::kLookup:
        return Answer(Lookup(command.lookup()));
      case v1::Command::kRelease:
        return Answer(Release(command.release()));
      case v1::Command::COMMAND_NOT_SET:
        return;
    }
  }

 private:
  absl::Status Claim(const v1::ClaimRequest& request) {
    absl::StatusOr<ClaimCommand> command = ValidateClaim(request);
    if (!command.ok()) return Refused(command.status());
    const absl::Duration wait = WaitOf(request);
    Require(wait >= absl::ZeroDuration() &&
                wait <= absl::FromChrono(limits::kWaitMax),
            "nobody waits longer than kWaitMax");
    Require(command->request_hash == request.request_hash() &&
                command->id.key == request.key() &&
                command->id.scope == request.scope() &&
                FormatUuid(command->claim_token).size() ==
                    request.claim_token().size(),
            "what is decided on is what was asked");
    command->policy =
        ResolvePolicy(Rules(), command->id.scope, command->policy_name);

    const Record* const before = Find(command->id);
    const std::optional<v1::Response> recorded = RecordedResponse(before);
    Decision<ClaimOutcome> decision = DecideClaim(before, *command, now_);
    fuzz::CheckClaimed(before, *command, decision.answer, now_);
    Write(command->id, std::move(decision.write));
    if (!decision.answer.ok()) return decision.answer.status();
    v1::ClaimResponse answer;
    Require(ToProto(*std::move(decision.answer), ContextOf(command->id), answer)
                .ok(),
            "every outcome can be told");
    Require(answer.outcome_case() != v1::ClaimResponse::OUTCOME_NOT_SET,
            "an answer has an outcome");
    if (answer.has_replay()) {
      Require(recorded.has_value() &&
                  answer.replay().response().SerializeAsString() ==
                      recorded->SerializeAsString(),
              "a replay is what was recorded, byte by byte");
    }
    return CheckReadable(answer);
  }

  absl::Status Finalize(const v1::FinalizeRequest& request) {
    absl::StatusOr<FinalizeCommand> command =
        ValidateFinalize(request, kBodyBytesMax);
    if (!command.ok()) return Refused(command.status());
    CheckId(command->id);
    CheckSent(request.response(), *command);
    auto decision = DecideFinalize(Find(command->id), *command, now_);
    Write(command->id, std::move(decision.write));
    if (!decision.answer.ok()) return decision.answer.status();
    v1::FinalizeResponse answer;
    ToProto(*decision.answer, answer);
    Require(answer.result() != v1::FinalizeResponse::RESULT_UNSPECIFIED,
            "a result is told");
    return CheckReadable(answer);
  }

  absl::Status Lookup(const v1::LookupRequest& request) {
    absl::StatusOr<LookupCommand> command = ValidateLookup(request);
    if (!command.ok()) return Refused(command.status());
    auto found = DecideLookup(Find(command->id), now_);
    if (!found.ok()) return found.status();
    v1::LookupResponse answer;
    Require(ToProto(*std::move(found), ContextOf(command->id), answer).ok(),
            "every record can be told");
    return CheckReadable(answer);
  }

  absl::Status Release(const v1::ReleaseRequest& request) {
    absl::StatusOr<ReleaseCommand> command = ValidateRelease(request);
    if (!command.ok()) return Refused(command.status());
    auto decision = DecideRelease(Find(command->id), *command, now_);
    Write(command->id, std::move(decision.write));
    if (!decision.answer.ok()) return decision.answer.status();
    v1::ReleaseResponse answer;
    ToProto(*decision.answer, answer);
    return CheckReadable(answer);
  }

  // What is kept of a response is what was sent, but for what is too long.
  static void CheckSent(const v1::Response& sent,
                        const FinalizeCommand& command) {
    const Response& kept = command.response;
    Require(kept.body_omitted || kept.body == sent.body(),
            "a body that is kept is the one that was sent");
    Require(kept.body.size() <= kBodyBytesMax, "no longer body is kept");
    const auto headers = DecodeHeaders(kept.headers);
    Require(headers.has_value(), "headers that are kept can be read");
    if (kept.headers_omitted) {
      return Require(headers->empty(), "headers are kept whole or not at all");
    }
    Require(std::equal(headers->begin(), headers->end(), sent.headers().begin(),
                       sent.headers().end(),
                       [](const HeaderView& a, const v1::Header& b) {
                         return a.name == b.name() && a.value == b.value();
                       }),
            "headers are kept in order, with duplicates");
  }

  void Write(const RecordId& id, std::optional<Record> next) {
    CheckId(id);
    if (!next.has_value()) return;
    fuzz::CheckWrite(Find(id), *next, now_);
    records_[id] = *std::move(next);
  }

  const Record* Find(const RecordId& id) const {
    const auto found = records_.find(id);
    return found == records_.end() ? nullptr : &found->second;
  }

  // As a Lookup tells it; nothing unless it is final.
  std::optional<v1::Response> RecordedResponse(const Record* record) const {
    if (record == nullptr || record->state != RecordState::kFinal) return {};
    v1::LookupResponse answer;
    Require(ToProto(LookupOutcome{.record = *record}, {}, answer).ok(),
            "every record can be told");
    return answer.record().response();
  }

  static AnswerContext ContextOf(const RecordId& id) { return {.id = id}; }

  static absl::Status Refused(const absl::Status& refusal) {
    CheckRefusal(refusal);
    return refusal;
  }

  template <typename Message>
  static absl::Status CheckReadable(const Message& answer) {
    Message read;
    Require(read.ParseFromString(answer.SerializeAsString()),
            "the caller can read the answer");
    return absl::OkStatus();
  }

  static void Answer(const absl::Status& status) {
    if (status.ok()) return;
    constexpr double kMiddle = 0.5;
    const grpc::Status told = ToErrorReply(status, kMiddle).status();
    Require(!told.ok() && !told.error_details().empty(),
            "an error is told as one, with details");
    Require(HasReason(status), "an error has a reason");
  }

  absl::Time now_ = absl::FromUnixSeconds(1'764'525'000);
  std::map<RecordId, Record> records_;
};

}  // namespace
}  // namespace idempotency

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  // Nearly every input that is no message would be a line of the report.
  google::protobuf::SetLogHandler(nullptr);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  idempotency::v1::BulkRequest request;
  if (!request.ParseFromArray(data, static_cast<int>(size))) return -1;
  idempotency::World world;
  for (const auto& command : request.commands()) world.Take(command);
  return 0;
}
