// One call on its way through the engine.
#ifndef IDEMPOTENCY_SERVER_CORE_CALL_H_
#define IDEMPOTENCY_SERVER_CORE_CALL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/core/clock.h"
#include "server/core/types.h"

namespace idempotency {

// Runs exactly once, on a lane's thread, on the one that gives answers
// (answer_queue.h) or inside Submit(), never with a lock held. It must not
// block.
template <typename Outcome>
using Done = absl::AnyInvocable<void(absl::StatusOr<Outcome>) &&>;

struct CallContext {
  // When the caller stops listening.
  SteadyTime deadline = SteadyTime::max();
  // Until when a claim waits for another owner's end before it is answered
  // InProgress: at most kWaitMargin before the deadline. A time that has
  // passed: it does not wait.
  SteadyTime wait_until = SteadyTime::min();
  // Once it is true, the wait ends soon, whatever `wait_until` says. Null: it
  // never is. Read on lane threads until the call's Done has run.
  const std::atomic<bool>* wait_is_over = nullptr;
  // Has the caller gone away? Null: it never does. Called on lane threads
  // until the call's Done has run.
  std::function<bool()> cancelled{};
};

template <typename Command, typename Outcome>
struct Request {
  Command command;
  Done<Outcome> done;
};

using ClaimCall = Request<ClaimCommand, ClaimOutcome>;
using FinalizeCall = Request<FinalizeCommand, FinalizeOutcome>;
using LookupCall = Request<LookupCommand, LookupOutcome>;
using ReleaseCall = Request<ReleaseCommand, ReleaseOutcome>;

class Lane;

// What keeps a claim waiting, as it was last read.
struct Seen {
  InProgress answer{};
  std::int64_t version = 0;
  std::string policy{};    // of the record
  SteadyTime lapses_at{};  // the end of the lease, or a little after it
};

struct Call {
  std::variant<ClaimCall, FinalizeCall, LookupCall, ReleaseCall> request;
  CallContext context;
  SteadyTime submitted;
  std::size_t bytes = 0;  // about what it adds to a statement
  // What kept it from being answered so far. kUnknown stays: a later failure
  // does not make the lost answer known.
  absl::Status setback{};
  // Of a claim that waits or has waited: its answer if nothing else comes of
  // it. Shared by those who wait for the same record.
  std::shared_ptr<const Seen> seen{};
  // The lane that set it aside; null: it is in its own.
  Lane* home = nullptr;

  const RecordId& id() const {
    return std::visit(
        [](const auto& call) -> const RecordId& { return call.command.id; },
        request);
  }
  // Is it a claim that extends its owner's lease?
  bool renews() const {
    const auto* claim = std::get_if<ClaimCall>(&request);
    return claim != nullptr && claim->command.renew_fencing_token != 0;
  }
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_CALL_H_
