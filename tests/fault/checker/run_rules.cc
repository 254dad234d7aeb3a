#include "tests/fault/checker/run_rules.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "server/core/limits.h"
#include "tests/fault/checker/hex.h"

namespace idempotency::fault {
namespace {

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
    if (!operation.is_decided() ||
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
  // No more are kept.
  if (key.conflicts.size() >= idempotency::limits::kConflictsPerRecordMax) {
    return;
  }
  for (const Operation& operation : key.operations) {
    if (operation.call.kind != Kind::kFinalize || !operation.is_decided() ||
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

}  // namespace idempotency::fault
