#include "tests/unit/once_world.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "server/core/policies.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr std::size_t kTasksMax = 50'000;
// More than waiting, running, standing still and settling take together.
constexpr seconds kEndsWithin{90};

FleetRules Rules() {
  const Policy plain = {.name = "default",
                        .lease = absl::Seconds(1),
                        .max_lease = absl::Seconds(3),
                        .retention = absl::Hours(24)};
  FleetRules rules;
  rules.policies["default"] = plain;
  Policy& held = rules.policies["payment"] = plain;
  held.name = "payment";
  held.on_abandoned = OnAbandoned::kHold;
  held.on_server_error = OnServerError::kHold;
  return rules;
}

}  // namespace

struct OnceWorld::Client {
  Client(const Operation& the_operation, const std::string& token,
         bool resolves, int the_number)
      : operation(the_operation),
        machine(operation, token, resolves),
        number(the_number) {}

  std::string Says(const std::string& what) const {
    return what + " told to " + std::to_string(number);
  }

  const Operation operation;
  OnceMachine machine;
  const int number;
  TimePoint started_at{};
  bool dead = false;
  TimePoint stands_still_until{};
  std::optional<TimePoint> timer_at;
  std::optional<TimePoint> asked_channel_at;
  bool function_ran = false;
  bool charged = false;
  std::optional<RunResult> result;
  bool ended = false;
};

OnceWorld::OnceWorld(std::uint64_t seed, OnceBug bug)
    : bug_(bug),
      random_(seed),
      store_(std::make_unique<MemoryTable>(database_), clock_, metrics_),
      now_(clock_.Now()) {
  database_.SetRules(Rules());
}

OnceWorld::~OnceWorld() = default;

void OnceWorld::Violation(const std::string& promise, const std::string& what) {
  violations_.push_back(promise + ": " + what);
}

milliseconds OnceWorld::AnyDelay() {
  if (calm_ || Chance(80)) return milliseconds(1 + Below(30));
  return milliseconds(Chance(70) ? Below(500) : Below(4000));
}

void OnceWorld::Run() {
  const std::size_t clients = 2 + Below(5);
  const bool one_policy = Chance(60);
  for (std::size_t i = 0; i < clients; ++i) {
    Operation operation = AnyOperation();
    if (one_policy) operation.policy = "payment";
    Client& client = NewClient(operation, Chance(60));
    client.started_at = now_ + milliseconds(Below(3000));
    At(client.started_at, [this, &client] {
      Feed(client, [](OnceMachine& machine, auto moment, auto& actions) {
        machine.Start(moment, actions);
      });
    });
    AddTrouble(client);
  }
  RunUntilIdle();
  calm_ = true;
  const std::size_t before = clients_.size();
  for (const char* key : {"key-0", "key-1"}) {
    Operation operation = AnyOperation();
    operation.key = key;
    operation.wait = seconds(60);
    operation.claim_timeout = operation.finalize_timeout = seconds(5);
    operation.lease.reset();
    operation.max_run_time.reset();
    operation.renew = true;
    const auto record = database_.Find({operation.scope, operation.key});
    if (record.has_value()) operation.request_hash = record->request_hash;
    Client& client = NewClient(operation, true);
    client.started_at = now_;
    Feed(client, [](OnceMachine& machine, auto moment, auto& actions) {
      machine.Start(moment, actions);
    });
  }
  RunUntilIdle();
  for (std::size_t i = 0; i < clients_.size(); ++i) {
    const Client& client = *clients_[i];
    if (!client.dead && !client.ended) {
      Violation("end", "operation " + std::to_string(client.number));
    }
    if (i >= before && !(client.result && client.result->has_response())) {
      Violation("stuck", client.operation.key + " " +
                             (client.result.has_value()
                                  ? client.result->status.ToString()
                                  : "without a result"));
    }
    CheckRecorded(client);
  }
}

// ------------------------------------------------------------------------ time

void OnceWorld::Later(Client& client, milliseconds delay, Task task) {
  At(now_ + delay, [this, &client, task = std::move(task)] {
    if (client.dead) return;
    if (now_ >= client.stands_still_until) return task();
    At(client.stands_still_until, [&client, task] {
      if (!client.dead) task();
    });
  });
}

