#include "tests/simulation/once_callers.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <variant>

#include "server/rpc/wire_calls.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

// More than waiting, running, standing still and settling take together.
constexpr seconds kEndsWithin{90};

// Of the policies of operations.
constexpr seconds kLeaseMax{3};

std::string TokenOf(int number) {
  return "11111111-1111-4111-8111-1111111" + std::to_string(10'000 + number);
}

}  // namespace

struct OnceCallers::Client {
  Client(const Operation& the_operation, bool resolves, int the_number)
      : operation(the_operation),
        id{the_operation.scope, the_operation.key},
        machine(operation, TokenOf(the_number), resolves),
        number(the_number) {}

  std::string Says(const std::string& what) const {
    return TextOf(id, what + " told to " + std::to_string(number));
  }

  const Operation operation;
  const RecordId id;
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

OnceCallers::OnceCallers(const CallerParts& parts, std::vector<RecordId> keys)
    : parts_(parts), keys_(std::move(keys)) {}

OnceCallers::~OnceCallers() = default;

void OnceCallers::Violate(const Client& client, const std::string& promise,
                          const std::string& what) {
  parts_.checker.ViolateAbout(
      client.id, promise,
      what + ", operation " + std::to_string(client.number));
}

Microseconds OnceCallers::AnyDelay() {
  if (parts_.weather.calm || parts_.random.Chance(80))
    return parts_.weather.Short(parts_.random);
  return milliseconds(parts_.random.Chance(70) ? parts_.random.Below(500)
                                               : parts_.random.Below(4000));
}

void OnceCallers::Later(Client& client, Microseconds delay,
                        std::function<void()> task) {
  parts_.scheduler.After(delay, [this, &client, task = std::move(task)] {
    if (client.dead) return;
    const TimePoint now = parts_.scheduler.Now();
    if (now >= client.stands_still_until) return task();
    Later(client,
          std::chrono::ceil<Microseconds>(client.stands_still_until - now),
          task);
  });
}

// ------------------------------------------------------------------ operations

void OnceCallers::Start(std::size_t operations, Microseconds span) {
  const bool one_policy = parts_.random.Chance(60);
  for (std::size_t i = 0; i < operations; ++i) {
    Operation operation = AnyOperation();
    if (one_policy) operation.policy = "payment";
    Client& client = NewClient(operation, parts_.random.Chance(60));
    StartAfter(client, parts_.random.Between(Microseconds(0), span));
    AddTrouble(client);
  }
}

void OnceCallers::StartForEveryKey() {
  first_of_the_end_ = clients_.size();
  for (const RecordId& id : keys_) {
    Operation operation = AnyOperation();
    operation.scope = id.scope;
    operation.key = id.key;
    operation.wait = seconds(30);
    operation.claim_timeout = operation.finalize_timeout = seconds(5);
    operation.lease.reset();
    operation.max_run_time.reset();
    operation.renew = true;
    const RecordPtr record = parts_.database.Find(id);
    if (record != nullptr) operation.request_hash = record->request_hash;
    StartAfter(NewClient(operation, true), Microseconds(0));
  }
}

void OnceCallers::StartAfter(Client& client, Microseconds delay) {
  client.started_at = parts_.scheduler.Now() + delay;
  parts_.scheduler.After(delay, [this, &client] {
    Feed(client, [](OnceMachine& machine, auto moment, auto& actions) {
      machine.Start(moment, actions);
    });
  });
}

bool OnceCallers::AllEnded() const {
  return std::all_of(clients_.begin(), clients_.end(), [](const auto& client) {
    return client->dead || client->ended;
  });
}

void OnceCallers::CheckEnd() {
  for (std::size_t i = 0; i < clients_.size(); ++i) {
    const Client& client = *clients_[i];
    if (!client.dead && !client.ended) Violate(client, "end", "it did not");
    const bool must_know = first_of_the_end_ > 0 && i >= first_of_the_end_;
    if (must_know && !(client.result && client.result->has_response())) {
      Violate(client, "stuck",
              client.result.has_value() ? client.result->status.ToString()
                                        : "without a result");
    }
    CheckRecorded(client);
  }
}

void OnceCallers::CheckRecorded(const Client& client) {
  if (!client.result.has_value() || !client.result->recorded) return;
  const RunResult& result = *client.result;
  const bool by_itself = result.outcome == RunOutcome::kExecuted ||
                         result.outcome == RunOutcome::kResolved;
  if (!parts_.checker.WasRecorded(client.id, result.response.status_code(),
                                  result.response.body(), !by_itself)) {
    Violate(client, "recorded", "it is not");
  }
}

Operation OnceCallers::AnyOperation() {
  const auto timeout = [this] {
    return milliseconds(parts_.random.Chance(50) ? 300 : 1000);
  };
  const RecordId& id =
      keys_[parts_.random.Chance(70) ? 0 : parts_.random.Below(keys_.size())];
  Operation operation = {
      .scope = id.scope,
      .key = id.key,
      .request_hash = std::string(32, parts_.random.Chance(95) ? 'h' : 'o'),
      .policy = parts_.random.Chance(50) ? "payment" : "order"};
  if (parts_.random.Chance(30)) {
    operation.lease = milliseconds(100 + parts_.random.Below(3000));
  }
  operation.renew = parts_.random.Chance(85);
  if (parts_.random.Chance(20))
    operation.max_run_time = milliseconds(parts_.random.Below(4000));
  operation.wait =
      milliseconds(parts_.random.Chance(30) ? 0 : parts_.random.Below(6000));
  operation.claim_timeout = timeout();
  operation.finalize_timeout = timeout();
  return operation;
}

OnceCallers::Client& OnceCallers::NewClient(const Operation& operation,
                                            bool resolves) {
  const int number = static_cast<int>(clients_.size()) + 1;
  return *clients_.emplace_back(
      std::make_unique<Client>(operation, resolves, number));
}

void OnceCallers::AddTrouble(Client& client) {
  const auto some_time = [&] {
    return std::chrono::duration_cast<Microseconds>(client.started_at -
                                                    parts_.scheduler.Now()) +
           milliseconds(
               parts_.random.Below(parts_.random.Chance(60) ? 300 : 6000));
  };
  if (parts_.random.Chance(20)) {
    parts_.scheduler.After(some_time(), [this, &client] {
      ++events_["hung up"];
      Later(client, Microseconds(0), [this, &client] {
        Feed(client, [](OnceMachine& machine, auto moment, auto& actions) {
          machine.HangUp(moment, actions);
        });
      });
    });
  }
  if (parts_.random.Chance(15)) {
    parts_.scheduler.After(some_time(), [this, &client] {
      parts_.weather.Count("callers killed");
      client.dead = true;
    });
  }
  if (parts_.random.Chance(30)) {
    parts_.scheduler.After(some_time(), [this, &client] {
      parts_.weather.Count("callers paused");
      client.stands_still_until =
          parts_.scheduler.Now() + milliseconds(parts_.random.Below(6000));
    });
  }
}

template <typename Event>
void OnceCallers::Feed(Client& client, const Event& event) {
  if (client.dead) return;
  OnceMachine::Actions actions;
  event(client.machine,
        OnceMachine::Moment{parts_.scheduler.Now(), parts_.random.Fraction()},
        actions);
  for (OnceMachine::Action& action : actions) {
    if (client.ended) Violate(client, "delivery", "something follows the end");
    std::visit([&](auto& each) { Perform(client, each); }, action);
  }
  SetTimer(client);
}

void OnceCallers::SetTimer(Client& client) {
  const auto wake_at = client.machine.wake_at();
  if (!wake_at.has_value() || (client.timer_at && *client.timer_at <= *wake_at))
    return;
  client.timer_at = wake_at;
  const auto left = std::chrono::ceil<Microseconds>(
      std::max<nanoseconds>(*wake_at - parts_.scheduler.Now(), nanoseconds(0)));
  Later(client, left, [this, &client, at = *wake_at] {
    if (client.timer_at == at) client.timer_at.reset();
    Feed(client, [](OnceMachine& machine, auto moment, auto& actions) {
      machine.TimePassed(moment, actions);
    });
  });
}

void OnceCallers::Perform(Client& client, OnceMachine::SendClaim& action) {
  Send<ClaimWire>(
      client, action.request, action.timeout,
      [this, &client](absl::StatusOr<v1::ClaimResponse> answer) {
        Feed(client, [&](OnceMachine& machine, auto moment, auto& actions) {
          machine.ClaimAnswered(std::move(answer), moment, actions);
        });
      });
}

void OnceCallers::Perform(Client& client, OnceMachine::SendRenewal& action) {
  Send<ClaimWire>(
      client, action.request, action.timeout,
      [this, &client](absl::StatusOr<v1::ClaimResponse> answer) {
        ++events_[answer.ok() ? "renewed" : "not renewed"];
        Feed(client, [&](OnceMachine& machine, auto moment, auto& actions) {
          machine.RenewalAnswered(std::move(answer), moment, actions);
        });
      });
}

void OnceCallers::Perform(Client& client, OnceMachine::SendFinalize& action) {
  Send<FinalizeWire>(
      client, action.request, action.timeout,
      [this, &client](absl::StatusOr<v1::FinalizeResponse> answer) {
        if (parts_.database.bug() == PlantedBug::kOwnResponseAfterARefusal &&
            answer.status().code() == absl::StatusCode::kFailedPrecondition) {
          answer = v1::FinalizeResponse();
          answer->set_result(v1::FinalizeResponse::RESULT_RECORDED);
        }
        Feed(client, [&](OnceMachine& machine, auto moment, auto& actions) {
          machine.FinalizeAnswered(std::move(answer), moment, actions);
        });
      });
}

void OnceCallers::Perform(Client& client, OnceMachine::SendLookup& action) {
  Send<LookupWire>(
      client, action.request, action.timeout,
      [this, &client](absl::StatusOr<v1::LookupResponse> answer) {
        Feed(client, [&](OnceMachine& machine, auto moment, auto& actions) {
          machine.LookupAnswered(std::move(answer), moment, actions);
        });
      });
}

void OnceCallers::Perform(Client& client, OnceMachine::SendRelease& action) {
  const auto disposition = action.request.disposition();
  ++events_[v1::ReleaseRequest::Disposition_Name(disposition)];
  if (parts_.database.bug() == PlantedBug::kHangUpSaysNeverExecuted &&
      disposition == v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED) {
    action.request.set_disposition(
        v1::ReleaseRequest::DISPOSITION_NEVER_EXECUTED);
  }
  if (parts_.database.bug() == PlantedBug::kThrowSaysNotExecuted) {
    action.request.set_disposition(
        v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED);
  }
  Send<ReleaseWire>(
      client, action.request, action.timeout,
      [this, &client](absl::StatusOr<v1::ReleaseResponse> answer) {
        Feed(client, [&](OnceMachine& machine, auto moment, auto& actions) {
          machine.ReleaseAnswered(std::move(answer), moment, actions);
        });
      });
}

void OnceCallers::Perform(Client& client, OnceMachine::RunFunction&) {
  // It may have to wait for a thread.
  Later(client, AnyDelay(), [this, &client] {
    bool may_start =
        parts_.database.bug() == PlantedBug::kFunctionStartsUnasked;
    if (!may_start) {
      Feed(client, [&](OnceMachine& machine, auto moment, auto& actions) {
        may_start = machine.FunctionMayStart(moment, actions);
      });
    }
    if (may_start) StartFunction(client);
  });
}

void OnceCallers::Perform(Client& client, OnceMachine::RunResolver&) {
  Later(client, AnyDelay(), [this, &client] {
    const std::string key = client.machine.claimed().downstream_key();
    client.asked_channel_at = parts_.scheduler.Now();
    Resolution resolution = NeverExecuted{};
    if (parts_.database.bug() == PlantedBug::kResolverIsSkipped) {
      // The channel is not asked.
    } else if (!parts_.weather.calm && parts_.random.Chance(15)) {
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

void OnceCallers::Perform(Client&, OnceMachine::Withdraw&) {
  ++events_["withdrawn"];
}

void OnceCallers::Perform(Client&, OnceMachine::CheckpointStored& action) {
  if (action.number > 0) {
    ++events_[action.status.ok() ? "checkpoint stored" : "checkpoint lost"];
  }
}

void OnceCallers::Perform(Client& client, OnceMachine::Deliver& action) {
  const RunResult& result = action.result;
  ++events_[std::string(NameOf(result.outcome))];
  if (client.result.has_value()) Violate(client, "delivery", "a second result");
  const bool ran = result.outcome == RunOutcome::kExecuted ||
                   result.outcome == RunOutcome::kNothingHappened ||
                   result.outcome == RunOutcome::kUnknown;
  const bool not_run = result.outcome >= RunOutcome::kInProgress &&
                       result.outcome <= RunOutcome::kHungUp;
  if ((ran && !client.function_ran) || (not_run && client.function_ran) ||
      (result.outcome == RunOutcome::kNothingHappened && client.charged)) {
    Violate(client, "delivery",
            std::string(NameOf(result.outcome)) + " is not true");
  }
  if (result.has_response() != result.status.ok()) {
    Violate(client, "delivery", "a response and an error, or neither");
  }
  client.result = result;
}

void OnceCallers::Perform(Client& client, OnceMachine::End&) {
  client.ended = true;
  if (!client.result.has_value()) Violate(client, "delivery", "no result");
  if (parts_.scheduler.Now() - client.started_at > kEndsWithin)
    Violate(client, "end", "it took long");
}

// ------------------------------------------------------ functions and channel

// They run for none to several leases, charge somewhere in between, and may ask
// whether they are permitted to.
void OnceCallers::StartFunction(Client& client) {
  client.function_ran = true;
  if (!client.machine.permitted(parts_.scheduler.Now())) {
    Violate(client, "permission", "a function started without");
  }
  constexpr int kMillis[] = {1, 20, 200, 800, 1500, 4000};
  const milliseconds length{
      parts_.weather.calm ? 10
                          : kMillis[parts_.random.Below(std::size(kMillis))]};
  const milliseconds charge_at{parts_.random.Below(length.count() + 1)};
  const std::size_t kind = parts_.weather.calm ? 0 : parts_.random.Below(10);
  if (parts_.random.Chance(30)) {
    Later(client, length / 2, [this, &client] {
      Feed(client, [&](OnceMachine& machine, auto moment, auto& actions) {
        machine.SaveCheckpoint(TextOf(client.id, "half of it"), moment,
                               actions);
      });
    });
  }
  Later(client, charge_at,
        [this, &client, kind, rest = length - charge_at,
         asks = parts_.random.Chance(50)] {
          // Nothing happens in kind 8.
          if (kind != 8) Charge(client, asks);
          Later(client, rest, [this, &client, kind] {
            Feed(client, [&](OnceMachine& machine, auto moment, auto& actions) {
              machine.FunctionEnded(EndOf(client, kind), moment, actions);
            });
          });
        });
}

void OnceCallers::Charge(Client& client, bool asks) {
  const TimePoint now = parts_.scheduler.Now();
  if (asks && !client.machine.permitted(now)) return;
  const v1::Claimed& claimed = client.machine.claimed();
  if (asks && claimed.fencing_token() < fencing_tokens_[client.id] &&
      !LeaseMayBeCut()) {
    Violate(client, "permission", "it was given beside a newer grant");
  }
  const auto [charge, first] = charges_.emplace(claimed.downstream_key(), now);
  if (!first && client.asked_channel_at.has_value() &&
      charge->second < *client.asked_channel_at) {
    Violate(client, "charged-knowingly", "it had asked");
  }
  ++events_[first ? "charged" : "charged before"];
  client.charged = true;
  parts_.checker.Effect(client.id, claimed.fencing_token(),
                        claimed.downstream_key());
}

FunctionResult OnceCallers::EndOf(Client& client, std::size_t kind) const {
  if (!client.charged) {
    return NothingHappened{absl::CancelledError("nothing was done")};
  }
  if (kind == 9) return OutcomeUnknown{absl::UnknownError("it threw")};
  return Respond(kind == 7 ? 500 : 201,
                 client.Says(client.machine.claimed().downstream_key()));
}

// A database whose clock is set forward ends leases sooner than it said, which
// callers learn when they ask next.
bool OnceCallers::LeaseMayBeCut() const {
  return parts_.database.clock().SteppedForward(parts_.scheduler.Now() -
                                                kLeaseMax);
}

void OnceCallers::GrantChanged(const RecordId& id, std::int64_t fencing_token) {
  fencing_tokens_[id] = fencing_token;
  if (LeaseMayBeCut()) return;
  for (const auto& client : clients_) {
    if (!client->dead && client->id == id &&
        client->machine.permitted(parts_.scheduler.Now()) &&
        client->machine.claimed().fencing_token() < fencing_token) {
      Violate(*client, "permission", "there is a newer grant");
    }
  }
}

}  // namespace idempotency
