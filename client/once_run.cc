#include "client/once_run.h"

#include <algorithm>
#include <exception>
#include <future>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

namespace idempotency {
namespace {

using internal::Mutex;
using internal::MutexLock;
using std::chrono::nanoseconds;

constexpr std::size_t kCheckpointBytesMax = 4096;

// A function that throws has not said what it did.
template <typename Unknown, typename Function, typename Answer>
void CallGuarded(const Function& function, std::shared_ptr<Execution> execution,
                 const Completion<Answer>& completion) {
  try {
    function(std::move(execution), completion);
  } catch (const std::exception& error) {
    completion(
        Unknown{absl::UnknownError(absl::StrCat("it threw: ", error.what()))});
  } catch (...) {
    completion(Unknown{absl::UnknownError("it threw")});
  }
}

}  // namespace

// ------------------------------------------------------------------- OnceRuns

OnceRuns::OnceRuns(Coordinator& coordinator, Executor& executor,
                   std::shared_ptr<ClientEnvironment> environment,
                   std::size_t operations_max)
    : coordinator_(coordinator),
      environment_(std::move(environment)),
      operations_max_(operations_max),
      executor_(&executor) {}

std::shared_ptr<OnceRun> OnceRuns::Start(const Operation& operation,
                                         OnceCallbacks callbacks) {
  const bool has_function = callbacks.function != nullptr;
  const auto run = std::make_shared<OnceRun>(shared_from_this(), operation,
                                             std::move(callbacks));
  bool finishing;
  bool too_many = false;
  {
    MutexLock lock(mutex_);
    finishing = finishing_;
    too_many = runs_.size() >= operations_max_;
    if (has_function && !finishing && !too_many) runs_.insert(run);
  }
  if (!has_function) {
    run->Refuse(RunOutcome::kInvalid,
                absl::InvalidArgumentError("there is no function to run"));
    return nullptr;
  }
  // Nobody is told to try again in here.
  if (finishing) {
    run->Refuse(RunOutcome::kHungUp, absl::CancelledError("it ends"));
    return nullptr;
  }
  if (too_many) {
    run->Refuse(RunOutcome::kUnavailable,
                absl::ResourceExhaustedError(
                    "too many operations are under way in this process"));
    return nullptr;
  }
  run->Start();
  return run;
}

void OnceRuns::Ended(const std::shared_ptr<OnceRun>& run) {
  MutexLock lock(mutex_);
  runs_.erase(run);
  changed_.notify_all();
}

void OnceRuns::Finish() {
  std::unordered_set<std::shared_ptr<OnceRun>> runs;
  {
    MutexLock lock(mutex_);
    finishing_ = true;
    runs = runs_;
  }
  for (const auto& run : runs) run->Finish();
}

bool OnceRuns::AwaitEnd(std::chrono::milliseconds timeout)
    ABSL_NO_THREAD_SAFETY_ANALYSIS {
  std::unique_lock<Mutex> lock(mutex_);
  return changed_.wait_for(lock, timeout, [this] { return AllHaveEnded(); });
}

void OnceRuns::AwaitEnd() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  std::unique_lock<Mutex> lock(mutex_);
  changed_.wait(lock, [this] { return AllHaveEnded(); });
  executor_ = nullptr;
}

bool OnceRuns::AllHaveEnded() const ABSL_NO_THREAD_SAFETY_ANALYSIS {
  return runs_.empty() && handing_over_ == 0;
}

void OnceRuns::Run(std::function<void()> task) {
  Executor* executor;
  {
    MutexLock lock(mutex_);
    executor = executor_;
    if (executor != nullptr) ++handing_over_;
  }
  if (executor == nullptr) return task();
  executor->Run(std::move(task));
  MutexLock lock(mutex_);
  --handing_over_;
  changed_.notify_all();
}

std::size_t OnceRuns::size() const {
  MutexLock lock(mutex_);
  return runs_.size();
}

// -------------------------------------------------------------------- OnceRun

OnceRun::OnceRun(std::shared_ptr<OnceRuns> runs, const Operation& operation,
                 OnceCallbacks callbacks)
    : runs_(std::move(runs)),
      callbacks_(std::move(callbacks)),
      machine_(operation, NewClaimToken(runs_->environment()),
               callbacks_.resolver != nullptr) {}

