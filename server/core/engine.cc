#include "server/core/engine.h"

#include <list>
#include <optional>
#include <utility>

#include "server/core/stable_hash.h"

namespace idempotency {
namespace {

LaneOptions AsideOptions(LaneOptions options) {
  // One call's lock is not to delay the next one's statement.
  options.batch_items_max = 1;
  // Its calls were taken in before, and it is slow because locks are.
  options.queue_wait_max = std::chrono::milliseconds{0};
  return options;
}

// About what a command adds to a statement; the fixed part stands for ids,
// numbers and times.
constexpr std::size_t kFixedBytes = 128;

std::size_t BytesOf(const RecordId& id) {
  return kFixedBytes + id.scope.size() + id.key.size();
}
std::size_t BytesOf(const ClaimCommand& command) {
  return BytesOf(command.id) + command.request_hash.size() +
         command.owner.size() +
         (command.checkpoint.has_value() ? command.checkpoint->size() : 0);
}
std::size_t BytesOf(const FinalizeCommand& command) {
  return BytesOf(command.id) + command.response.headers.size() +
         command.response.body.size();
}
std::size_t BytesOf(const LookupCommand& command) {
  return BytesOf(command.id);
}
std::size_t BytesOf(const ReleaseCommand& command) {
  return BytesOf(command.id);
}

}  // namespace

Engine::Engine(const LaneOptions& options, const Clock& clock,
               FleetRulesCache& rules, Metrics& metrics, Log& log,
               std::vector<std::unique_ptr<Store>> stores,
               std::unique_ptr<Store> aside_store,
               std::size_t replay_cache_bytes)
    : clock_(clock),
      replays_(replay_cache_bytes, clock, metrics),
      aside_(std::make_unique<Lane>(
          AsideOptions(options), clock, rules, metrics, log,
          KeepingReplays(std::move(aside_store), replays_, clock), nullptr)) {
  for (std::unique_ptr<Store>& store : stores) {
    lanes_.push_back(std::make_unique<Lane>(
        options, clock, rules, metrics, log,
        KeepingReplays(std::move(store), replays_, clock), aside_.get()));
  }
}

template <typename Command, typename Outcome>
void Engine::Enqueue(Command command, CallContext context, Done<Outcome> done) {
  Lane& lane = *lanes_[StableHashOf(command.id) % lanes_.size()];
  const std::size_t bytes = BytesOf(command);
  std::list<Call> call;
  call.push_back({.request = Request<Command, Outcome>{std::move(command),
                                                       std::move(done)},
                  .context = std::move(context),
                  .submitted = clock_.Now(),
                  .bytes = bytes});
  lane.Submit(std::move(call));
}

void Engine::Submit(ClaimCommand command, CallContext context,
                    Done<ClaimOutcome> done) {
  if (accepting_) {
    std::optional<ClaimOutcome> replay = replays_.Answer(command);
    if (replay.has_value()) {
      std::move(done)(*std::move(replay));
      return;
    }
  }
  Enqueue(std::move(command), std::move(context), std::move(done));
}

void Engine::Submit(FinalizeCommand command, CallContext context,
                    Done<FinalizeOutcome> done) {
  Enqueue(std::move(command), std::move(context), std::move(done));
}

void Engine::Submit(LookupCommand command, CallContext context,
                    Done<LookupOutcome> done) {
  Enqueue(std::move(command), std::move(context), std::move(done));
}

void Engine::Submit(ReleaseCommand command, CallContext context,
                    Done<ReleaseOutcome> done) {
  Enqueue(std::move(command), std::move(context), std::move(done));
}

void Engine::StopAccepting() {
  accepting_ = false;
  for (const auto& lane : lanes_) lane->StopAccepting();
}

std::size_t Engine::queued() const {
  std::size_t queued = aside_->queued();
  for (const auto& lane : lanes_) queued += lane->queued();
  return queued;
}

std::size_t Engine::waiting() const {
  std::size_t waiting = 0;
  for (const auto& lane : lanes_) waiting += lane->waiting();
  return waiting;
}

bool Engine::idle() const {
  // A call moves from a lane to the aside lane, and back only to wait, which
  // nobody does in a lane that has stopped accepting: the order matters.
  for (const auto& lane : lanes_) {
    if (!lane->idle()) return false;
  }
  return aside_->idle();
}

void Engine::Stop() {
  for (const auto& lane : lanes_) lane->Stop();
  aside_->Stop();
}

std::vector<Lane*> Engine::lanes() {
  std::vector<Lane*> lanes;
  for (const auto& lane : lanes_) lanes.push_back(lane.get());
  lanes.push_back(aside_.get());
  return lanes;
}

}  // namespace idempotency
