// What a lane takes in.
#include <algorithm>
#include <chrono>
#include <optional>
#include <variant>

#include "server/core/errors.h"
#include "server/core/lane.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;

Work WorkOf(const Call& call) {
  if (call.renews()) return Work::kBegun;
  const bool is_new = std::holds_alternative<ClaimCall>(call.request) ||
                      std::holds_alternative<LookupCall>(call.request);
  return is_new ? Work::kNew : Work::kBegun;
}

// A round takes one call a key; the others ride along or wait for a later one.
// Their bytes are not known apart, but what there is of them on average.
QueueLoad LoadOf(const CallQueue& queue) {
  if (queue.empty()) return {};
  return {.items = queue.keys(),
          .bytes = queue.bytes() / queue.items() * queue.keys()};
}

}  // namespace

absl::Status Lane::Admit(const Call& call) const {
  const Work work = WorkOf(call);
  const QueueLoad load = LoadOf(queue_);
  const std::size_t items_max =
      options_.queue_items_max * (work == Work::kBegun ? 2 : 1);
  std::optional<SteadyTime::duration> back_after =
      admission_.Refuse(work, call.submitted, call.context.deadline, load);
  if (!back_after.has_value()) {
    if (queue_.items() - queue_.woken().items < items_max &&
        queue_.bytes() - queue_.woken().bytes + call.bytes <=
            options_.queue_bytes_max) {
      return absl::OkStatus();
    }
    back_after = admission_.ExpectedTime(call.submitted, load);
  }
  return WithRetryDelay(
      MakeError(Reason::kOverloaded,
                "too many calls are queued; try again later"),
      std::min<milliseconds>(
          std::chrono::duration_cast<milliseconds>(*back_after),
          limits::kRetryDelayMax));
}

}  // namespace idempotency
