// The lane's calls while they wait: for a turn until their time is up, and for
// another owner's end.
#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "server/core/call_errors.h"
#include "server/core/lane.h"
#include "server/core/outcome_counts.h"
#include "server/core/transitions.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;

// How often the calls that wait for an absent store are looked through.
constexpr milliseconds kSweepInterval{20};
// How often it is seen which waiters' callers have gone, or wait no longer.
constexpr milliseconds kRollCallInterval{100};
// Between two looks, so that each is for many keys, and so many times as long
// as the last one took, so that calls have the store for the most part. What
// took as long as a store needs to be given up says nothing of the next one.
constexpr milliseconds kLookPauseMin{20};
constexpr milliseconds kLookPauseMax = kLookIntervalMax;
constexpr int kLookRest = 4;

// The lease is counted from now on, and so ends here a little after its end by
// the database's clock: a look at its end finds it over.
std::shared_ptr<const Seen> SeenNow(const InProgress& answer,
                                    const Record& record, SteadyTime now) {
  return std::make_shared<Seen>(
      Seen{.answer = answer,
           .version = record.version,
           .policy = record.policy.name,
           .lapses_at = now + absl::ToChronoNanoseconds(answer.lease_left)});
}

bool WaitIsOver(const Call& call) {
  return call.context.wait_is_over != nullptr && *call.context.wait_is_over;
}

const InProgress* AsInProgress(const absl::StatusOr<ClaimOutcome>& outcome) {
  return outcome.ok() ? std::get_if<InProgress>(&*outcome) : nullptr;
}

// Would the answer be news to those who wait for the record?
bool EndsWaits(const absl::StatusOr<ClaimOutcome>& outcome) {
  return outcome.ok() && (std::holds_alternative<Replay>(*outcome) ||
                          std::holds_alternative<InDoubt>(*outcome));
}

}  // namespace

// ---- Until there is something to do.

SteadyTime Lane::NextWork() const {
  SteadyTime next = SteadyTime::max();
  if (!queue_.empty()) next = std::max(queue_.next_round(), not_before_);
  if (waiters_.empty()) return next;
  if (!accepting_) return SteadyTime::min();
  const SteadyTime look =
      std::max({waiters_.next_look(), look_not_before_, not_before_});
  return std::min({next, waiters_.next_end(), next_roll_call_, look});
}

SteadyTime Lane::next_work() const {
  MutexLock lock(mutex_);
  return NextWork();
}

bool Lane::WaitForWork() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  std::unique_lock<Mutex> lock(mutex_);
  // While the store is left alone, calls come to their end all the same.
  SteadyTime sweep = SteadyTime::max();
  while (!stopped_) {
    const SteadyTime now = clock_.Now();
    if (queue_.empty()) {
      sweep = SteadyTime::max();
    } else if (sweep == SteadyTime::max()) {
      sweep = now + kSweepInterval;
    }
    const SteadyTime next = std::min(NextWork(), sweep);
    if (next <= now) return true;
    sleeping_ = true;
    if (next == SteadyTime::max()) {
      changed_.wait(lock);
    } else {
      changed_.wait_for(lock, next - now);
    }
    sleeping_ = false;
  }
  return false;
}

// ---- What needs no store.

// While the store is away every call that waits for it is hindered, tried or
// not.
bool Lane::IsDead(const Call& call, SteadyTime now) const {
  if (CallerIsGone(call)) return true;
  const bool hindered = store_failed_ || !call.setback.ok();
  SteadyTime::duration margin = SteadyTime::duration::zero();
  // Another try may wait for the lock as long again.
  if (call.setback.code() == absl::StatusCode::kAborted) {
    margin += limits::kLockWaitMax;
  }
  if (IsWaiter(call)) {
    if (WaitIsOver(call)) return true;
    return now >= (hindered ? call.context.wait_until
                            : call.context.deadline - limits::kWaitMargin) -
                      margin;
  }
  if (hindered) margin += limits::kAnswerMargin;
  if (call.context.deadline - margin <= now) return true;
  return hindered && !IsLost(call) &&
         call.setback.code() != absl::StatusCode::kAborted &&
         now - call.submitted > options_.store_patience;
}

void Lane::AnswerDead(Call& call) const {
  if (CallerIsGone(call)) {
    Count(metrics_.cancelled_in_queue);
    Answer(call, absl::CancelledError("the caller has gone"));
    return;
  }
  if (store_failed_ && call.setback.ok()) {
    call.setback = absl::UnavailableError("not tried");
  }
  if (call.setback.ok() && !IsWaiter(call)) Count(metrics_.expired_in_queue);
  Refuse(call, OutOfTime(call));
}