void OnceWorld::RunUntilIdle() {
  for (std::size_t i = 0; !tasks_.empty() && violations_.empty(); ++i) {
    if (i > kTasksMax) return Violation("end", "too much happens");
    auto first = tasks_.extract(tasks_.begin());
    const nanoseconds passes =
        std::max<nanoseconds>(first.key() - now_, nanoseconds(0));
    // The database counts microseconds.
    database_.Advance(absl::Microseconds(
        std::chrono::ceil<std::chrono::microseconds>(passes).count()));
    const auto step = std::chrono::ceil<std::chrono::microseconds>(passes);
    clock_.Advance(step);
    now_ += step;
    first.mapped()();
  }
}

// --------------------------------------------------------------------- callers

Operation OnceWorld::AnyOperation() {
  const auto timeout = [this] { return milliseconds(Chance(50) ? 300 : 1000); };
  Operation operation = {
      .scope = "payments",
      .key = Chance(85) ? "key-0" : "key-1",
      .request_hash = std::string(32, Chance(95) ? 'h' : 'o'),
      .policy = Chance(50) ? "payment" : "default"};
  if (Chance(30)) operation.lease = milliseconds(100 + Below(3000));
  operation.renew = Chance(85);
  if (Chance(20)) operation.max_run_time = milliseconds(Below(4000));
  operation.wait = milliseconds(Chance(30) ? 0 : Below(6000));
  operation.claim_timeout = timeout();
  operation.finalize_timeout = timeout();
  return operation;
}

OnceWorld::Client& OnceWorld::NewClient(const Operation& operation,
                                        bool resolves) {
  const int number = static_cast<int>(clients_.size()) + 1;
  const std::string token =
      "11111111-1111-4111-8111-1111111111" + std::to_string(10 + number);
  return *clients_.emplace_back(
      std::make_unique<Client>(operation, token, resolves, number));
}

void OnceWorld::AddTrouble(Client& client) {
  const auto some_time = [&] {
    return client.started_at + milliseconds(Below(Chance(60) ? 300 : 6000));
  };
  if (Chance(20)) {
    At(some_time(), [this, &client] {
      Later(client, milliseconds(0), [this, &client] {
        Feed(client, [](OnceMachine& machine, auto moment, auto& actions) {
          machine.HangUp(moment, actions);
        });
      });
    });
  }
  if (Chance(15)) At(some_time(), [&client] { client.dead = true; });
  if (Chance(30)) {
    At(some_time(), [this, &client] {
      client.stands_still_until = now_ + milliseconds(Below(6000));
    });
  }
}

template <typename Event>
void OnceWorld::Feed(Client& client, const Event& event) {
  if (client.dead) return;
  OnceMachine::Actions actions;
  event(client.machine, OnceMachine::Moment{now_, Fraction()}, actions);
  for (OnceMachine::Action& action : actions) {
    if (client.ended) Violation("delivery", "something follows the end");
    std::visit([&](auto& each) { Perform(client, each); }, action);
  }
  SetTimer(client);
}

void OnceWorld::SetTimer(Client& client) {
  const auto wake_at = client.machine.wake_at();
  if (!wake_at.has_value() || (client.timer_at && *client.timer_at <= *wake_at))
    return;
  client.timer_at = wake_at;
  const auto left = std::chrono::ceil<milliseconds>(
      std::max<nanoseconds>(*wake_at - now_, nanoseconds(0)));
  Later(client, left, [this, &client, at = *wake_at] {
    if (client.timer_at == at) client.timer_at.reset();
    Feed(client, [](OnceMachine& machine, auto moment, auto& actions) {
      machine.TimePassed(moment, actions);
    });
  });
}

void OnceWorld::Perform(Client& client, OnceMachine::SendClaim& action) {
  Send<v1::ClaimRequest, v1::ClaimResponse>(
      client, action.request, action.timeout,
      [this, &client](absl::StatusOr<v1::ClaimResponse> answer) {
        Feed(client, [&](OnceMachine& machine, auto moment, auto& actions) {
          machine.ClaimAnswered(std::move(answer), moment, actions);
        });
      });
}

void OnceWorld::Perform(Client& client, OnceMachine::SendRenewal& action) {
  Send<v1::ClaimRequest, v1::ClaimResponse>(
      client, action.request, action.timeout,
      [this, &client](absl::StatusOr<v1::ClaimResponse> answer) {
        ++counts_[answer.ok() ? "renewed" : "not renewed"];
        Feed(client, [&](OnceMachine& machine, auto moment, auto& actions) {
          machine.RenewalAnswered(std::move(answer), moment, actions);
        });
      });
}

