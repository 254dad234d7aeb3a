#include "server/core/lane.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "server/core/call_errors.h"
#include "server/core/call_kinds.h"
#include "server/core/errors.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;

// An unknown policy name makes the lane read the rules anew, at most so often.
constexpr std::chrono::seconds kRulesReloadInterval{1};
// How often the calls that wait for their turn are looked through for those
// whose time is up.
constexpr milliseconds kSweepPause{100};
// How many locks the calls that are tried alone may meet in one round.
constexpr int kLocksAloneMax = 2;

}  // namespace

Lane::Lane(const LaneOptions& options, const Clock& clock,
           FleetRulesCache& rules, Metrics& metrics, Log& log,
           std::unique_ptr<Store> store, Lane* aside)
    : options_(options),
      clock_(clock),
      rules_(rules),
      metrics_(metrics),
      log_(log),
      store_(std::move(store)),
      aside_(aside),
      admission_({.batch_items_max = options.batch_items_max,
                  .batch_bytes_max = options.batch_bytes_max,
                  .wait_max = options.queue_wait_max}) {}

void Lane::Submit(std::list<Call> call) {
  absl::Status refusal;
  bool wake = false;
  {
    MutexLock lock(mutex_);
    refusal = accepting_ ? Admit(call.front()) : Draining();
    if (refusal.ok()) {
      queue_.Add(std::move(call));
      wake = std::exchange(sleeping_, false);
    }
  }
  if (wake) changed_.notify_one();
  if (refusal.ok()) return;
  if (ReasonOf(refusal) == Reason::kOverloaded) Count(metrics_.overloaded);
  Refuse(call.front(), refusal);
}

void Lane::StopAccepting() {
  {
    MutexLock lock(mutex_);
    accepting_ = false;
  }
  changed_.notify_all();
}

std::size_t Lane::queued() const {
  MutexLock lock(mutex_);
  return queue_.items();
}

bool Lane::idle() const {
  MutexLock lock(mutex_);
  return queue_.empty() && waiters_.empty() && !working_;
}

void Lane::Stop() {
  {
    MutexLock lock(mutex_);
    accepting_ = false;
    stopped_ = true;
  }
  changed_.notify_all();
}

void Lane::RunBatch() {
  std::vector<Led> round = TakeRound();
  // Before the queue is looked through: another lane may wake waiters
  // meanwhile, and a lane that has been stopped looks only once more.
  const std::vector<Watched> watched = TendWaiters();
  // It is about to be asked again: what it once said of others hinders nobody.
  const bool failed_before = store_failed_;
  if (!round.empty()) store_failed_ = false;
  round_began_ = clock_.Now();
  if (round.empty() || round_began_ >= next_sweep_) {
    next_sweep_ = round_began_ + kSweepPause;
    AnswerDeadInQueue();
  }
  AnswerDeadInRound(round);
  if (round.empty() && watched.empty()) {
    store_failed_ = failed_before;
    NoteWorkDone(false);
    return;
  }
  store_failed_ = false;
  if (!round.empty() && ResolvePolicies(round)) {
    ObserveQueueTimes(round);
    RunClaimsAndFinalizes(round);
    // A read may be answered where writes wait for a standby in vain.
    RunKind<LookupKind>(CallsOf<LookupKind>(round));
    RunNext<ReleaseKind>(CallsOf<ReleaseKind>(round));
  }
  if (!store_failed_) LookAt(watched);
  if (failed_before && !store_failed_) NoteStoreSuccess();
  NoteWorkDone(!round.empty() && !store_failed_);
}

// `telling`: how long the round took says how long the next will take.
void Lane::NoteWorkDone(bool telling) {
  MutexLock lock(mutex_);
  working_ = false;
  admission_.EndRound(clock_.Now(), telling);
}

std::vector<Led> Lane::TakeRound() {
  std::vector<Led> round;
  {
    MutexLock lock(mutex_);
    if (stopped_ || clock_.Now() < not_before_) return round;
    round = queue_.TakeRound(clock_.Now(), options_.batch_items_max,
                             options_.batch_bytes_max);
    working_ = !round.empty();
    if (working_) admission_.BeginRound(clock_.Now());
  }
  std::sort(round.begin(), round.end(), [](const Led& a, const Led& b) {
    return a.leader.front().id() < b.leader.front().id();
  });
  return round;
}