template <typename Event>
void OnceRun::Feed(const Event& event) {
  OnceMachine::Actions actions;
  {
    MutexLock lock(mutex_);
    ++performing_;
    event(machine_,
          OnceMachine::Moment{runs_->environment().Now(),
                              RandomFraction(runs_->environment())},
          actions);
    SetTimer();
  }
  for (OnceMachine::Action& action : actions) {
    std::visit([this](auto& each) { this->Perform(each); }, action);
  }
  bool over;
  {
    MutexLock lock(mutex_);
    over = --performing_ == 0 && std::exchange(ended_, false);
  }
  if (over) runs_->Ended(shared_from_this());
}

// A timer that fires early does no harm: it is set again. One that would fire
// late is replaced.
void OnceRun::SetTimer() {
  const auto wake_at = machine_.wake_at();
  if (!wake_at.has_value() ||
      (timer_at_.has_value() && *timer_at_ <= *wake_at)) {
    return;
  }
  timer_at_ = wake_at;
  const auto left = std::max<nanoseconds>(*wake_at - runs_->environment().Now(),
                                          nanoseconds(0));
  timer_ = runs_->environment().RunAfter(
      left, [weak = weak_from_this(), at = *wake_at] {
        const std::shared_ptr<OnceRun> self = weak.lock();
        if (self == nullptr) return;
        self->Feed([&](OnceMachine& machine, auto moment, auto& actions)
                       ABSL_NO_THREAD_SAFETY_ANALYSIS {
                         if (self->timer_at_ == at) self->timer_at_.reset();
                         machine.TimePassed(moment, actions);
                       });
      });
}

void OnceRun::Start() {
  Feed([](OnceMachine& machine, auto moment, auto& actions) {
    machine.Start(moment, actions);
  });
}

void OnceRun::Refuse(RunOutcome outcome, absl::Status why) {
  OnceMachine::Deliver refusal{{.outcome = outcome, .status = std::move(why)}};
  Perform(refusal);
}

void OnceRun::HangUp() {
  Feed([](OnceMachine& machine, auto moment, auto& actions) {
    machine.HangUp(moment, actions);
  });
}

void OnceRun::Finish() {
  Feed([](OnceMachine& machine, auto moment, auto& actions) {
    machine.Finish(moment, actions);
  });
}

// --------------------------------------------------- what the function may do

bool OnceRun::permitted() const {
  MutexLock lock(mutex_);
  return machine_.permitted(runs_->environment().Now());
}

void OnceRun::OnWithdrawn(std::function<void()> withdrawn) {
  {
    MutexLock lock(mutex_);
    if (machine_.permitted(runs_->environment().Now())) {
      // The one it replaces ends with this function, without the lock: it may
      // hold what calls this object when it ends.
      withdrawn_.swap(withdrawn);
      return;
    }
  }
  if (withdrawn) runs_->Run(std::move(withdrawn));
}

void OnceRun::SaveCheckpoint(std::string checkpoint,
                             std::function<void(absl::Status)> stored) {
  SaveAnd(std::move(checkpoint),
          [runs = runs_, stored = std::move(stored)](absl::Status status) {
            if (stored) runs->Run([stored, status] { stored(status); });
          });
}

absl::Status OnceRun::SaveCheckpoint(std::string checkpoint) {
  // Shared: it is not gone before set_value() has returned.
  const auto answer = std::make_shared<std::promise<absl::Status>>();
  SaveAnd(std::move(checkpoint), [answer](absl::Status status) {
    answer->set_value(std::move(status));
  });
  return answer->get_future().get();
}

void OnceRun::SaveAnd(std::string checkpoint, Stored stored) {
  if (checkpoint.size() > kCheckpointBytesMax) {
    return stored(absl::InvalidArgumentError("a checkpoint has at most 4 KiB"));
  }
  Feed([&](OnceMachine& machine, auto moment, auto& actions)
           ABSL_NO_THREAD_SAFETY_ANALYSIS {
             checkpoints_.emplace(
                 machine.SaveCheckpoint(std::move(checkpoint), moment, actions),
                 std::move(stored));
           });
}

// -------------------------------------------------------------------- actions

void OnceRun::RunThere(std::function<void()> task) {
  if (callbacks_.executor != nullptr) {
    return callbacks_.executor->Run(std::move(task));
  }
  runs_->Run(std::move(task));
}