void OnceWorld::Perform(Client& client, OnceMachine::SendFinalize& action) {
  Send<v1::FinalizeRequest, v1::FinalizeResponse>(
      client, action.request, action.timeout,
      [this, &client](absl::StatusOr<v1::FinalizeResponse> answer) {
        if (bug_ == OnceBug::kOwnResponseAfterARefusal &&
            answer.status().code() == absl::StatusCode::kFailedPrecondition) {
          answer = v1::FinalizeResponse();
          answer->set_result(v1::FinalizeResponse::RESULT_RECORDED);
        }
        Feed(client, [&](OnceMachine& machine, auto moment, auto& actions) {
          machine.FinalizeAnswered(std::move(answer), moment, actions);
        });
      });
}

void OnceWorld::Perform(Client& client, OnceMachine::SendLookup& action) {
  Send<v1::LookupRequest, v1::LookupResponse>(
      client, action.request, action.timeout,
      [this, &client](absl::StatusOr<v1::LookupResponse> answer) {
        Feed(client, [&](OnceMachine& machine, auto moment, auto& actions) {
          machine.LookupAnswered(std::move(answer), moment, actions);
        });
      });
}

void OnceWorld::Perform(Client& client, OnceMachine::SendRelease& action) {
  const auto disposition = action.request.disposition();
  ++counts_[v1::ReleaseRequest::Disposition_Name(disposition)];
  if (bug_ == OnceBug::kHangUpSaysNeverExecuted &&
      disposition == v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED) {
    action.request.set_disposition(
        v1::ReleaseRequest::DISPOSITION_NEVER_EXECUTED);
  }
  if (bug_ == OnceBug::kThrowSaysNotExecuted) {
    action.request.set_disposition(
        v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED);
  }
  Send<v1::ReleaseRequest, v1::ReleaseResponse>(
      client, action.request, action.timeout,
      [this, &client](absl::StatusOr<v1::ReleaseResponse> answer) {
        Feed(client, [&](OnceMachine& machine, auto moment, auto& actions) {
          machine.ReleaseAnswered(std::move(answer), moment, actions);
        });
      });
}

void OnceWorld::Perform(Client& client, OnceMachine::RunFunction&) {
  // It may have to wait for a thread.
  Later(client, AnyDelay(), [this, &client] {
    bool may_start = bug_ == OnceBug::kFunctionStartsUnasked;
    if (!may_start) {
      Feed(client, [&](OnceMachine& machine, auto moment, auto& actions) {
        may_start = machine.FunctionMayStart(moment, actions);
      });
    }
    if (may_start) StartFunction(client);
  });
}

void OnceWorld::Perform(Client& client, OnceMachine::RunResolver&) {
  Later(client, AnyDelay(), [this, &client] {
    const std::string key = client.machine.claimed().downstream_key();
    client.asked_channel_at = now_;
    Resolution resolution = NeverExecuted{};
    if (bug_ == OnceBug::kResolverSkipped) {
      // The channel is not asked.
    } else if (!calm_ && Chance(15)) {
      resolution = StillUnknown{absl::UnavailableError("the channel is away")};
    } else if (charges_.contains(key)) {
      v1::Response response;
      response.set_status_code(200);
      response.set_body(client.Says(key));
      resolution = WasExecuted{std::move(response)};
    }
    Later(client, AnyDelay(), [this, &client, resolution] {
      Feed(client, [&](OnceMachine& machine, auto moment, auto& actions) {
        machine.ResolverEnded(resolution, moment, actions);
      });
    });
  });
}

void OnceWorld::Perform(Client&, OnceMachine::Withdraw&) {
  ++counts_["withdrawn"];
}

void OnceWorld::Perform(Client&, OnceMachine::CheckpointStored& action) {
  if (action.number > 0) {
    ++counts_[action.status.ok() ? "checkpoint stored" : "checkpoint lost"];
  }
}