// Returns false, with every call put back, while no rules are known: nothing
// may be granted by rules that are guessed.
bool Lane::ResolvePolicies(std::vector<Led>& round) {
  std::shared_ptr<const FleetRules> rules = rules_.Get();
  if (rules == nullptr && ReloadRules().ok()) rules = rules_.Get();
  if (rules == nullptr) {
    NoteStoreFailure(absl::UnavailableError("the policies were never read"));
    for (Led& led : round) {
      led.leader.front().setback = absl::UnavailableError("no rules");
      PutBack(led);
    }
    return false;
  }
  const auto resolve = [&](Call& call) {
    ClaimCall* const claim = std::get_if<ClaimCall>(&call.request);
    if (claim == nullptr) return;
    ClaimCommand& command = claim->command;
    command.policy =
        ResolvePolicy(*rules, command.id.scope, command.policy_name);
    if (command.policy.ok() ||
        ReasonOf(command.policy.status()) != Reason::kUnknownPolicy) {
      return;
    }
    const absl::Status read = ReloadRules();
    if (read.ok()) {
      rules = rules_.Get();
      command.policy =
          ResolvePolicy(*rules, command.id.scope, command.policy_name);
    } else if (read.code() != absl::StatusCode::kInternal) {
      // Whether the policy exists is not known: the call is to be tried again.
      command.policy = absl::UnavailableError("the policies can't be read");
    }
  };
  for (Led& led : round) {
    resolve(led.leader.front());
    for (Call& follower : led.followers) resolve(follower);
  }
  return true;
}

// OK when the rules are as fresh as can be had; otherwise why they can't be
// read.
absl::Status Lane::ReloadRules() {
  const SteadyTime now = clock_.Now();
  if (rules_read_at_.has_value() &&
      now - *rules_read_at_ < kRulesReloadInterval) {
    return rules_read_;
  }
  absl::StatusOr<FleetRules> rules = store_->ReadRules();
  rules_read_at_ = now;
  rules_read_ = rules.status();
  if (rules.ok()) rules_.Set(*std::move(rules));
  return rules_read_;
}

// Once a call: those that are tried again have had a setback, and followers
// go to the store only when they lead.
void Lane::ObserveQueueTimes(const std::vector<Led>& round) {
  const SteadyTime now = clock_.Now();
  for (const Led& led : round) {
    const Call& call = led.leader.front();
    if (call.setback.ok() && call.seen == nullptr) {
      ObserveTime(metrics_.queue_time, now - call.submitted);
    }
  }
}

// ---- One kind of calls.

void Lane::RunClaimsAndFinalizes(std::vector<Led>& round) {
  const std::vector<Led*> claims = CallsOf<ClaimKind>(round);
  const std::vector<Led*> finalizes = CallsOf<FinalizeKind>(round);
  if (claims.empty() || finalizes.empty()) {
    RunKind<ClaimKind>(claims);
    RunKind<FinalizeKind>(finalizes);
    return;
  }
  const SteadyTime now = clock_.Now();
  ClaimAndFinalizeAnswers answers = store_->ClaimAndFinalize(
      CommandsOf<ClaimKind>(claims, metrics_, now),
      CommandsOf<FinalizeKind>(finalizes, metrics_, now));
  const std::size_t batch_size = claims.size() + finalizes.size();
  std::vector<Led*> claims_again;
  std::vector<Led*> finalizes_again;
  Settle<ClaimKind>(claims, std::move(answers.claims), batch_size,
                    &claims_again);
  Settle<FinalizeKind>(finalizes, std::move(answers.finalizes), batch_size,
                       &finalizes_again);
  RunAgain<ClaimKind>(claims_again);
  RunAgain<FinalizeKind>(finalizes_again);
}

// Those of one kind that failed together with another kind, which alone may
// have been the cause.
template <typename Kind>
void Lane::RunAgain(const std::vector<Led*>& calls) {
  std::vector<Led*> again;
  for (Led* const led : calls) {
    if (MayBeTried(*led)) again.push_back(led);
  }
  RunKind<Kind>(again);
}

// Writes that come after others in a round. Where the others have waited for
// the store in vain, these would wait as long; where it refused them at once,
// it may still do what these ask for.
template <typename Kind>
void Lane::RunNext(const std::vector<Led*>& calls) {
  if (clock_.Now() - round_began_ < limits::kWaitInVain) {
    return RunKind<Kind>(calls);
  }
  RunAgain<Kind>(calls);
}

// If not, it has been answered or put back.
bool Lane::MayBeTried(Led& led) {
  Call& call = led.leader.front();
  if (IsDead(call, clock_.Now())) {
    AnswerDead(call);
    PutBackFollowers(led);
    return false;
  }
  // The store has gone away in between; the rest waits for it.
  if (store_failed_) PutBack(led);
  return !store_failed_;
}

template <typename Kind>
void Lane::RunKind(const std::vector<Led*>& calls) {
  std::vector<Led*> alone;
  RunOnce<Kind>(calls, &alone);
  RunAlone<Kind>(alone);
}

// Each by itself. The others of the round wait meanwhile, so that after a few
// locks the rest is set aside unseen.
template <typename Kind>
void Lane::RunAlone(const std::vector<Led*>& calls) {
  locks_met_ = 0;
  for (Led* const led : calls) {
    if (!MayBeTried(*led)) continue;
    if (aside_ != nullptr && locks_met_ >= kLocksAloneMax) {
      SetAside(*led);
    } else {
      RunOnce<Kind>({led}, nullptr);
    }
  }
}

// Takes `calls` to the store as one batch.
template <typename Kind>
void Lane::RunOnce(const std::vector<Led*>& calls, std::vector<Led*>* alone) {
  if (calls.empty()) return;
  Settle<Kind>(
      calls,
      Kind::Run(*store_, CommandsOf<Kind>(calls, metrics_, clock_.Now())),
      calls.size(), alone);
}

