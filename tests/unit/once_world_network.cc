// The network of the simulated world, and the coordinator at its other end.
#include <memory>
#include <type_traits>
#include <utility>

#include "client/status.h"
#include "server/core/errors.h"
#include "server/core/policies.h"
#include "server/rpc/conversion.h"
#include "server/rpc/status.h"
#include "server/rpc/validation.h"
#include "tests/unit/once_world.h"

namespace idempotency {
namespace {

constexpr std::chrono::milliseconds kPollPause{50};
constexpr std::size_t kBodyBytesMax = std::size_t{1} << 20;

absl::Status AsTheClientSeesIt(const absl::Status& status) {
  return status.ok() ? status
                     : ToAbslStatus(ToErrorReply(status, 0.5).status());
}

}  // namespace

template <typename Request, typename Response>
void OnceWorld::Send(Client& client, const Request& request,
                     Milliseconds timeout,
                     std::function<void(absl::StatusOr<Response>)> answered) {
  const TimePoint sent = now_;
  const auto open = std::make_shared<bool>(true);
  const auto answer = [this, open, answered,
                       sent](absl::StatusOr<Response> response) {
    if (!std::exchange(*open, false)) return;
    if constexpr (std::is_same_v<Response, v1::ClaimResponse>) {
      if (bug_ == OnceBug::kPermissionFromTheAnswer && response.ok() &&
          response->has_claimed()) {
        auto* const lease = response->mutable_claimed()->mutable_lease();
        const auto longer = std::chrono::seconds(lease->seconds()) +
                            std::chrono::nanoseconds(lease->nanos()) +
                            (now_ - sent);
        lease->set_seconds(longer.count() / 1'000'000'000);
        lease->set_nanos(
            static_cast<std::int32_t>(longer.count() % 1'000'000'000));
      }
    }
    answered(std::move(response));
  };
  const auto answer_later = [this, &client, answer](
                                Milliseconds delay,
                                absl::StatusOr<Response> response) {
    Later(client, delay,
          [answer, response = std::move(response)] { answer(response); });
  };
  if (!calm_ && Chance(4)) {
    answer_later(AnyDelay(), AsTheClientSeesIt(MakeError(
                                 Reason::kStoreUnavailable, "not reached")));
    return;
  }
  answer_later(timeout, absl::DeadlineExceededError("no answer in time"));
  TimePoint wait_ends = now_;
  if constexpr (std::is_same_v<Request, v1::ClaimRequest>) {
    wait_ends +=
        absl::ToChronoNanoseconds(absl::Seconds(request.wait().seconds()) +
                                  absl::Nanoseconds(request.wait().nanos()));
    // A waiter whose caller has gone may be noticed late.
    if (!Chance(20)) wait_ends = std::min(wait_ends, now_ + timeout);
  }
  const int arrivals = calm_ ? 1 : Chance(8) ? 0 : Chance(10) ? 2 : 1;
  for (int i = 0; i < arrivals; ++i) {
    At(now_ + AnyDelay(), [this, request, wait_ends, answer_later] {
      Arrive(request, wait_ends,
             [this, answer_later](absl::StatusOr<Response> response) {
               if (!calm_ && Chance(8)) return;
               answer_later(AnyDelay(), std::move(response));
             });
    });
  }
}

// A claim with a wait is decided again until another owner has ended.
template <typename Request, typename Respond>
void OnceWorld::Arrive(const Request& request, TimePoint wait_ends,
                       Respond respond) {
  auto response = Decide(request);
  if constexpr (std::is_same_v<Request, v1::ClaimRequest>) {
    CheckPermissions({request.scope(), request.key()});
    if (response.ok() && response->has_in_progress() &&
        now_ + kPollPause <= wait_ends) {
      At(now_ + kPollPause, [this, request, wait_ends, respond] {
        Arrive(request, wait_ends, respond);
      });
      return;
    }
  }
  respond(std::move(response));
}

absl::StatusOr<v1::ClaimResponse> OnceWorld::Decide(
    const v1::ClaimRequest& request) {
  absl::StatusOr<ClaimCommand> command = ValidateClaim(request);
  if (!command.ok()) return AsTheClientSeesIt(command.status());
  command->policy =
      ResolvePolicy(database_.rules(), request.scope(), request.policy());
  const ClaimCommand* const batch[] = {&*command};
  ClaimAnswer answer = std::move(store_.ClaimBatch(batch).front());
  if (!answer.outcome.ok()) return AsTheClientSeesIt(answer.outcome.status());
  v1::ClaimResponse response;
  const absl::Status status =
      ToProto(*std::move(answer.outcome),
              {.id = command->id, .random = Fraction()}, response);
  if (!status.ok()) return AsTheClientSeesIt(status);
  return response;
}

absl::StatusOr<v1::FinalizeResponse> OnceWorld::Decide(
    const v1::FinalizeRequest& request) {
  const absl::StatusOr<FinalizeCommand> command =
      ValidateFinalize(request, kBodyBytesMax);
  if (!command.ok()) return AsTheClientSeesIt(command.status());
  const FinalizeCommand* const batch[] = {&*command};
  const auto outcome = std::move(store_.FinalizeBatch(batch).front());
  ++counts_[outcome.ok() ? "finalized" : "finalize refused"];
  if (!outcome.ok()) return AsTheClientSeesIt(outcome.status());
  v1::FinalizeResponse response;
  ToProto(*outcome, response);
  return response;
}

absl::StatusOr<v1::LookupResponse> OnceWorld::Decide(
    const v1::LookupRequest& request) {
  const absl::StatusOr<LookupCommand> command = ValidateLookup(request);
  if (!command.ok()) return AsTheClientSeesIt(command.status());
  const LookupCommand* const batch[] = {&*command};
  auto outcome = std::move(store_.LookupBatch(batch).front());
  if (!outcome.ok()) return AsTheClientSeesIt(outcome.status());
  v1::LookupResponse response;
  const absl::Status status = ToProto(
      *std::move(outcome), {.id = command->id, .random = Fraction()}, response);
  if (!status.ok()) return AsTheClientSeesIt(status);
  return response;
}

absl::StatusOr<v1::ReleaseResponse> OnceWorld::Decide(
    const v1::ReleaseRequest& request) {
  const absl::StatusOr<ReleaseCommand> command = ValidateRelease(request);
  if (!command.ok()) return AsTheClientSeesIt(command.status());
  const ReleaseCommand* const batch[] = {&*command};
  const auto outcome = std::move(store_.ReleaseBatch(batch).front());
  if (!outcome.ok()) return AsTheClientSeesIt(outcome.status());
  v1::ReleaseResponse response;
  ToProto(*outcome, response);
  return response;
}

template void OnceWorld::Send<v1::ClaimRequest, v1::ClaimResponse>(
    Client&, const v1::ClaimRequest&, Milliseconds,
    std::function<void(absl::StatusOr<v1::ClaimResponse>)>);
template void OnceWorld::Send<v1::FinalizeRequest, v1::FinalizeResponse>(
    Client&, const v1::FinalizeRequest&, Milliseconds,
    std::function<void(absl::StatusOr<v1::FinalizeResponse>)>);
template void OnceWorld::Send<v1::LookupRequest, v1::LookupResponse>(
    Client&, const v1::LookupRequest&, Milliseconds,
    std::function<void(absl::StatusOr<v1::LookupResponse>)>);
template void OnceWorld::Send<v1::ReleaseRequest, v1::ReleaseResponse>(
    Client&, const v1::ReleaseRequest&, Milliseconds,
    std::function<void(absl::StatusOr<v1::ReleaseResponse>)>);

}  // namespace idempotency