void OnceWorld::Perform(Client& client, OnceMachine::Deliver& action) {
  const RunResult& result = action.result;
  ++counts_[std::string(NameOf(result.outcome))];
  if (client.result.has_value()) Violation("delivery", "a second result");
  const bool ran = result.outcome == RunOutcome::kExecuted ||
                   result.outcome == RunOutcome::kNothingHappened ||
                   result.outcome == RunOutcome::kUnknown;
  const bool not_run = result.outcome >= RunOutcome::kInProgress &&
                       result.outcome <= RunOutcome::kHungUp;
  if ((ran && !client.function_ran) || (not_run && client.function_ran) ||
      (result.outcome == RunOutcome::kNothingHappened && client.charged)) {
    Violation("delivery", std::string(NameOf(result.outcome)) + " is not true");
  }
  if (result.has_response() != result.status.ok()) {
    Violation("delivery", "a response and an error, or neither");
  }
  client.result = result;
}

void OnceWorld::Perform(Client& client, OnceMachine::End&) {
  client.ended = true;
  if (!client.result.has_value()) Violation("delivery", "no result");
  if (now_ - client.started_at > kEndsWithin) Violation("end", "it took long");
}

// ------------------------------------------------------ functions and channel

// They run for none to several leases, charge somewhere in between, and may ask
// whether they are permitted to.
void OnceWorld::StartFunction(Client& client) {
  client.function_ran = true;
  if (!client.machine.permitted(now_)) {
    Violation("permission", "a function started without");
  }
  constexpr int kMillis[] = {1, 20, 200, 800, 1500, 4000};
  const milliseconds length{calm_ ? 10 : kMillis[Below(std::size(kMillis))]};
  const milliseconds charge_at{Below(length.count() + 1)};
  const std::size_t kind = calm_ ? 0 : Below(10);
  if (Chance(30)) {
    Later(client, length / 2, [this, &client] {
      Feed(client, [&](OnceMachine& machine, auto moment, auto& actions) {
        machine.SaveCheckpoint("half of it", moment, actions);
      });
    });
  }
  Later(client, charge_at,
        [this, &client, kind, rest = length - charge_at, asks = Chance(50)] {
          // Nothing happens in kind 8.
          if (kind != 8) Charge(client, asks);
          Later(client, rest, [this, &client, kind] {
            Feed(client, [&](OnceMachine& machine, auto moment, auto& actions) {
              machine.FunctionEnded(EndOf(client, kind), moment, actions);
            });
          });
        });
}

void OnceWorld::Charge(Client& client, bool asks) {
  if (asks && !client.machine.permitted(now_)) return;
  const v1::Claimed& claimed = client.machine.claimed();
  const std::string& key = client.operation.key;
  if (asks && claimed.fencing_token() !=
                  fencing_tokens_[{client.operation.scope, key}]) {
    Violation("permission", "it was given beside a newer grant");
  }
  const auto [charge, first] = charges_.emplace(claimed.downstream_key(), now_);
  if (!first && client.asked_channel_at.has_value() &&
      charge->second < *client.asked_channel_at) {
    Violation("charged-knowingly", key);
  }
  client.charged = true;
  charged_[key].insert(claimed.downstream_key());
  if (charged_[key].size() > 1) Violation("charged-twice", key);
}

FunctionResult OnceWorld::EndOf(Client& client, std::size_t kind) const {
  if (!client.charged) {
    return NothingHappened{absl::CancelledError("nothing was done")};
  }
  if (kind == 9) return OutcomeUnknown{absl::UnknownError("it threw")};
  return Respond(kind == 7 ? 500 : 201,
                 client.Says(client.machine.claimed().downstream_key()));
}

// A result that says it is recorded is what the record says for ever.
void OnceWorld::CheckRecorded(const Client& client) {
  if (!client.result.has_value() || !client.result->recorded) return;
  const auto record =
      database_.Find({client.operation.scope, client.operation.key});
  if (!record.has_value() || record->state != RecordState::kFinal ||
      record->response.status_code != client.result->response.status_code() ||
      record->response.body != client.result->response.body()) {
    Violation("recorded", client.operation.key + " by operation " +
                              std::to_string(client.number));
  }
}

void OnceWorld::CheckPermissions(const RecordId& id) {
  const auto record = database_.Find(id);
  if (!record.has_value()) return;
  fencing_tokens_[id] = record->fencing_token;
  for (const auto& client : clients_) {
    if (!client->dead && client->operation.key == id.key &&
        client->machine.permitted(now_) &&
        client->machine.claimed().fencing_token() != record->fencing_token) {
      Violation("permission", "operation " + std::to_string(client->number) +
                                  " is permitted beside a newer grant");
    }
  }
}

}  // namespace idempotency
