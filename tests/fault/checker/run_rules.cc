// What is not about the order of one record's calls: the final table, evidence,
// isolation and progress.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "server/core/limits.h"
#include "tests/fault/checker/check.h"
#include "tests/fault/checker/hex.h"
#include "tests/support/record_rules.h"

namespace idempotency::fault {
namespace {

constexpr std::size_t kEvidenceMax = 16;
constexpr int kTriedInVainMin = 3;
constexpr std::int64_t kGoodputCallsMin = 20;

bool IsDecided(const Operation& operation) {
  return operation.certainty == Certainty::kFact;
}

// Did it fail for want of a working service? Not if its own fault refused it.
bool IsInVain(const Operation& operation) {
  if (IsDecided(operation)) return false;
  if (!operation.answer.has_value()) return true;
  const std::string& reason = operation.answer->reason;
  return reason != "INVALID_FIELD" && reason != "UNKNOWN_POLICY" &&
         reason != "POLICY_NOT_ALLOWED";
}

// It ended by its caller's will, or too soon to say anything of the service.
bool SaysNothing(const Operation& operation) {
  constexpr std::int64_t kHastyUs = 250'000;
  return (operation.answer.has_value() &&
          operation.answer->code == "CANCELLED") ||
         (operation.call.deadline_us != 0 &&
          operation.call.deadline_us < kHastyUs);
}

// Of commands only their stream's end is known.
bool WaitedTooLong(const Operation& operation, absl::Duration late) {
  return operation.call.path != Path::kBulk && IsDecided(operation) &&
         operation.answer->outcome == Outcome::kInProgress &&
         operation.answer->t > operation.call.t +
                                   operation.call.wait_us * 1000 +
                                   absl::ToInt64Nanoseconds(late);
}

std::int64_t EndOf(const Operation& operation) {
  return operation.answer.has_value()
             ? operation.answer->t
             : operation.call.t + operation.call.deadline_us * 1000;
}

// Calls in vain, one after the other.
struct InVain {
  int calls = 0;
  std::int64_t since = 0;
  std::int64_t until = 0;