// Answers `calls`, or decides what else becomes of each. Those that are to be
// tried by themselves are added to `alone`.
template <typename Kind, typename StoreAnswer>
void Lane::Settle(const std::vector<Led*>& calls,
                  std::vector<StoreAnswer> answers, std::size_t batch_size,
                  std::vector<Led*>* alone) {
  using Outcome = typename std::remove_reference_t<decltype(OutcomeOf(
      answers.front()))>::value_type;
  AnswerBatch<Outcome> given(options_.answers, calls.size());
  const bool counted = answers.size() == calls.size();
  for (std::size_t i = 0; i < calls.size(); ++i) {
    Led& led = *calls[i];
    if (!counted) {
      Answer(led.leader.front(),
             MakeError(Reason::kInternal, "internal error"));
      PutBackFollowers(led);
      continue;
    }
    auto& outcome = OutcomeOf(answers[i]);
    switch (Judge(outcome.status(), batch_size, led.leader.front())) {
      case Verdict::kAnswered:
        if (HoldsForFollowers<Kind>(outcome)) {
          AnswerFollowers<Kind>(led, outcome, given);
        }
        if constexpr (std::is_same_v<Kind, ClaimKind>) {
          AnswerClaims(led, answers[i], given);
        } else {
          if (Kind::kEndsClaims && outcome.ok()) {
            HomeOf(led).Wake(led.leader.front().id());
          }
          given.Add(std::move(RequestOf<Kind>(led).done), std::move(outcome));
        }
        PutBackFollowers(led);
        break;
      case Verdict::kBroken:
        // An earlier sending may have been carried out.
        Answer(led.leader.front(),
               IsLost(led.leader.front())
                   ? OutOfTime(led.leader.front())
                   : MakeError(Reason::kInternal, "internal error"));
        PutBackFollowers(led);
        break;
      case Verdict::kLater:
        PutBack(led);
        break;
      case Verdict::kAlone:
        alone->push_back(&led);
        break;
      case Verdict::kAside:
        SetAside(led);
        break;
    }
  }
  given.Give();
}

// What is to happen to a call, by what the store said of it.
Lane::Verdict Lane::Judge(const absl::Status& status, std::size_t batch_size,
                          Call& call) {
  if (status.ok() || HasReason(status)) return Verdict::kAnswered;
  if (!IsLost(call)) call.setback = status;
  Count(metrics_.setbacks[SetbackOf(status.code())]);
  switch (status.code()) {
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kFailedPrecondition:
      NoteStoreFailure(status);
      return Verdict::kLater;
    case absl::StatusCode::kAborted:
      ++locks_met_;
      return batch_size > 1 ? Verdict::kAlone : Verdict::kAside;
    default:
      if (batch_size > 1) return Verdict::kAlone;
      log_.Write(Severity::kError, "a call failed in the store",
                 ErrorField(status));
      return Verdict::kBroken;
  }
}

template <typename Kind, typename Outcome>
void Lane::AnswerFollowers(Led& led, const absl::StatusOr<Outcome>& outcome,
                           AnswerBatch<Outcome>& answers) {
  for (Call& follower : led.followers) {
    using Request = typename Kind::Request;
    answers.Add(std::move(std::get<Request>(follower.request).done), outcome);
    Count(metrics_.followers_answered);
  }
  led.followers.clear();
}

void Lane::PutBackFollowers(Led& led) {
  led.leader.clear();
  PutBack(led);
}

void Lane::PutBack(Led& led) {
  led.leader.splice(led.leader.end(), led.followers);
  if (led.leader.empty()) return;
  MutexLock lock(mutex_);
  queue_.PutBack(std::move(led.leader));
  led.leader.clear();
}

// Hands a call that met another's lock to the lane for such calls. Its
// followers stay: they may meet an open door.
void Lane::SetAside(Led& led) {
  if (aside_ == nullptr) {
    PauseFor(options_.backoff_min);
    PutBack(led);
    return;
  }
  std::list<Call> call;
  call.splice(call.end(), led.leader);
  call.front().home = this;
  aside_->Submit(std::move(call));
  PutBackFollowers(led);
}

void Lane::NoteStoreFailure(const absl::Status& status) {
  if (store_failed_) return;
  store_failed_ = true;
  if (backoff_ == milliseconds{0}) {
    log_.Write(Severity::kWarning, "the store failed; its calls wait",
               ErrorField(status));
  }
  backoff_ =
      std::clamp(backoff_ * 2, options_.backoff_min, options_.backoff_max);
  PauseFor(backoff_);
}

void Lane::NoteStoreSuccess() {
  backoff_ = milliseconds{0};
  log_.Write(Severity::kInfo, "the store answers again", {});
}

void Lane::PauseFor(milliseconds pause) {
  MutexLock lock(mutex_);
  not_before_ = std::max(not_before_, clock_.Now() + pause);
}

}  // namespace idempotency
