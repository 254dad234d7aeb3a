// Calls as they are sent, and which states of a record explain an answer.

#include <algorithm>

#include "tests/simulation/history_checker.h"
#include "tests/simulation/history_text.h"

namespace idempotency {
namespace {

constexpr int kServerErrorMin = 500;
// How long a replica may go on with what it read of a record that a fall-back
// has lost: what the cache of replays keeps, and some seconds.
constexpr absl::Duration kToldAfterLoss = absl::Seconds(70);

}  // namespace

HistoryChecker::Sent HistoryChecker::Begin(Key& key) {
  return {.sequence = ++sequence_,
          .time = now(),
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
  if (finalize.response.status_code >= kServerErrorMin) {
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
                                               absl::Time time) {
  sent.time = std::max(sent.time, time);
  for (const Moment& moment : KeyOf(id).moments) {
    if (moment.time < time) {
      sent.sequence = std::max(sent.sequence, moment.sequence);
    }
  }
  return sent;
}

// Between two changes of the record only its lease and its retention end: the
// times before and after are all that there are to try.
const HistoryChecker::Moment* HistoryChecker::FindFitting(const Sent& sent,
                                                          const Key& key,
                                                          absl::Time now,
                                                          Fits fits) {
  std::size_t first = key.moments.size() - 1;
  while (first > 0 && key.moments[first].sequence > sent.sequence) --first;
  for (std::size_t i = first; i < key.moments.size(); ++i) {
    const Moment& moment = key.moments[i];
    const absl::Time until =
        i + 1 < key.moments.size() ? key.moments[i + 1].time : now;
    const Record* const row = moment.row.get();
    const auto fits_at = [&](absl::Time time) {
      return time >= sent.time && time <= until && fits(row, time);
    };
    if (fits_at(sent.time) || fits_at(until)) return &moment;
    if (row == nullptr) continue;
    constexpr absl::Duration kTick = absl::Microseconds(1);
    for (const absl::Time end : {row->lease_expires_at, row->expires_at}) {
      if (fits_at(end) || fits_at(end - kTick)) return &moment;
    }
  }
  return nullptr;
}

const HistoryChecker::Moment* HistoryChecker::Explain(
    const Sent& sent, Key& key, const std::string& promise,
    const std::string& answer, Fits fits) {
  const Moment* const moment = FindFitting(sent, key, now(), fits);
  if (moment == nullptr) {
    Violate(promise, "nothing explains the answer " + answer);
  } else {
    NoteProgress(key, moment);
  }
  return moment;
}

const HistoryChecker::Moment* HistoryChecker::ExplainEvenIfLost(
    const Sent& sent, Key& key, const std::string& promise,
    const std::string& answer, Fits fits) {
  if (now() - key.fell_back_at < kToldAfterLoss &&
      FindFitting(sent, key, now(), fits) == nullptr) {
    for (const Moment& moment : key.moments) {
      if (moment.lost && moment.row != nullptr &&
          moment.row->state == RecordState::kFinal &&
          fits(moment.row.get(), moment.time)) {
        return &moment;
      }
    }
  }
  return Explain(sent, key, promise, answer, fits);
}

void HistoryChecker::NoteProgress(Key& key, const Moment* moment) {
  if (moment->row == nullptr || moment->lost) return;
  constexpr int kRanks[] = {0, 2, 1};  // by RecordState
  const Progress progress = {
      .created_at = moment->row->created_at,
      .fencing_token = moment->row->fencing_token,
      .rank = kRanks[static_cast<int>(moment->row->state)]};
  if (key.told_progress.Tied() < progress.Tied()) key.told_progress = progress;
}

}  // namespace idempotency
