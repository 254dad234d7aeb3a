#include "client/transaction/once_in_transaction.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/environment.h"
#include "client/status.h"
#include "server/core/clock.h"
#include "server/core/errors.h"
#include "server/core/limits.h"
#include "server/core/metrics.h"
#include "server/core/policies.h"
#include "server/core/store.h"
#include "server/rpc/conversion.h"
#include "server/rpc/random.h"
#include "server/rpc/status.h"
#include "server/rpc/validation.h"
#include "server/store/postgres/transaction_store.h"

namespace idempotency {
namespace {

// A changed policy reaches everybody within 5 s.
constexpr std::chrono::seconds kRulesAgeMax{2};

// As the service says it. What is neither an outcome nor a decision has undone
// the whole transaction, or will: there is no unknown outcome before a commit.
absl::Status ToCaller(const absl::Status& error) {
  absl::Status decided = error;
  if (!HasReason(error)) {
    switch (error.code()) {
      case absl::StatusCode::kUnknown:
      case absl::StatusCode::kAborted:
      case absl::StatusCode::kUnavailable:
        decided = MakeError(
            Reason::kStoreUnavailable,
            absl::StrCat(std::string(error.message()),
                         "; nothing is kept: run all of it again in a new "
                         "transaction"));
        break;
      // Of no use until somebody mends it, as the message says.
      case absl::StatusCode::kFailedPrecondition:
        decided =
            MakeError(Reason::kStoreUnavailable, std::string(error.message()));
        break;
      default:
        decided = MakeError(Reason::kInternal, std::string(error.message()));
    }
  }
  return ToAbslStatus(ToErrorReply(decided, SystemRandom()).details);
}

bool IsFatal(const absl::Status& error) {
  return error.code() == absl::StatusCode::kUnavailable ||
         error.code() == absl::StatusCode::kInternal ||
         error.code() == absl::StatusCode::kDataLoss;
}

// Says so as the service does, and aborts the transaction if the error has
// ended it.
absl::Status Refused(pqxx::dbtransaction& transaction,
                     const absl::Status& error) {
  absl::Status refused = ToCaller(error);
  if (IsFatal(refused)) Abort(transaction);
  return refused;
}

// gRPC would refuse to send it.
absl::Status CheckUtf8(std::string_view field, const std::string& text) {
  if (IsUtf8(text)) return absl::OkStatus();
  return InvalidField(field, "is not UTF-8");
}

absl::StatusOr<ClaimCommand> ReadClaim(const v1::ClaimRequest& request) {
  for (const absl::Status& status :
       {CheckUtf8("scope", request.scope()), CheckUtf8("key", request.key()),
        CheckUtf8("policy", request.policy()),
        CheckUtf8("owner", request.owner())}) {
    if (!status.ok()) return status;
  }
  return ValidateClaim(request);
}

absl::StatusOr<FinalizeCommand> ReadFinalize(const v1::FinalizeRequest& request,
                                             std::size_t body_bytes_max) {
  for (const absl::Status& status :
       {CheckUtf8("scope", request.scope()), CheckUtf8("key", request.key())}) {
    if (!status.ok()) return status;
  }
  for (const v1::Header& header : request.response().headers()) {
    const absl::Status status = CheckUtf8("response.headers", header.name());
    if (!status.ok()) return status;
  }
  return ValidateFinalize(request, body_bytes_max);
}

v1::ClaimRequest ClaimOf(const Operation& operation) {
  v1::ClaimRequest claim;
  claim.set_scope(operation.scope);
  claim.set_key(operation.key);
  claim.set_request_hash(operation.request_hash);
  claim.set_claim_token(NewClaimToken());
  claim.set_policy(operation.policy);
  claim.set_owner(operation.owner);
  if (operation.lease.has_value()) {
    const auto milliseconds = operation.lease->count();
    claim.mutable_lease()->set_seconds(milliseconds / 1000);
    claim.mutable_lease()->set_nanos(
        static_cast<std::int32_t>(milliseconds % 1000 * 1'000'000));
  }
  return claim;
}

v1::FinalizeRequest FinalizeOf(const v1::ClaimRequest& claim,
                               v1::Response response) {
  v1::FinalizeRequest finalize;
  finalize.set_scope(claim.scope());
  finalize.set_key(claim.key());
  finalize.set_claim_token(claim.claim_token());
  *finalize.mutable_response() = std::move(response);
  return finalize;
}

// What a claim that was not granted means.
RunResult NotGranted(v1::ClaimResponse claim) {
  switch (claim.outcome_case()) {
    case v1::ClaimResponse::kReplay:
      return {
          .outcome = RunOutcome::kReplayed,
          .response = std::move(*claim.mutable_replay()->mutable_response())};
    case v1::ClaimResponse::kInProgress: {
      const auto& pause = claim.in_progress().retry_after();
      const auto retry_after = std::chrono::seconds(pause.seconds()) +
                               std::chrono::nanoseconds(pause.nanos());
      return {.outcome = RunOutcome::kInProgress,
              .status = InProgressStatus(retry_after),
              .retry_after = retry_after};
    }
    case v1::ClaimResponse::kMismatch:
      return {.outcome = RunOutcome::kMismatch,
              .status = absl::FailedPreconditionError(
                  "the key was used for a different request")};
    default:
      return {.outcome = RunOutcome::kInDoubt,
              .status = absl::FailedPreconditionError(
                  "an earlier attempt was abandoned with unknown outcome; find "
                  "out what it did")};
  }
}

RunResult NotKept(pqxx::dbtransaction& transaction, absl::Status why,
                  v1::Response response = {}) {
  Abort(transaction);
  return {.outcome = RunOutcome::kNothingHappened,
          .response = std::move(response),
          .status = std::move(why)};
}

}  // namespace

struct OnceInTransaction::Parts {
  explicit Parts(const OnceInTransactionOptions& given) : options(given) {}

