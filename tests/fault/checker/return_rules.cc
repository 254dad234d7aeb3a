// L3: calls end by their deadlines with an answer of the server's, and claims
// wait for as long as they ask to, or until the owner ends.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "server/core/limits.h"
#include "tests/fault/checker/progress_rules.h"
#include "tests/support/record_rules.h"

namespace idempotency::fault {
namespace {

// Shares are judged of so many at least.
constexpr std::int64_t kWaitsMin = 20;
// A machine is busy at times, and a server may end a wait early when the store
// fails it.
constexpr double kCutShortMax = 0.2;
constexpr double kOverlongMax = 0.2;
constexpr double kOversleptMax = 0.3;
constexpr double kSilentMax = 0.02;
// A wait that ends so much early has been cut short. Its time is counted from
// the request's arrival.
constexpr std::int64_t kEarlyNs = 5'000'000;
// And one that ends so much late was longer than asked for. Callers' deadlines
// come later.
constexpr std::int64_t kOverlongNs = 500'000'000;
// Who waits finds out so late at most that the owner has ended, and after an
// eighth of the time that he has waited.
constexpr std::int64_t kOversleepNs = 500'000'000;
constexpr std::int64_t kLookShare = 8;

struct Pause {
  std::string caller{};
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

std::vector<Pause> PausesOf(const Run& run) {
  std::vector<Pause> pauses;
  for (const NoteEvent& note : run.notes) {
    if (note.caller.empty() || note.phase == Phase::kNone) continue;
    if (note.phase == Phase::kBegin) {
      pauses.push_back({.caller = note.caller,
                        .begin = note.t,
                        .end = std::numeric_limits<std::int64_t>::max()});
      continue;
    }
    for (Pause& pause : pauses) {
      if (pause.caller == note.caller && pause.begin <= note.t) {
        pause.end = std::min(pause.end, note.t);
      }
    }
  }
  return pauses;
}

bool IsShareAbove(std::int64_t part, std::int64_t all, double share) {
  return all >= kWaitsMin &&
         static_cast<double>(part) > share * static_cast<double>(all);
}

std::string OutOf(std::int64_t part, std::int64_t all) {
  return std::to_string(part) + " of " + std::to_string(all);
}

// Until when the claim lets itself be kept waiting, counted from its call.
std::int64_t WaitOf(const CallEvent& call) {
  std::int64_t wait_us = call.wait_us;
  if (call.deadline_us != 0) {
    const std::int64_t margin_us =
        std::chrono::microseconds(idempotency::limits::kWaitMargin).count();
    wait_us = std::min(wait_us, call.deadline_us - margin_us);
  }
  return std::max<std::int64_t>(wait_us, 0) * 1000;
}

// When the attempt that the claim was told of had ended for certain: given up,
// recorded, taken over, or its lease over.
std::int64_t EndOfAttempt(const Operation& claim, const States& states) {
  const AnswerEvent& answer = *claim.answer;
  std::int64_t end = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = states.LastAt(answer.t);
       i > 0 && i >= states.FirstAt(claim.call.t); --i) {
    const Record* const state = states.at(i);
    if (state != nullptr && IsUnfinished(*state) && !IsGivenUp(*state) &&
        state->attempt == answer.attempt) {
      return std::min(end, states.clock().LastAt(state->lease_expires_at));
    }
    end = states.LatestOf(i);
  }
  return std::numeric_limits<std::int64_t>::max();
}

}  // namespace

void CheckReturns(const Run& run, const Limits& limits, Findings& findings) {
  const std::int64_t late = absl::ToInt64Nanoseconds(limits.late);
  const std::vector<Pause> pauses = PausesOf(run);
  for (const auto& [id, key] : run.keys) {
    for (const Operation& operation : key.operations) {
      if (operation.call.deadline_us == 0) continue;
      // Of a command, histories have what was on the stream. Its caller gives
      // up at the deadline, however much later the stream ends.
      if (operation.call.path == Path::kBulk) continue;
      const std::int64_t due =
          operation.call.t + operation.call.deadline_us * 1000 + late;
      const std::string caller = CallerOf(operation.name());
      const std::int64_t end = operation.answer.has_value()
                                   ? operation.answer->t
                                   : run.last_heard.at(caller);
      if (end <= due) continue;
      const bool paused =
          std::any_of(pauses.begin(), pauses.end(), [&](const Pause& pause) {
            return pause.caller == caller && pause.begin <= end &&
                   pause.end >= operation.call.t;
          });
      if (paused) continue;
      const std::string when =
          operation.answer.has_value()
              ? " ended " +
                    absl::FormatDuration(absl::Nanoseconds(end - due + late)) +
                    " after its deadline"
              : " never ended, and its caller went on";
      findings.Violate("L3", id, operation.name() + when);
    }
  }
}

void ReturnCheck::Add(const States& states) {
  for (const Operation& operation : states.key().operations) {
    if (!settled_.IsBegunIn(operation) || SaysNothing(operation) ||
        !operation.answer.has_value()) {
      continue;
    }
    CountSilent(operation);
    if (operation.is_decided() && operation.call.kind == Kind::kClaim &&
        WaitOf(operation.call) > 0) {
      CheckWait(operation, states);
    }
  }
}

// The server answers just before the deadline, if only that it is over: without
// a reason it is the caller's own library that gave up.
void ReturnCheck::CountSilent(const Operation& operation) {
  if (operation.call.path != Path::kUnary) return;
  ++findings_.counts.settled;
  findings_.counts.silent += operation.answer->code == "DEADLINE_EXCEEDED" &&
                             operation.answer->reason.empty();
}

void ReturnCheck::CheckWait(const Operation& claim, const States& states) {
  Counts& counts = findings_.counts;
  const std::int64_t wait = WaitOf(claim.call);
  const std::int64_t waited = claim.answer->t - claim.call.t;
  if (claim.answer->outcome != Outcome::kInProgress) {
    counts.woken += waited > kOversleepNs;
    return;
  }
  ++counts.waits;
  counts.cut_short += waited < wait - kEarlyNs;
  counts.overlong += waited > wait + kOverlongNs;
  const std::int64_t slack = kOversleepNs + waited / kLookShare;
  counts.overslept += EndOfAttempt(claim, states) < claim.answer->t - slack;
}

void ReturnCheck::Finish() {
  const Counts& counts = findings_.counts;
  if (IsShareAbove(counts.silent, counts.settled, kSilentMax)) {
    findings_.Violate("L3", {},
                      OutOf(counts.silent, counts.settled) +
                          " calls after the last fault had no answer of the "
                          "server's by their deadlines");
  }
  if (IsShareAbove(counts.cut_short, counts.waits, kCutShortMax)) {
    findings_.Violate("L3", {},
                      OutOf(counts.cut_short, counts.waits) +
                          " claims that were to wait were told InProgress "
                          "before");
  }
  if (IsShareAbove(counts.overlong, counts.waits, kOverlongMax)) {
    findings_.Violate("L3", {},
                      OutOf(counts.overlong, counts.waits) +
                          " claims waited longer than they had asked");
  }
  const std::int64_t ended = counts.woken + counts.overslept;
  if (IsShareAbove(counts.overslept, ended, kOversleptMax)) {
    findings_.Violate("L3", {},
                      OutOf(counts.overslept, ended) +
                          " claims waited on when the owner had long ended");
  }
}

}  // namespace idempotency::fault
