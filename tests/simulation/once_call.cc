// The calls of operations: one attempt after the other, as AsyncClient makes
// them, with the client's own decisions about retries.
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "client/attempt.h"
#include "client/retry.h"
#include "client/status.h"
#include "server/rpc/conversion.h"
#include "server/rpc/status.h"
#include "server/rpc/wire_calls.h"
#include "tests/simulation/once_callers.h"

namespace idempotency {

template <typename Wire>
class OnceCallers::Call : public std::enable_shared_from_this<Call<Wire>> {
 public:
  using Request = typename Wire::Request;
  using Response = typename Wire::Response;
  using Outcome = typename Wire::Outcome;
  using Command = typename decltype(Wire::Validate(
      std::declval<Request>(), std::declval<ServiceOptions>()))::value_type;

  Call(OnceCallers& callers, Client& client, const Request& request,
       Milliseconds timeout,
       std::function<void(absl::StatusOr<Response>)> answered)
      : callers_(callers),
        client_(client),
        request_(request),
        began_(callers.parts_.scheduler.Now()),
        deadline_(began_ + timeout),
        answered_(std::move(answered)),
        retry_(RetryOptions(), deadline_),
        first_replica_(
            callers.parts_.random.Below(callers.parts_.network.replicas())) {}

  void Start() {
    ++callers_.calls_;
    callers_.Later(client_, Left(), [self = this->shared_from_this()] {
      const absl::Status late =
          absl::DeadlineExceededError("no answer in time");
      self->Failed(self->attempt_, late,
                   internal::FailureOf(late, kWrites, true));
    });
    Send();
  }

 private:
  static constexpr bool kWrites = Wire::kKind != CallKind::kLookup;

  Microseconds Left() const {
    return std::chrono::ceil<Microseconds>(deadline_ -
                                           callers_.parts_.scheduler.Now());
  }

  void Send() {
    const absl::StatusOr<Command> command =
        Wire::Validate(request_, ServiceOptions());
    const auto self = this->shared_from_this();
    if (!command.ok()) return Heard(attempt_, command.status());
    Patience patience = {.listens = Left(),
                         .waits = std::chrono::duration_cast<Microseconds>(
                             Wire::Wait(request_))};
    // A caller that has gone may be noticed late.
    if (!callers_.parts_.random.Chance(20)) patience.gone_at = deadline_;
    const auto in_process = [self, attempt = attempt_](auto event) {
      self->callers_.Later(
          self->client_, Microseconds(0),
          [self, attempt, event = std::move(event)] { event(*self, attempt); });
    };
    callers_.parts_.network.Send<Command, Outcome>(
        (first_replica_ + static_cast<std::size_t>(attempt_)) %
            callers_.parts_.network.replicas(),
        *command, patience,
        [in_process](absl::StatusOr<Outcome> outcome) {
          in_process([outcome = std::move(outcome)](Call& call, int attempt) {
            call.Heard(attempt, outcome);
          });
        },
        [in_process](bool received) {
          in_process([received](Call& call, int attempt) {
            const absl::Status lost = absl::UnavailableError(
                received ? "the connection broke" : "connection refused");
            call.Failed(attempt, lost,
                        internal::FailureOf(lost, kWrites, received));
          });
        });
  }

  // As the service writes it.
  absl::Status Write(absl::StatusOr<Outcome> outcome, Response& response) {
    if (!outcome.ok()) return outcome.status();
    if constexpr (std::is_same_v<Wire, ClaimWire> ||
                  std::is_same_v<Wire, LookupWire>) {
      return ToProto(*std::move(outcome),
                     {.id = Wire::Shown(request_),
                      .downstream_namespace =
                          callers_.parts_.database.rules.downstream_namespace,
                      .random = callers_.parts_.random.Fraction()},
                     response);
    } else {
      ToProto(*outcome, response);
      return absl::OkStatus();
    }
  }