bool OnceRun::FunctionMayStart() {
  bool may_start = false;
  Feed([&](OnceMachine& machine, auto moment, auto& actions) {
    may_start = machine.FunctionMayStart(moment, actions);
  });
  return may_start;
}

void OnceRun::KeepClaimed() {
  MutexLock lock(mutex_);
  // Somebody may read it since the resolver ran, and it is the same grant.
  if (claimed_.attempt() == 0) claimed_ = machine_.claimed();
}

template <typename Response>
Answered<Response> OnceRun::FeedTo(AnswerEvent<Response> event) {
  return [self = shared_from_this(), event](absl::StatusOr<Response> answer) {
    self->Feed([&](OnceMachine& machine, auto moment, auto& actions) {
      (machine.*event)(std::move(answer), moment, actions);
    });
  };
}

void OnceRun::Perform(OnceMachine::SendClaim& action) {
  runs_->coordinator().Claim(action.request, {.timeout = action.timeout},
                             FeedTo(&OnceMachine::ClaimAnswered));
}

void OnceRun::Perform(OnceMachine::SendRenewal& action) {
  runs_->coordinator().Claim(action.request,
                             {.timeout = action.timeout, .urgent = true},
                             FeedTo(&OnceMachine::RenewalAnswered));
}

void OnceRun::Perform(OnceMachine::SendFinalize& action) {
  runs_->coordinator().Finalize(action.request, {.timeout = action.timeout},
                                FeedTo(&OnceMachine::FinalizeAnswered));
}

void OnceRun::Perform(OnceMachine::SendLookup& action) {
  runs_->coordinator().Lookup(action.request, {.timeout = action.timeout},
                              FeedTo(&OnceMachine::LookupAnswered));
}

void OnceRun::Perform(OnceMachine::SendRelease& action) {
  runs_->coordinator().Release(action.request, {.timeout = action.timeout},
                               FeedTo(&OnceMachine::ReleaseAnswered));
}

void OnceRun::Perform(OnceMachine::RunFunction&) {
  KeepClaimed();
  Completion<FunctionResult> completion(
      [self = shared_from_this()](FunctionResult result) {
        self->Feed([&](OnceMachine& machine, auto moment, auto& actions) {
          machine.FunctionEnded(std::move(result), moment, actions);
        });
      });
  RunThere([self = shared_from_this(),
            function = std::move(callbacks_.function),
            completion = std::move(completion)] {
    if (self->FunctionMayStart()) {
      CallGuarded<OutcomeUnknown>(function, self, completion);
    }
  });
}

void OnceRun::Perform(OnceMachine::RunResolver&) {
  KeepClaimed();
  Completion<Resolution> completion(
      [self = shared_from_this()](Resolution resolution) {
        self->Feed([&](OnceMachine& machine, auto moment, auto& actions) {
          machine.ResolverEnded(std::move(resolution), moment, actions);
        });
      });
  RunThere([self = shared_from_this(),
            resolver = std::move(callbacks_.resolver),
            completion = std::move(completion)] {
    CallGuarded<StillUnknown>(resolver, self, completion);
  });
}

void OnceRun::Perform(OnceMachine::Withdraw&) {
  std::function<void()> withdrawn;
  {
    MutexLock lock(mutex_);
    withdrawn = std::exchange(withdrawn_, nullptr);
  }
  if (withdrawn) runs_->Run(std::move(withdrawn));
}

void OnceRun::Perform(OnceMachine::CheckpointStored& action) {
  std::map<std::int64_t, Stored> answered;
  {
    MutexLock lock(mutex_);
    const auto end = checkpoints_.upper_bound(action.number);
    for (auto at = checkpoints_.begin(); at != end;) {
      answered.insert(checkpoints_.extract(at++));
    }
  }
  for (const auto& [number, stored] : answered) stored(action.status);
}

void OnceRun::Perform(OnceMachine::Deliver& action) {
  if (!callbacks_.done) return;
  RunThere([done = std::move(callbacks_.done),
            result = std::move(action.result)] { done(result); });
}

void OnceRun::Perform(OnceMachine::End&) {
  // It may hold what holds this.
  std::function<void()> withdrawn;
  MutexLock lock(mutex_);
  withdrawn.swap(withdrawn_);
  ended_ = true;
}

}  // namespace idempotency
