// A OnceMachine, its clock and the answers it may get.
#ifndef IDEMPOTENCY_TESTS_UNIT_ONCE_FIXTURE_H_
#define IDEMPOTENCY_TESTS_UNIT_ONCE_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "client/once_machine.h"
#include "google/rpc/error_details.pb.h"

namespace idempotency {

using Disposition = v1::ReleaseRequest;

inline std::chrono::nanoseconds NanosecondsOf(
    const google::protobuf::Duration& duration) {
  return std::chrono::seconds(duration.seconds()) +
         std::chrono::nanoseconds(duration.nanos());
}

inline void SetDuration(std::chrono::nanoseconds value,
                        google::protobuf::Duration* duration) {
  duration->set_seconds(value.count() / 1'000'000'000);
  duration->set_nanos(static_cast<std::int32_t>(value.count() % 1'000'000'000));
}

// An error in the service's own words.
inline absl::Status ServiceError(absl::StatusCode code, const char* reason) {
  google::rpc::ErrorInfo info;
  info.set_domain("idempotency.v1");
  info.set_reason(reason);
  absl::Status status(code, "as the service says it");
  status.SetPayload("type.googleapis.com/google.rpc.ErrorInfo",
                    absl::Cord(info.SerializeAsString()));
  return status;
}

inline absl::Status Superseded() {
  return ServiceError(absl::StatusCode::kFailedPrecondition,
                      "CLAIM_SUPERSEDED");
}

inline absl::Status Overloaded() {
  return ServiceError(absl::StatusCode::kUnavailable, "OVERLOADED");
}

// Nothing was heard: it may have been carried out.
inline absl::Status NoAnswer() {
  return absl::DeadlineExceededError("no answer");
}

inline v1::Response ResponseOf(int status_code, const std::string& body) {
  v1::Response response;
  response.set_status_code(status_code);
  response.set_body(body);
  return response;
}

inline v1::ClaimResponse ClaimedFor(std::chrono::nanoseconds lease,
                                    int attempt = 1) {
  v1::ClaimResponse answer;
  v1::Claimed* const claimed = answer.mutable_claimed();
  SetDuration(lease, claimed->mutable_lease());
  claimed->set_attempt(attempt);
  claimed->set_fencing_token(40 + attempt);
  claimed->set_downstream_key("downstream");
  if (attempt > 1) claimed->mutable_abandoned()->set_attempt(attempt - 1);
  return answer;
}

inline v1::ClaimResponse ReplayOf(const v1::Response& response) {
  v1::ClaimResponse answer;
  *answer.mutable_replay()->mutable_response() = response;
  return answer;
}

inline v1::ClaimResponse InProgressFor(std::chrono::nanoseconds retry_after) {
  v1::ClaimResponse answer;
  SetDuration(retry_after, answer.mutable_in_progress()->mutable_retry_after());
  return answer;
}

class OnceMachineTest : public ::testing::Test {
 protected:
  using Actions = OnceMachine::Actions;
  using TimePoint = OnceMachine::TimePoint;
  using SendClaim = OnceMachine::SendClaim;
  using SendRenewal = OnceMachine::SendRenewal;
  using SendFinalize = OnceMachine::SendFinalize;
  using SendLookup = OnceMachine::SendLookup;
  using SendRelease = OnceMachine::SendRelease;
  using RunFunction = OnceMachine::RunFunction;
  using RunResolver = OnceMachine::RunResolver;
  using Withdraw = OnceMachine::Withdraw;
  using CheckpointStored = OnceMachine::CheckpointStored;
  using Deliver = OnceMachine::Deliver;
  using End = OnceMachine::End;

  static constexpr std::chrono::milliseconds kLease{9000};
  static constexpr char kToken[] = "11111111-1111-4111-8111-111111111111";

  static Operation TheOperation() {
    return {.scope = "payments",
            .key = "key",
            .request_hash = std::string(32, 'h'),
            .policy = "payment",
            .owner = "pod-1"};
  }

  void Make(const Operation& operation, bool resolves = false) {
    actions_.clear();
    machine_.emplace(operation, kToken, resolves);
  }

  // Claimed and granted at once: the function or the resolver is to run.
  void RunGranted(const Operation& operation = TheOperation(),
                  bool resolves = false, int attempt = 1) {
    Make(operation, resolves);
    Start();
    Next<SendClaim>();
    Claimed(ClaimedFor(kLease, attempt));
    if (resolves && attempt > 1) {
      Next<RunResolver>();
    } else {
      Next<RunFunction>();
    }
    EXPECT_TRUE(permitted());
  }

  OnceMachine::Moment At() const { return {now_, random_}; }
  void Pass(std::chrono::nanoseconds duration) { now_ += duration; }
  bool permitted() const { return machine_->permitted(now_); }

  // The events, each with the moment that it is now.
  void Start() {
    Feed([&](Actions& out) { machine_->Start(At(), out); });
  }
  void Claimed(absl::StatusOr<v1::ClaimResponse> answer) {
    Feed([&](Actions& out) {
      machine_->ClaimAnswered(std::move(answer), At(), out);
    });
  }
  void Renewed(absl::StatusOr<v1::ClaimResponse> answer) {
    Feed([&](Actions& out) {
      machine_->RenewalAnswered(std::move(answer), At(), out);
    });
  }
  void Finalized(absl::StatusOr<v1::FinalizeResponse> answer) {
    Feed([&](Actions& out) {
      machine_->FinalizeAnswered(std::move(answer), At(), out);
    });
  }
  void Finalized(v1::FinalizeResponse::Result result) {
    v1::FinalizeResponse answer;
    answer.set_result(result);
    Finalized(answer);
  }
  void LookedUp(absl::StatusOr<v1::LookupResponse> answer) {
    Feed([&](Actions& out) {
      machine_->LookupAnswered(std::move(answer), At(), out);
    });
  }
  void Released(absl::StatusOr<v1::ReleaseResponse> answer) {
    Feed([&](Actions& out) {
      machine_->ReleaseAnswered(std::move(answer), At(), out);
    });
  }
  bool FunctionMayStart() {
    bool may_start = false;
    Feed([&](Actions& out) {
      may_start = machine_->FunctionMayStart(At(), out);
    });
    return may_start;
  }
  void FunctionEnds(FunctionResult result) {
    Feed([&](Actions& out) {
      machine_->FunctionEnded(std::move(result), At(), out);
    });
  }
  void ResolverEnds(Resolution resolution) {
    Feed([&](Actions& out) {
      machine_->ResolverEnded(std::move(resolution), At(), out);
    });
  }
  std::int64_t Save(std::string checkpoint) {
    std::int64_t number = 0;
    Feed([&](Actions& out) {
      number = machine_->SaveCheckpoint(std::move(checkpoint), At(), out);
    });
    return number;
  }
  void HangUp() {
    Feed([&](Actions& out) { machine_->HangUp(At(), out); });
  }
  void Finish() {
    Feed([&](Actions& out) { machine_->Finish(At(), out); });
  }
  void TimePasses() {
    Feed([&](Actions& out) { machine_->TimePassed(At(), out); });
  }
  // Lets the time pass until the machine wants to be woken. False: never.
  bool Wake() {
    const auto wake_at = machine_->wake_at();
    if (!wake_at.has_value()) return false;
    now_ = std::max(now_, *wake_at);
    TimePasses();
    return true;
  }

  // The next thing that is to be done, which must be this.
  template <typename Action>
  Action Next() {
    if (actions_.empty()) {
      ADD_FAILURE() << "nothing is to be done";
      return {};
    }
    OnceMachine::Action next = std::move(actions_.front());
    actions_.pop_front();
    if (auto* const expected = std::get_if<Action>(&next)) {
      return std::move(*expected);
    }
    ADD_FAILURE() << "another action is to be done, number " << next.index();
    return {};
  }
  // The same, without the words about checkpoints in between.
  template <typename Action>
  Action NextBesideCheckpoints() {
    while (NextIs<CheckpointStored>()) actions_.pop_front();
    return Next<Action>();
  }
  template <typename Action>
  bool NextIs() const {
    return !actions_.empty() &&
           std::holds_alternative<Action>(actions_.front());
  }
  bool NothingToDo() const { return actions_.empty(); }
  // And never will be.
  bool HasEnded() const {
    return NothingToDo() && !machine_->wake_at().has_value();
  }

  std::optional<OnceMachine> machine_;
  TimePoint now_{std::chrono::hours(1)};
  double random_ = 0;

 private:
  template <typename Event>
  void Feed(const Event& event) {
    Actions out;
    event(out);
    for (OnceMachine::Action& action : out) {
      actions_.push_back(std::move(action));
    }
  }

  std::deque<OnceMachine::Action> actions_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_UNIT_ONCE_FIXTURE_H_