// Ends a call that goes no further with what is known of it.
void Lane::Refuse(Call& call, const absl::Status& why) const {
  if (IsWaiter(call)) {
    AnswerInProgress(call);
  } else {
    Answer(call, IsLost(call) ? OutOfTime(call) : why);
  }
}

// For the times when nothing is taken to the store: it is left alone for a
// while, or the lane has been stopped.
void Lane::AnswerDeadInQueue() {
  const SteadyTime now = clock_.Now();
  std::list<Call> dead;
  bool stopped = false;
  {
    MutexLock lock(mutex_);
    stopped = stopped_;
    dead = queue_.TakeIf(
        [&](const Call& call) { return stopped || IsDead(call, now); });
  }
  for (Call& call : dead) {
    if (stopped) {
      Refuse(call, Draining());
    } else {
      AnswerDead(call);
    }
  }
}

void Lane::AnswerDeadInRound(std::vector<Led>& round) {
  const SteadyTime now = clock_.Now();
  const auto answer_dead = [&](std::list<Call>& calls) {
    for (auto call = calls.begin(); call != calls.end();) {
      if (IsDead(*call, now)) {
        AnswerDead(*call);
        call = calls.erase(call);
      } else {
        ++call;
      }
    }
  };
  for (Led& led : round) {
    answer_dead(led.leader);
    answer_dead(led.followers);
    if (led.leader.empty() && !led.followers.empty()) {
      led.leader.splice(led.leader.end(), led.followers, led.followers.begin());
    }
  }
  std::erase_if(round, [](const Led& led) { return led.leader.empty(); });
}

// ---- Claims that wait for another owner's end.

bool Lane::MayWait(const Call& call) const {
  return call.context.wait_until > clock_.Now();
}

void Lane::AnswerInProgress(Call& call) const {
  InProgress answer = call.seen->answer;
  answer.lease_left =
      std::max(absl::ZeroDuration(),
               absl::FromChrono(call.seen->lapses_at - clock_.Now()));
  CountInProgress(call.seen->policy, metrics_);
  std::move(std::get<ClaimCall>(call.request).done)(std::move(answer));
}

// The lane whose waiters a set-aside call belongs to.
Lane& Lane::HomeOf(const Led& led) {
  Lane* const home = led.leader.front().home;
  return home != nullptr ? *home : *this;
}

// Answers the claims of a key from the leader's outcome. Followers asked before
// the leader's statement was sent, so an answer from its outcome is one they
// could have got themselves. Only those that need no write are answered; the
// first that does leads the next round.
void Lane::AnswerClaims(Led& led, ClaimAnswer& answer,
                        AnswerBatch<ClaimOutcome>& answers) {
  Lane& home = HomeOf(led);
  Call& leader = led.leader.front();
  std::list<Call> waiting;
  std::shared_ptr<const Seen> seen;
  const Record* const record =
      answer.observed.has_value() && answer.observed->record.has_value()
          ? &*answer.observed->record
          : nullptr;
  const auto let_wait = [&](std::list<Call>& from, const InProgress& outcome) {
    if (seen == nullptr) seen = SeenNow(outcome, *record, clock_.Now());
    from.front().seen = seen;
    waiting.splice(waiting.end(), from, from.begin());
  };

  ClaimCall& claim = std::get<ClaimCall>(leader.request);
  const InProgress* const in_progress = AsInProgress(answer.outcome);
  if (in_progress != nullptr && claim.command.waits && record != nullptr) {
    let_wait(led.leader, *in_progress);
  } else {
    if (EndsWaits(answer.outcome)) home.Wake(leader.id());
    answers.Add(std::move(claim.done), std::move(answer.outcome));
  }
  while (answer.observed.has_value() && !led.followers.empty()) {
    ClaimCall& follower = std::get<ClaimCall>(led.followers.front().request);
    Decision<ClaimOutcome> decision =
        DecideClaim(record, follower.command, answer.observed->now);
    if (decision.write.has_value()) break;
    const InProgress* const other = AsInProgress(decision.answer);
    if (other != nullptr && MayWait(led.followers.front())) {
      let_wait(led.followers, *other);
      continue;
    }
    if (decision.answer.ok()) {
      CountUnwritten(*decision.answer, *record, metrics_);
    }
    answers.Add(std::move(follower.done), std::move(decision.answer));
    led.followers.pop_front();
    Count(metrics_.followers_answered);
  }
  if (!waiting.empty()) home.LetWait(std::move(waiting));
}