  using Rules = std::shared_ptr<const FleetRules>;

  bool HasRules() {
    MutexLock lock(mutex);
    return rules != nullptr;
  }

  // Null, or what was read a moment ago, here or elsewhere.
  Rules KnownRules() {
    MutexLock lock(mutex);
    const bool young = rules != nullptr && clock.Now() - seen_at < kRulesAgeMax;
    return young ? rules : nullptr;
  }

  absl::StatusOr<Rules> ReadRules(pqxx::dbtransaction& transaction) {
    const SteadyTime asked_at = clock.Now();
    absl::StatusOr<RulesWithin> read = ReadRulesWithin(transaction);
    if (!read.ok()) return read.status();
    if (!options.downstream_namespace.empty()) {
      const std::optional<Uuid> given = ParseUuid(options.downstream_namespace);
      if (!given.has_value() || given->is_nil()) {
        return absl::FailedPreconditionError(
            "downstream_namespace: want a UUID in the 8-4-4-4-12 form");
      }
      read->rules.downstream_namespace = *given;
    }
    const Rules fresh =
        std::make_shared<const FleetRules>(std::move(read->rules));
    const SteadyTime seen = asked_at - absl::ToChronoNanoseconds(read->age_max);
    MutexLock lock(mutex);
    if (rules != nullptr && read->schema != schema) {
      return absl::FailedPreconditionError(
          absl::StrCat("one OnceInTransaction for each database and schema: "
                       "this one is of ",
                       schema, ", not of ", read->schema));
    }
    if (rules == nullptr || seen > seen_at) {
      schema = read->schema;
      rules = fresh;
      seen_at = seen;
    }
    return fresh;
  }

  absl::StatusOr<Rules> RulesFor(pqxx::dbtransaction& transaction) {
    Rules known = KnownRules();
    if (known != nullptr) return known;
    return ReadRules(transaction);
  }

  // The rules, with what they say to the claim filled in. A policy that they do
  // not know may be new.
  absl::StatusOr<Rules> Resolve(pqxx::dbtransaction& transaction,
                                ClaimCommand& command) {
    absl::StatusOr<Rules> current = RulesFor(transaction);
    if (!current.ok()) return current;
    command.policy =
        ResolvePolicy(**current, command.id.scope, command.policy_name);
    if (command.policy.ok() ||
        ReasonOf(command.policy.status()) != Reason::kUnknownPolicy) {
      return current;
    }
    current = ReadRules(transaction);
    if (!current.ok()) return current;
    command.policy =
        ResolvePolicy(**current, command.id.scope, command.policy_name);
    return current;
  }

  absl::StatusOr<std::unique_ptr<Store>> StoreIn(
      pqxx::dbtransaction& transaction) {
    return MakeTransactionStore(
        transaction, options.pooled ? nullptr : &prepared, clock, metrics);
  }

  const OnceInTransactionOptions options;
  const SystemClock clock;
  PreparedStatements prepared;
  Metrics metrics;  // What every store counts; nobody reads these.

