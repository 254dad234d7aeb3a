// What an answer tells beyond the record: what is left of a lease, when to ask
// again, how many responses were refused.

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>

#include "server/core/limits.h"
#include "tests/fault/checker/answer_rules.h"

namespace idempotency::fault {
namespace {

constexpr absl::Duration kTick = absl::Microseconds(1);
// With so much of a lease left there is time to wait for.
constexpr absl::Duration kWorthWaiting = absl::Milliseconds(10);
constexpr std::size_t kEvidenceMax = limits::kConflictsPerRecordMax;

class ToldCheck {
 public:
  ToldCheck(const RecordId& id, const KeyHistory& key,
            const DatabaseClock& clock, Findings& findings)
      : id_(id), key_(key), clock_(clock), findings_(findings) {}

  void Run() {
    for (const Operation& operation : key_.operations) {
      if (operation.certainty != Certainty::kFact) continue;
      switch (operation.answer->outcome) {
        case Outcome::kClaimed:
          CheckLease(operation);
          break;
        case Outcome::kInProgress:
          CheckRetryAfter(operation);
          break;
        case Outcome::kFound:
          CheckConflictCount(operation);
          break;
        default:
          break;
      }
    }
  }

 private:
  absl::Time Earliest(const Operation& operation) const {
    return clock_.Between(operation.call.t, operation.answer->t).earliest -
           kTick;
  }
  absl::Time Latest(const Operation& operation) const {
    return clock_.Between(operation.call.t, operation.answer->t).latest + kTick;
  }

  // Callers count it from the moment at which they asked: the server has taken
  // off what passed since.
  void CheckLease(const Operation& operation) {
    const AnswerEvent& answer = *operation.answer;
    const absl::Time counted_from =
        absl::FromUnixMicros(answer.lease_until_us - answer.lease_us);
    if (answer.lease_us > 0 && counted_from >= Earliest(operation) &&
        counted_from <= Latest(operation) +
                            absl::Nanoseconds(answer.t - operation.call.t)) {
      return;
    }
    findings_.Violate("S3", id_,
                      operation.name() + " was told that " +
                          std::to_string(answer.lease_us) +
                          " us are left of a lease of which it is not so");
  }

  // Nobody is asked to stay away for longer than the lease runs.
  void CheckRetryAfter(const Operation& operation) {
    const AnswerEvent& answer = *operation.answer;
    const absl::Time until = absl::FromUnixMicros(answer.lease_until_us);
    const absl::Duration told = absl::Microseconds(answer.retry_after_us);
    const bool too_long = told > until - Earliest(operation);
    const bool at_once = told <= absl::ZeroDuration() &&
                         until - Latest(operation) > kWorthWaiting;
    if (!too_long && !at_once) return;
    findings_.Violate("S5", id_,
                      operation.name() + " was told to ask again after " +
                          absl::FormatDuration(told) + ", of a lease with " +
                          absl::FormatDuration(until - Latest(operation)) +
                          " left");
  }

  // Different responses of this life that were refused, or may have been.
  void CheckConflictCount(const Operation& operation) {
    const AnswerEvent& answer = *operation.answer;
    const absl::Time created = absl::FromUnixMicros(answer.created_us);
    std::set<std::string> possible;
    std::set<std::string> certain;
    for (const Operation& finalize : key_.operations) {
      if (finalize.call.kind != Kind::kFinalize ||
          finalize.call.t >= answer.t ||
          finalize.certainty == Certainty::kNothing) {
        continue;
      }
      possible.insert(finalize.call.digest);
      if (finalize.certainty == Certainty::kFact &&
          finalize.answer->code != "OK" &&
          finalize.answer->t < operation.call.t &&
          Earliest(finalize) > created) {
        certain.insert(finalize.call.digest);
      }
    }
    const auto told = static_cast<std::size_t>(answer.conflicts);
    const bool too_many = told > possible.size();
    const bool too_few = told < std::min(certain.size(), kEvidenceMax) &&
                         key_.conflicts.size() < kEvidenceMax &&
                         !IsOverBy(created, Latest(operation));
    if (!too_many && !too_few) return;
    findings_.Violate(
        "S7", id_,
        operation.name() + " was told of " + std::to_string(answer.conflicts) +
            " refused responses; there were " + std::to_string(certain.size()) +
            " to " + std::to_string(possible.size()));
  }

  // The count is read after the record, which may be that of a new life by
  // then.
  bool IsOverBy(absl::Time created, absl::Time time) const {
    return std::any_of(
        key_.changes.begin(), key_.changes.end(), [&](const Change& change) {
          const bool deleted = change.kind == ChangeKind::kDelete;
          return (deleted || change.row.record.created_at != created) &&
                 change.row.at >= created && change.row.at <= time;
        });
  }

  const RecordId& id_;
  const KeyHistory& key_;
  const DatabaseClock& clock_;
  Findings& findings_;
};

}  // namespace

void CheckTold(const RecordId& id, const KeyHistory& key,
               const DatabaseClock& clock, Findings& findings) {
  ToldCheck(id, key, clock, findings).Run();
}

}  // namespace idempotency::fault
