// Calls as they are sent, and which states of a record explain an answer.

#include <algorithm>

#include "server/core/limits.h"
#include "tests/simulation/history_checker.h"
#include "tests/simulation/history_text.h"

namespace idempotency {
namespace {

// From when a statement looks at the clock until it sees the rows, at most.
constexpr Milliseconds kStatementBegins{50};

}  // namespace

HistoryChecker::Sent HistoryChecker::Begin(Key& key) {
  return {.sequence = ++sequence_,
          .at = steady_now(),
          .fencing_token = key.told_fencing_token,
          .owner = key.told_owner,
          .progress = key.told_progress};
}

HistoryChecker::Sent HistoryChecker::Send(const ClaimCommand& claim) {
  Key& key = KeyOf(claim.id);
  if (keeps_history_) Note(key, "< " + TextOfCall(claim));
  if (claim.resolve_in_doubt) key.resolving.insert(claim.claim_token);
  ++key.claims[claim.claim_token];
  key.never_granted.erase(claim.claim_token);
  return Begin(key);
}

HistoryChecker::Sent HistoryChecker::Send(const FinalizeCommand& finalize) {
  Key& key = KeyOf(finalize.id);
  if (keeps_history_) Note(key, "< " + TextOfCall(finalize));
  key.finalizes[finalize.response_digest].insert(finalize.claim_token);
  key.responses.emplace(finalize.response_digest, finalize.response);
  ++key.sendings[finalize.response_digest];
  key.never_recorded.erase(finalize.response_digest);
  if (finalize.response.status_code >= limits::kServerErrorMin) {
    key.may_give_up.insert(finalize.claim_token);
  }
  return Begin(key);
}

HistoryChecker::Sent HistoryChecker::Send(const LookupCommand& lookup) {
  Key& key = KeyOf(lookup.id);
  if (keeps_history_) Note(key, "< " + TextOfCall(lookup));
  return Begin(key);
}

HistoryChecker::Sent HistoryChecker::Send(const ReleaseCommand& release) {
  Key& key = KeyOf(release.id);
  if (keeps_history_) Note(key, "< " + TextOfCall(release));
  key.may_give_up.insert(release.claim_token);
  if (release.disposition == Disposition::kNeverExecuted) {
    key.never_executed.insert(release.claim_token);
  }
  return Begin(key);
}

HistoryChecker::Sent HistoryChecker::NotBefore(const RecordId& id, Sent sent,
                                               SteadyTime time) {
  sent.at = std::max(sent.at, time);
  for (const Moment& moment : KeyOf(id).moments) {
    if (moment.at < time) {
      sent.sequence = std::max(sent.sequence, moment.sequence);
    }
  }
  return sent;
}

// Between two changes of the record only its lease and its retention end: the
// times before and after, and those at which the clock is set, are all that
// there are to try.
const HistoryChecker::Moment* HistoryChecker::FindFitting(
    const Sent& sent, const Key& key, Fits fits, bool even_if_lost) const {
  std::size_t first = key.moments.size() - 1;
  while (first > 0 && key.moments[first].sequence > sent.sequence) --first;
  for (std::size_t i = first; i < key.moments.size(); ++i) {
    const Moment& moment = key.moments[i];
    if (moment.lost && !even_if_lost) continue;
    const SteadyTime until =
        i + 1 < key.moments.size() ? key.moments[i + 1].at : steady_now();
    const Record* const row = moment.row.get();
    const auto fits_within = [&](SteadyTime from, SteadyTime to,
                                 Microseconds ahead) {
      const absl::Time earliest = SteppedClock::Reading(from, ahead);
      const absl::Time latest = SteppedClock::Reading(to, ahead);
      const auto fits_at = [&](absl::Time time) {
        return time >= earliest && time <= latest && fits(row, time);
      };
      if (fits_at(earliest) || fits_at(latest)) return true;
      if (row == nullptr) return false;
      constexpr absl::Duration kTick = absl::Microseconds(1);
      for (const absl::Time end : {row->lease_expires_at, row->expires_at}) {
        if (fits_at(end) || fits_at(end - kTick)) return true;
      }
      return false;
    };
    if (database_.clock().AnyStretch(sent.at, until, fits_within)) {
      return &moment;
    }
  }
  return nullptr;
}

const HistoryChecker::Moment* HistoryChecker::Explain(
    const Sent& sent, Key& key, const std::string& promise,
    const std::string& answer, Fits fits) {
  const Moment* const moment = FindFitting(sent, key, fits);
  if (moment == nullptr) {
    Violate(promise, "nothing explains the answer " + answer);
  } else {
    NoteProgress(key, moment);
  }
  return moment;
}

bool HistoryChecker::IsRemembered(const Sent& sent, const Key& key,
                                  Fits fits) const {
  const SteadyTime since =
      std::max(sent.remembers_since, sent.at - limits::kReplayCacheLifeMax);
  for (std::size_t i = 0; i < key.moments.size(); ++i) {
    const Moment& moment = key.moments[i];
    const SteadyTime until =
        i + 1 < key.moments.size() ? key.moments[i + 1].at : steady_now();
    const Record* const row = moment.row.get();
    if (until < since || row == nullptr || row->state != RecordState::kFinal) {
      continue;
    }
    // By any clock that it can have been read with, as if that had gone on.
    if (database_.clock().AnyStretch(
            moment.at - kStatementBegins, until,
            [&](SteadyTime, SteadyTime, Microseconds ahead) {
              return fits(row, SteppedClock::Reading(sent.at, ahead));
            })) {
      return true;
    }
  }
  return false;
}

const HistoryChecker::Moment* HistoryChecker::ExplainWritten(
    const Sent& sent, Key& key, const std::string& promise,
    const std::string& promise_to_keep, const std::string& what, Fits fits) {
  const Moment* const moment = FindFitting(sent, key, fits, false);
  if (moment == nullptr) {
    Violate(promise, "nothing that is left explains a " + what);
    return nullptr;
  }
  NoteProgress(key, moment);
  std::uint64_t& newest = key.written[{promise_to_keep, what}];
  newest = std::max(newest, moment->sequence);
  return moment;
}

HistoryChecker::Progress HistoryChecker::ProgressOf(const Record& record) {
  constexpr int kRanks[] = {0, 2, 1};  // by RecordState
  return {.fencing_token = record.fencing_token,
          .rank = kRanks[static_cast<int>(record.state)]};
}

void HistoryChecker::NoteProgress(Key& key, const Moment* moment) {
  if (moment->row == nullptr || moment->lost ||
      moment->sequence < key.began_anew) {
    return;
  }
  const Progress progress = ProgressOf(*moment->row);
  if (key.told_progress.Tied() < progress.Tied()) key.told_progress = progress;
}

}  // namespace idempotency