  Mutex mutex;
  Rules rules ABSL_GUARDED_BY(mutex);
  SteadyTime seen_at ABSL_GUARDED_BY(mutex);
  std::string schema ABSL_GUARDED_BY(mutex);
};

OnceInTransaction::OnceInTransaction(const OnceInTransactionOptions& options)
    : parts_(std::make_unique<Parts>(options)) {}

OnceInTransaction::~OnceInTransaction() = default;

absl::StatusOr<v1::ClaimResponse> OnceInTransaction::Claim(
    pqxx::dbtransaction& transaction, const v1::ClaimRequest& request) {
  absl::StatusOr<ClaimCommand> command = ReadClaim(request);
  if (!command.ok()) return ToCaller(command.status());
  const absl::StatusOr<Parts::Rules> rules =
      parts_->Resolve(transaction, *command);
  if (!rules.ok()) return Refused(transaction, rules.status());
  const auto store = parts_->StoreIn(transaction);
  if (!store.ok()) return Refused(transaction, store.status());
  const ClaimCommand* const claims[] = {&*command};
  absl::StatusOr<ClaimOutcome> outcome =
      (*store)->ClaimBatch(claims).front().outcome;
  if (!outcome.ok()) return Refused(transaction, outcome.status());
  v1::ClaimResponse response;
  const absl::Status written =
      ToProto(*std::move(outcome),
              {.id = command->id,
               .downstream_namespace = (*rules)->downstream_namespace,
               .random = SystemRandom()},
              response);
  if (!written.ok()) return Refused(transaction, written);
  return response;
}

absl::StatusOr<v1::FinalizeResponse> OnceInTransaction::Finalize(
    pqxx::dbtransaction& transaction, const v1::FinalizeRequest& request) {
  const absl::StatusOr<FinalizeCommand> command = ReadFinalize(
      request, std::min(parts_->options.body_bytes_max, limits::kBodyBytesMax));
  if (!command.ok()) return ToCaller(command.status());
  // For the schema's sake only: a claim may have been made elsewhere.
  if (!parts_->HasRules()) {
    const absl::Status read = parts_->ReadRules(transaction).status();
    if (!read.ok()) return Refused(transaction, read);
  }
  const auto store = parts_->StoreIn(transaction);
  if (!store.ok()) return Refused(transaction, store.status());
  const FinalizeCommand* const finalizes[] = {&*command};
  const absl::StatusOr<FinalizeOutcome> outcome =
      (*store)->FinalizeBatch(finalizes).front();
  if (!outcome.ok()) return Refused(transaction, outcome.status());
  v1::FinalizeResponse response;
  ToProto(*outcome, response);
  return response;
}

RunResult OnceInTransaction::Run(pqxx::dbtransaction& transaction,
                                 const Operation& operation,
                                 const Function& function) {
  if (function == nullptr) {
    return {.outcome = RunOutcome::kInvalid,
            .status = absl::InvalidArgumentError("there is no function")};
  }
  const v1::ClaimRequest claim = ClaimOf(operation);
  absl::StatusOr<v1::ClaimResponse> claimed = Claim(transaction, claim);
  if (!claimed.ok()) {
    const bool invalid =
        claimed.status().code() == absl::StatusCode::kInvalidArgument;
    return {
        .outcome = invalid ? RunOutcome::kInvalid : RunOutcome::kUnavailable,
        .status = claimed.status()};
  }
  if (!claimed->has_claimed()) return NotGranted(*std::move(claimed));

  absl::StatusOr<v1::Response> answer;
  try {
    answer = function(claimed->claimed());
  } catch (...) {
    Abort(transaction);
    throw;
  }
  if (!answer.ok()) return NotKept(transaction, answer.status());
  const absl::StatusOr<v1::FinalizeResponse> finalized =
      Finalize(transaction, FinalizeOf(claim, *answer));
  if (!finalized.ok()) return NotKept(transaction, finalized.status());
  if (finalized->result() == v1::FinalizeResponse::RESULT_RELEASED ||
      finalized->result() == v1::FinalizeResponse::RESULT_IN_DOUBT) {
    return NotKept(transaction,
                   absl::FailedPreconditionError(
                       "the policy does not record a status of 500 and above"),
                   *std::move(answer));
  }
  return {.outcome = RunOutcome::kExecuted,
          .response = *std::move(answer),
          .recorded = true};
}

}  // namespace idempotency