  void Add(const Operation& operation) {
    if (calls++ == 0) since = operation.call.t;
    until = std::max(until, EndOf(operation));
  }
  bool IsTooMuch(absl::Duration patience) const {
    return calls >= kTriedInVainMin &&
           until - since > absl::ToInt64Nanoseconds(patience);
  }
};

std::string Name(const RecordId& id) { return id.scope + " " + id.key; }

// The record as the log leaves it; nullptr: none.
const Record* LastOf(const KeyHistory& key) {
  if (key.changes.empty() || key.changes.back().kind == ChangeKind::kDelete) {
    return nullptr;
  }
  return &key.changes.back().row.record;
}

// Was the response that was acknowledged ever in the log?
bool IsLogged(const Operation& finalize, const KeyHistory& key) {
  return std::any_of(
      key.changes.begin(), key.changes.end(), [&](const Change& change) {
        return change.row.record.state == RecordState::kFinal &&
               ToHex(change.row.record.response_digest) == finalize.call.digest;
      });
}

// Can it be the response of a Finalize that was refused?
bool IsGenuine(const Conflict& conflict, const KeyHistory& key) {
  return std::any_of(
      key.operations.begin(), key.operations.end(),
      [&](const Operation& operation) {
        if (operation.call.kind != Kind::kFinalize ||
            operation.certainty == Certainty::kNothing ||
            operation.call.token != FormatUuid(conflict.claim_token) ||
            operation.call.digest != ToHex(conflict.response_digest) ||
            operation.call.status != conflict.status_code) {
          return false;
        }
        return operation.certainty == Certainty::kUnknown ||
               operation.answer->code != "OK" ||
               !IsSentOnce(operation.call, *operation.answer);
      });
}

}  // namespace

void CheckFinalTable(const RecordId& id, const KeyHistory& key,
                     Findings& findings) {
  if (key.dump.size() > 1) {
    findings.Violate("S19", id,
                     std::to_string(key.dump.size()) + " rows of one key");
  }
  const Record* const last = LastOf(key);
  if (last == nullptr ? !key.dump.empty()
                      : key.dump.empty() || key.dump.front().record != *last) {
    findings.Violate("S19", id,
                     "the table does not hold what the log ends with");
  }
  for (const Operation& operation : key.operations) {
    if (!IsDecided(operation) ||
        (operation.answer->outcome != Outcome::kRecorded &&
         operation.answer->outcome != Outcome::kRecordedWithoutBody) ||
        IsLogged(operation, key)) {
      continue;
    }
    findings.Violate(
        "S19", id,
        "the response that " + operation.name() + " had recorded is nowhere");
  }
}

void CheckOmissions(const RecordId& id, const KeyHistory& key,
                    const Limits& limits, Findings& findings) {
  for (const Change& change : key.changes) {
    const Record& record = change.row.record;
    const Response& kept = record.response;
    if (record.state != RecordState::kFinal ||
        (!kept.body_omitted && !kept.headers_omitted)) {
      continue;
    }
    for (const Operation& operation : key.operations) {
      const CallEvent& call = operation.call;
      if (call.kind != Kind::kFinalize ||
          call.digest != ToHex(record.response_digest)) {
        continue;
      }
      const bool may_leave_body =
          call.body_omitted || call.body_bytes > limits.body_bytes_max;
      const bool may_leave_headers =
          call.headers_omitted ||
          call.header_count >
              static_cast<std::int64_t>(idempotency::limits::kHeadersMax) ||
          call.header_bytes >
              static_cast<std::int64_t>(idempotency::limits::kHeaderBytesMax);
      if ((!kept.body_omitted || may_leave_body) &&
          (!kept.headers_omitted || may_leave_headers)) {
        continue;
      }
      findings.Violate("S9", id,
                       "something was left out of the response of " +
                           operation.name() + ", which is short enough");
      return;
    }
  }
}

void CheckEvidence(const RecordId& id, const KeyHistory& key,
                   Findings& findings) {
  for (const Conflict& conflict : key.conflicts) {
    if (IsGenuine(conflict, key)) continue;
    findings.Violate("S7", id,
                     "evidence of a response by " +
                         FormatUuid(conflict.claim_token) +
                         " that nobody was refused");
  }
  if (key.conflicts.size() >= kEvidenceMax) return;  // no more are kept
  for (const Operation& operation : key.operations) {
    if (operation.call.kind != Kind::kFinalize || !IsDecided(operation) ||
        operation.answer->code == "OK") {
      continue;
    }
    const bool is_kept = std::any_of(
        key.conflicts.begin(), key.conflicts.end(),
        [&](const Conflict& conflict) {
          return FormatUuid(conflict.claim_token) == operation.call.token &&
                 ToHex(conflict.response_digest) == operation.call.digest;
        });
    if (is_kept) continue;
    findings.Violate("S7", id,
                     "the response that " + operation.name() +
                         " was refused left no evidence");
  }
}

void CheckIsolation(const Run& run, Findings& findings) {
  std::map<std::string, RecordId> tokens;
  std::map<std::string, RecordId> downstream_keys;
  const auto own = [&](std::map<std::string, RecordId>& owners,
                       const std::string& value, const RecordId& id,
                       const std::string& what) {
    if (value.empty()) return;
    const RecordId& owner = owners.emplace(value, id).first->second;
    if (owner == id) return;
    findings.Violate("S13", id,
                     what + " " + value + " is that of " + Name(owner));
  };
  for (const auto& [id, key] : run.keys) {
    for (const Operation& operation : key.operations) {
      if (!operation.answer.has_value()) continue;
      own(downstream_keys, operation.answer->downstream, id,
          "the downstream key told to " + operation.name() + ",");
    }
    for (const EffectEvent& effect : key.effects) {
      own(downstream_keys, effect.downstream, id, "an effect's downstream key");
      const auto asked = run.token_owners.find(effect.token);
      if (asked == run.token_owners.end() || asked->second == id) continue;
      findings.Violate("S13", id,
                       "an effect's claim token " + effect.token +
                           " is that of " + Name(asked->second));
    }
  }
}

// ---- Progress.

namespace {

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

void CheckProgress(const RecordId& id, const KeyHistory& key,
                   const KeyCheck& states, const Limits& limits,
                   std::int64_t settled, Findings& findings) {
  InVain all;
  InVain dead_owner;
  bool decided = false;
  for (const Operation& operation : key.operations) {
    if (operation.call.t < settled || SaysNothing(operation)) continue;
    if (WaitedTooLong(operation, limits.late)) {
      findings.Violate("L3", id,
                       operation.name() + " waited longer than it had asked");
    }
    if (!IsInVain(operation)) {
      decided = true;
      dead_owner = {};
      continue;
    }
    all.Add(operation);
    const Record* const state =
        states.state(states.LastStateAt(operation.call.t));
    const bool takeable = operation.call.kind == Kind::kClaim &&
                          state != nullptr && IsUnfinished(*state) &&
                          states.WasOver(*state, operation.call.t) &&
                          (!state->held || operation.call.resolve);
    if (!takeable) continue;
    dead_owner.Add(operation);
    if (!dead_owner.IsTooMuch(limits.patience)) continue;
    findings.Violate("L1", id,
                     "nobody gets the key of a dead owner: " +
                         operation.name() + " failed like those before");
    dead_owner = {};
  }
  if (decided || !all.IsTooMuch(limits.patience)) return;
  findings.Violate("L2", id,
                   std::to_string(all.calls) +
                       " calls after the last fault, and none decided");
}

void CheckGoodput(const Run& run, const Limits& limits, std::int64_t settled,
                  Findings& findings) {
  std::int64_t calls = 0;
  std::int64_t in_vain = 0;
  std::int64_t& decided = findings.counts.after_faults;
  for (const auto& [id, key] : run.keys) {
    for (const Operation& operation : key.operations) {
      if (operation.call.t < settled || SaysNothing(operation)) continue;
      ++calls;
      if (IsDecided(operation)) ++decided;
      if (IsInVain(operation)) ++in_vain;
    }
  }
  const auto wanted = limits.decided_share * static_cast<double>(calls);
  if (calls < kGoodputCallsMin ||
      static_cast<double>(calls - in_vain) >= wanted) {
    return;
  }
  findings.Violate("L4", {},
                   std::to_string(in_vain) + " of " + std::to_string(calls) +
                       " calls after the last fault were not decided");
}

}  // namespace idempotency::fault
