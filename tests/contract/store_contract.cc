#include "tests/contract/store_contract.h"

#include "server/core/digest.h"

namespace idempotency {

void StoreContract::SetUp() {
  database_ = GetParam().make();
  ASSERT_NE(database_, nullptr);
  store_ = database_->MakeStore();
  other_store_ = database_->MakeStore();
}

SweepReport StoreContract::Sweep(int limit) {
  const auto report = database_->MakeSweeper()->SweepRecords(limit);
  EXPECT_TRUE(report.ok()) << report.status();
  return report.ok() ? *report : SweepReport{};
}

Uuid StoreContract::Token(std::uint32_t number) {
  Uuid token;
  token.bytes.fill(0xc0);
  for (int i = 0; i < 4; ++i) {
    token.bytes[static_cast<std::size_t>(i)] =
        static_cast<std::uint8_t>(number >> (8 * i));
  }
  return token;
}

Policy StoreContract::TakeOver() {
  return {.name = "take-over",
          .lease = kLease,
          .max_lease = absl::Hours(1),
          .retention = kRetention};
}

Policy StoreContract::Hold() {
  Policy policy = TakeOver();
  policy.name = "hold";
  policy.on_abandoned = OnAbandoned::kHold;
  policy.on_server_error = OnServerError::kHold;
  return policy;
}

Policy StoreContract::HoldServerErrors() {
  Policy policy = TakeOver();
  policy.name = "hold-5xx";
  policy.on_server_error = OnServerError::kHold;
  return policy;
}

Policy StoreContract::Permanent() {
  Policy policy = TakeOver();
  policy.name = "permanent";
  policy.retention.reset();
  return policy;
}

ClaimCommand StoreContract::ClaimBy(std::uint32_t token, const Policy& policy) {
  ClaimCommand command;
  command.id = Id();
  command.request_hash = std::string(32, '\x8a');
  command.claim_token = Token(token);
  command.policy = policy;
  command.owner = "pod-" + std::to_string(token);
  return command;
}

ClaimCommand StoreContract::ClaimBy(std::uint32_t token, const RecordId& id) {
  ClaimCommand command = ClaimBy(token);
  command.id = id;
  return command;
}

FinalizeCommand StoreContract::FinalizeBy(std::uint32_t token,
                                          const Response& response) {
  return {.id = Id(),
          .claim_token = Token(token),
          .response = response,
          .response_digest = ResponseDigest(response)};
}

ReleaseCommand StoreContract::ReleaseBy(std::uint32_t token, Disposition how) {
  return {.id = Id(), .claim_token = Token(token), .disposition = how};
}

Response StoreContract::Answer(std::int32_t status_code,
                               const std::string& body) {
  return {.status_code = status_code, .body = body};
}

ClaimAnswer StoreContract::SendOne(Store& store, const ClaimCommand& command) {
  const ClaimCommand* const batch[] = {&command};
  std::vector<ClaimAnswer> answers = store.ClaimBatch(batch);
  if (answers.size() != 1) {
    return {.outcome = absl::InternalError("not one answer")};
  }
  return std::move(answers[0]);
}

absl::StatusOr<FinalizeOutcome> StoreContract::SendOne(
    Store& store, const FinalizeCommand& command) {
  const FinalizeCommand* const batch[] = {&command};
  const auto answers = store.FinalizeBatch(batch);
  if (answers.size() != 1) return absl::InternalError("not one answer");
  return answers[0];
}

absl::StatusOr<ReleaseOutcome> StoreContract::SendOne(
    Store& store, const ReleaseCommand& command) {
  const ReleaseCommand* const batch[] = {&command};
  const auto answers = store.ReleaseBatch(batch);
  if (answers.size() != 1) return absl::InternalError("not one answer");
  return answers[0];
}

absl::StatusOr<LookupOutcome> StoreContract::SendOne(
    Store& store, const LookupCommand& command) {
  const LookupCommand* const batch[] = {&command};
  const auto answers = store.LookupBatch(batch);
  if (answers.size() != 1) return absl::InternalError("not one answer");
  return answers[0];
}

Claimed StoreContract::MustClaim(const ClaimCommand& command) {
  const auto answer = Claim(command);
  EXPECT_TRUE(Is<Claimed>(answer));
  return Is<Claimed>(answer) ? std::get<Claimed>(*answer) : Claimed{};
}

FinalizeOutcome StoreContract::MustFinalize(std::uint32_t token,
                                            const Response& response) {
  const auto answer = Finalize(token, response);
  EXPECT_TRUE(answer.ok()) << answer.status();
  return answer.ok() ? *answer : FinalizeOutcome{};
}

Record StoreContract::MustLookup(const RecordId& id) {
  const auto answer = Lookup(id);
  EXPECT_TRUE(answer.ok()) << answer.status();
  return answer.ok() ? answer->record : Record{};
}

testing::AssertionResult IsNearly(absl::Duration left, absl::Duration full) {
  if (left <= full && left > full - absl::Seconds(20)) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure()
         << absl::FormatDuration(left) << " is not nearly "
         << absl::FormatDuration(full);
}

}  // namespace idempotency