// Takes in calls of one key that were told InProgress just now. An end of the
// owner that another lane brings about between that and this is not noticed
// here: the next look finds it.
void Lane::LetWait(std::list<Call> calls) {
  const RecordId id = calls.front().id();
  std::list<Call> refused;
  {
    MutexLock lock(mutex_);
    const SteadyTime now = clock_.Now();
    while (!calls.empty()) {
      std::list<Call> one;
      one.splice(one.end(), calls, calls.begin());
      Call& call = one.front();
      call.setback = absl::OkStatus();
      call.home = nullptr;
      const CallQueue::Total& woken = queue_.woken();
      if (!accepting_ || call.context.wait_until <= now ||
          waiters_.items() + woken.items >= options_.waiters_max ||
          waiters_.bytes() + woken.bytes + call.bytes >
              options_.waiters_bytes_max) {
        refused.splice(refused.end(), one);
      } else {
        waiters_.Add(std::move(one), now);
      }
    }
    if (waiters_.CountOf(id) >= limits::kCrowd) queue_.PauseForCrowd(id, now);
  }
  changed_.notify_one();
  for (Call& call : refused) AnswerInProgress(call);
}

// Whatever has become of the record, the waiters ask for it anew, before those
// who came later. Thread-safe.
void Lane::Wake(const RecordId& id) {
  {
    MutexLock lock(mutex_);
    std::list<Call> woken = waiters_.Take(id);
    if (woken.empty()) return;
    queue_.PutBack(std::move(woken));
  }
  changed_.notify_one();
}

// Answers the waiters whose wait is over or whose caller has gone. Returns the
// keys that are to be looked at.
std::vector<Watched> Lane::TendWaiters() {
  std::list<Call> ended;
  std::list<Call> gone;
  std::vector<Watched> due;
  {
    MutexLock lock(mutex_);
    if (waiters_.empty()) return due;
    const SteadyTime now = clock_.Now();
    if (now >= next_roll_call_ || !accepting_) {
      next_roll_call_ = now + kRollCallInterval;
      gone = waiters_.TakeIf(CallerIsGone);
      ended = waiters_.TakeIf(WaitIsOver);
    }
    ended.splice(ended.end(),
                 waiters_.TakeEnded(accepting_ ? now : SteadyTime::max()));
    if (now >= not_before_ && now >= look_not_before_) {
      due = waiters_.KeysToLookAt(now, options_.batch_items_max);
    }
    working_ = true;
  }
  for (Call& call : gone) AnswerDead(call);
  for (Call& call : ended) AnswerInProgress(call);
  return due;
}

// While the store fails, the waiters wait on: what they saw is what is known.
// A look that can't be had for another reason leaves it to the waiters to ask
// by themselves.
void Lane::LookAt(const std::vector<Watched>& watched) {
  if (watched.empty()) return;
  std::vector<const Watched*> items;
  items.reserve(watched.size());
  for (const Watched& one : watched) items.push_back(&one);
  const SteadyTime asked_at = clock_.Now();
  const absl::StatusOr<std::vector<bool>> changed = store_->FindChanged(items);
  {
    MutexLock lock(mutex_);
    const SteadyTime now = clock_.Now();
    look_not_before_ =
        now + std::clamp<SteadyTime::duration>((now - asked_at) * kLookRest,
                                               kLookPauseMin, kLookPauseMax);
  }
  const bool failed =
      !changed.ok() && SetbackOf(changed.status().code()) == Setback::kRejected;
  if (!changed.ok() && !failed) {
    // Where it met a change under way, the next look finds what came of it.
    if (SetbackOf(changed.status().code()) != Setback::kContended) {
      NoteStoreFailure(changed.status());
    }
    return;
  }
  if (failed && !looks_fail_) {
    log_.Write(Severity::kError,
               "a look at records that are waited for failed in the store",
               ErrorField(changed.status()));
  }
  looks_fail_ = failed;
  for (std::size_t i = 0; i < watched.size(); ++i) {
    if (failed || (i < changed->size() && (*changed)[i])) Wake(watched[i].id);
  }
}

std::size_t Lane::waiting() const {
  MutexLock lock(mutex_);
  return waiters_.items();
}

}  // namespace idempotency
