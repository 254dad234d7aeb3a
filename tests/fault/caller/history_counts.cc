#include "tests/fault/caller/history_counts.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "server/core/limits.h"
#include "tests/fault/caller/events.h"
#include "tests/fault/checker/history.h"

namespace idempotency::fault {
namespace {

constexpr std::int64_t kBodyBytesKept = 10'000;
constexpr std::int64_t kWaitedNs = 50'000'000;

using KeyId = std::pair<std::string, std::string>;

std::int64_t TimeOf(const Event& event) {
  return std::visit([](const auto& one) { return one.t; }, event);
}

// Takes all events in the order of their times.
class Counter {
 public:
  void operator()(const CallEvent& call) {
    if (!calls_.emplace(call.op, call).second) ++counts_["called_twice"];
    ++unanswered_;
    Count(PathName(call.path));
    Count(KindName(call.kind));
    if (call.renew > 0) Count("renewal");
    if (call.wait_us > 0) Count("wait");
    if (call.resolve) Count("resolve");
    if (call.checkpoint.has_value()) Count("checkpoint");
    if (call.body_bytes > kBodyBytesKept) Count("over_body_limit");
    if (call.header_count > static_cast<std::int64_t>(limits::kHeadersMax)) {
      Count("over_header_limit");
    }
    const std::size_t slash = call.owner.find('/');
    if (slash != std::string::npos) Count(call.owner.substr(slash));
  }

  void operator()(const AnswerEvent& answer) {
    const auto found = calls_.find(answer.op);
    if (found == calls_.end() || !answered_.insert(answer.op).second) {
      return Count("answered_unasked");
    }
    --unanswered_;
    Count(WordOf(answer));
    if (answer.body_omitted) Count("body_omitted");
    if (answer.headers_omitted) Count("headers_omitted");
    Judge(found->second, answer);
  }

  void operator()(const EffectEvent& effect) {
    Count(effect.result == EffectResult::kExecuted    ? "effect_executed"
          : effect.result == EffectResult::kDuplicate ? "effect_duplicate"
                                                      : "effect_refused");
    const auto owned = owned_.find({effect.scope, effect.key});
    if (effect.result != EffectResult::kRefused && effect.fencing > 0 &&
        owned != owned_.end() && owned->second > effect.fencing) {
      Count("overlapping_owners");
    }
  }

  void operator()(const NoteEvent&) {}
  void operator()(const ClockEvent&) {}

  Counts Take() {
    if (unanswered_ > 0) counts_["unanswered"] = unanswered_;
    return std::move(counts_);
  }

 private:
  void Count(std::string_view word) { ++counts_[std::string(word)]; }

  // What an answer means, given what was known when its call was sent.
  void Judge(const CallEvent& call, const AnswerEvent& answer) {
    const KeyId key{call.scope, call.key};
    if (answer.outcome == Outcome::kClaimed ||
        answer.outcome == Outcome::kReplay) {
      if (call.wait_us > 0 && answer.t - call.t > kWaitedNs) Count("waited");
    }
    if (answer.outcome == Outcome::kClaimed) {
      JudgeGrant(call, answer);
    } else if (answer.outcome == Outcome::kReplay ||
               answer.outcome == Outcome::kRecorded ||
               answer.outcome == Outcome::kRecordedWithoutBody) {
      final_.emplace(key, answer.t);
    } else if (answer.outcome == Outcome::kReleased) {
      ended_.emplace(call.token, answer.t);
    } else if (answer.reason == "CLAIM_SUPERSEDED" &&
               call.kind == Kind::kFinalize && owners_.contains(call.token)) {
      Count("superseded_owner");
    } else if (answer.reason == "CLAIM_RELEASED" && call.kind == Kind::kClaim &&
               call.renew == 0 && IsBefore(ended_, call.token, call.t)) {
      Count("late_claim");
    }
  }

  void JudgeGrant(const CallEvent& call, const AnswerEvent& answer) {
    const KeyId key{call.scope, call.key};
    owners_.insert(call.token);
    std::int64_t& owned = owned_[key];
    owned = std::max(owned, answer.fencing);
    if (!answer.abandoned_checkpoint.empty()) Count("handed_over");
    if (answer.attempt == 1 && IsBefore(final_, key, call.t)) Count("new_life");
  }

  template <typename Key>
  static bool IsBefore(const std::map<Key, std::int64_t>& times, const Key& key,
                       std::int64_t t) {
    const auto found = times.find(key);
    return found != times.end() && found->second < t;
  }

  Counts counts_;
  int unanswered_ = 0;
  std::map<std::string, CallEvent> calls_;
  std::set<std::string> answered_;
  std::set<std::string> owners_;               // claim tokens
  std::map<std::string, std::int64_t> ended_;  // claim token: known since
  std::map<KeyId, std::int64_t> final_;        // known since, in any life
  std::map<KeyId, std::int64_t> owned_;        // the highest fencing token
};

}  // namespace

absl::StatusOr<Counts> CountsOf(const std::vector<std::string>& histories) {
  std::vector<Event> events;
  for (const std::string& path : histories) {
    if (!std::filesystem::exists(path)) continue;
    const absl::Status read = ReadHistory(path, [&](Event&& event) {
      events.push_back(std::move(event));
      return absl::OkStatus();
    });
    if (!read.ok()) return read;
  }
  std::stable_sort(events.begin(), events.end(),
                   [](const Event& one, const Event& other) {
                     return TimeOf(one) < TimeOf(other);
                   });
  Counter counter;
  for (const Event& event : events) std::visit(counter, event);
  return counter.Take();
}

}  // namespace idempotency::fault
