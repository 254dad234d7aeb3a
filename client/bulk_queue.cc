#include "client/bulk_queue.h"

#include <algorithm>
#include <utility>

namespace idempotency::internal {
namespace {

// Of a command beside its request: tags and lengths, id and timeout.
constexpr std::size_t kCommandOverheadBytes = 48;
// What falls due within this time is taken together.
constexpr std::chrono::milliseconds kDuePause{1};

}  // namespace

void BulkQueue::Add(std::shared_ptr<BulkCommand> command,
                    std::size_t request_bytes, TimePoint deadline) {
  const std::uint64_t id = next_id_++;
  (command->urgent() ? urgent_ : waiting_).push_back(id);
  commands_.emplace(id, InFlight{.command = std::move(command),
                                 .bytes = request_bytes,
                                 .deadline = deadline});
  due_at_ = std::min(deadline, due_at_.value_or(deadline));
}

std::vector<BulkQueue::Outgoing> BulkQueue::TakeMessage(TimePoint now) {
  std::vector<Outgoing> message;
  std::size_t bytes = 0;
  TakeWaiting(now, urgent_, bytes, message);
  if (urgent_.empty()) TakeWaiting(now, waiting_, bytes, message);
  return message;
}

void BulkQueue::TakeWaiting(TimePoint now, std::deque<std::uint64_t>& waiting,
                            std::size_t& bytes,
                            std::vector<Outgoing>& message) {
  while (!waiting.empty() && message.size() < kBulkCommandsMax) {
    const auto found = commands_.find(waiting.front());
    if (found != commands_.end() && !found->second.cancelled &&
        found->second.deadline > now) {
      InFlight& next = found->second;
      bytes += next.bytes + kCommandOverheadBytes;
      if (!message.empty() && bytes > kBulkBytesMax) break;
      next.sent = true;
      message.push_back({found->first, next.command, next.deadline - now});
    }
    waiting.pop_front();
  }
}

std::shared_ptr<BulkCommand> BulkQueue::TakeAnswered(std::uint64_t id) {
  ever_answered_ = true;
  silent_since_.reset();
  const auto found = commands_.find(id);
  if (found == commands_.end()) return nullptr;
  std::shared_ptr<BulkCommand> command = std::move(found->second.command);
  commands_.erase(found);
  return command;
}

BulkQueue::Unanswered BulkQueue::Take(InFlight& in_flight) {
  return {std::move(in_flight.command), in_flight.sent, in_flight.cancelled};
}

// All are looked at, which takes no longer than the sending of one message and
// is seldom: commands are mostly answered long before they are due.
std::vector<BulkQueue::Unanswered> BulkQueue::TakeDue(TimePoint now) {
  std::vector<Unanswered> due;
  std::optional<TimePoint> next;
  for (auto each = commands_.begin(); each != commands_.end();) {
    InFlight& in_flight = each->second;
    if (in_flight.cancelled || in_flight.deadline <= now) {
      if (in_flight.sent && !in_flight.cancelled && !silent_since_) {
        silent_since_ = now;
      }
      due.push_back(Take(in_flight));
      commands_.erase(each++);
      continue;
    }
    next = std::min(in_flight.deadline, next.value_or(in_flight.deadline));
    ++each;
  }
  stands_still_ = silent_since_ && now - *silent_since_ >= kBulkSilence;
  if (silent_since_ && !stands_still_) {
    const TimePoint end = *silent_since_ + kBulkSilence;
    next = std::min(end, next.value_or(end));
  }
  due_at_ = next;
  if (due_at_.has_value()) due_at_ = std::max(*due_at_, now + kDuePause);
  return due;
}

std::vector<BulkQueue::Unanswered> BulkQueue::TakeAll() {
  std::vector<Unanswered> all;
  for (auto& [id, in_flight] : commands_) all.push_back(Take(in_flight));
  commands_.clear();
  urgent_.clear();
  waiting_.clear();
  due_at_.reset();
  return all;
}

void BulkQueue::CancelAll() {
  for (auto& [id, in_flight] : commands_) in_flight.cancelled = true;
  if (!commands_.empty()) due_at_ = TimePoint::min();
}

}  // namespace idempotency::internal