  void Heard(int attempt, absl::StatusOr<Outcome> outcome) {
    if (attempt != attempt_) return;
    Response response;
    const absl::Status written = Write(std::move(outcome), response);
    if (written.ok()) {
      if constexpr (std::is_same_v<Wire, ClaimWire>) {
        callers_.Spoil(response, std::chrono::duration_cast<Microseconds>(
                                     callers_.parts_.scheduler.Now() - began_));
      }
      return Answer(std::move(response));
    }
    const ErrorReply reply =
        ToErrorReply(written, callers_.parts_.random.Fraction());
    const absl::Status status = ToAbslStatus(reply.status());
    AttemptFailure failure = internal::FailureOf(status, kWrites, true);
    if (reply.pushback.has_value()) {
      failure.pushback = std::to_string(reply.pushback->count());
    }
    Failed(attempt, status, failure);
  }

  void Failed(int attempt, const absl::Status& status,
              const AttemptFailure& failure) {
    if (attempt != attempt_ || !answered_) return;
    ++attempt_;
    const RetryDecision decision =
        retry_.AfterFailure(failure, callers_.parts_.scheduler.Now(),
                            callers_.parts_.random.Fraction());
    if (decision.verdict != RetryVerdict::kSendAgain) {
      return Answer(internal::FinalStatus(status, retry_, decision.verdict,
                                          failure.may_have_acted));
    }
    ++callers_.events_["sent again"];
    callers_.Later(client_, std::chrono::ceil<Microseconds>(decision.wait),
                   [self = this->shared_from_this()] {
                     if (self->answered_) self->Send();
                   });
  }

  void Answer(absl::StatusOr<Response> answer) {
    attempt_ = -1;
    if (answered_) std::exchange(answered_, nullptr)(std::move(answer));
  }

  OnceCallers& callers_;
  Client& client_;
  const Request request_;
  const TimePoint began_;
  const TimePoint deadline_;
  std::function<void(absl::StatusOr<Response>)> answered_;
  RetryState retry_;
  const std::size_t first_replica_;
  int attempt_ = 0;  // that is under way, or to come
};

void OnceCallers::Spoil(v1::ClaimResponse& response, Microseconds took) const {
  if (!response.has_claimed()) return;
  v1::Claimed& claimed = *response.mutable_claimed();
  if (parts_.database.bug() == PlantedBug::kPermissionFromTheAnswer) {
    const auto longer = std::chrono::seconds(claimed.lease().seconds()) +
                        std::chrono::nanoseconds(claimed.lease().nanos()) +
                        took;
    claimed.mutable_lease()->set_seconds(longer.count() / 1'000'000'000);
    claimed.mutable_lease()->set_nanos(
        static_cast<std::int32_t>(longer.count() % 1'000'000'000));
  }
  if (parts_.database.bug() == PlantedBug::kDownstreamKeyOfTheAttempt) {
    claimed.set_downstream_key(claimed.downstream_key() + "-" +
                               std::to_string(claimed.attempt()));
  }
}

template <typename Wire>
void OnceCallers::Send(
    Client& client, const typename Wire::Request& request, Milliseconds timeout,
    std::function<void(absl::StatusOr<typename Wire::Response>)> answered) {
  std::make_shared<Call<Wire>>(*this, client, request, timeout,
                               std::move(answered))
      ->Start();
}

template void OnceCallers::Send<ClaimWire>(
    Client&, const v1::ClaimRequest&, Milliseconds,
    std::function<void(absl::StatusOr<v1::ClaimResponse>)>);
template void OnceCallers::Send<FinalizeWire>(
    Client&, const v1::FinalizeRequest&, Milliseconds,
    std::function<void(absl::StatusOr<v1::FinalizeResponse>)>);
template void OnceCallers::Send<LookupWire>(
    Client&, const v1::LookupRequest&, Milliseconds,
    std::function<void(absl::StatusOr<v1::LookupResponse>)>);
template void OnceCallers::Send<ReleaseWire>(
    Client&, const v1::ReleaseRequest&, Milliseconds,
    std::function<void(absl::StatusOr<v1::ReleaseResponse>)>);

}  // namespace idempotency
