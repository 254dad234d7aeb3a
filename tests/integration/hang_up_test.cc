// Clients that hang up at random moments, a thousand times: a response is
// recorded whole or not at all, and sending it again settles which.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "client/run_once.h"
#include "server/core/mutex.h"
#include "tests/integration/fault_calls.h"
#include "tests/integration/once_fixture.h"
#include "tests/support/tcp_gate.h"

namespace idempotency {
namespace {

using std::chrono::duration_cast;
using std::chrono::microseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr int kCancelled = 500;
constexpr int kCut = 200;
constexpr int kHungUp = 300;
constexpr int kAtATime = 4;

// Until a random moment from now to `at_most` later, whatever happens till
// then.
void LetPass(microseconds at_most, std::mt19937& random) {
  std::this_thread::sleep_for(microseconds(random() % (at_most.count() + 1)));
}

// Cuts a call off.
using Cut = std::function<void(grpc::ClientContext&)>;

class HangUpTest : public RunOnceTest {
 protected:
  // Runs `work` `count` times, some at a time.
  void Times(int count,
             const std::function<void(std::mt19937& random)>& work) const {
    std::atomic<int> next{0};
    std::vector<std::jthread> workers;
    for (unsigned worker = 0; worker < kAtATime; ++worker) {
      workers.emplace_back([&, worker] {
        std::mt19937 random(seed_ + worker);
        while (next++ < count && !HasFailure()) work(random);
      });
    }
  }

  // A claim that was granted, and a response of up to some 200 KB to record.
  struct Work {
    v1::ClaimRequest claim;
    int repeats;

    v1::FinalizeRequest Finalize() const {
      std::string body;
      for (int i = 0; i < repeats; ++i) body += claim.key();
      return FinalizeOf(claim, 201, body);
    }
  };

  static Work Claimed(std::mt19937& random) {
    Work work{.claim = ClaimFor("hang-up-" + NewKey()), .repeats = 1};
    if (random() % 2 == 0) work.repeats = 1 + random() % 10'000;
    Granted(work.claim);
    return work;
  }

  // Whole and final, or nothing of it: what the table says, at one moment.
  enum class State { kUnfinished, kRecorded };
  static std::optional<State> StateOf(const Work& work) {
    const std::string states = Sql(absl::StrCat(
        "SELECT in_flight AND status_code IS NULL AND body IS NULL AND "
        "headers IS NULL AND response_digest IS NULL, NOT in_flight AND "
        "status_code = 201 AND NOT body_omitted AND body = convert_to(repeat("
        "key, ",
        work.repeats, "), 'UTF8') FROM idempotency_records WHERE key = '",
        work.claim.key(), "'"));
    if (states == "t\tf") return State::kUnfinished;
    if (states == "f\tt") return State::kRecorded;
    ADD_FAILURE() << "neither whole nor nothing: " << states;
    return std::nullopt;
  }

  // Sends the Finalize once and cuts it off some time later. Returns whether it
  // was answered nevertheless.
  static bool FinalizeAndCut(v1::IdempotencyService::Stub& stub,
                             const Work& work, const Cut& cut,
                             std::mt19937& random, microseconds at_most) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    const v1::FinalizeRequest request = work.Finalize();
    v1::FinalizeResponse response;
    grpc::Status status;
    absl::Notification ended;
    stub.async()->Finalize(&context, &request, &response,
                           [&](const grpc::Status& result) {
                             status = result;
                             ended.Notify();
                           });
    LetPass(at_most, random);
    cut(context);
    ended.WaitForNotification();
    return status.ok();
  }

  // How long a Finalize takes that nobody cuts off.
  static microseconds UncutTime(v1::IdempotencyService::Stub& stub) {
    constexpr int kCalls = 20;
    std::mt19937 random(1);
    steady_clock::duration all{0};
    for (int i = 0; i < kCalls; ++i) {
      const Work work = Claimed(random);
      const auto begin = steady_clock::now();
      FinalizeAndCut(
          stub, work, [](grpc::ClientContext&) {}, random, microseconds(0));
      all += steady_clock::now() - begin;
    }
    return duration_cast<microseconds>(all / kCalls);
  }

  struct Counts {
    std::atomic<int> answered{0};
    std::atomic<int> recorded{0};  // without an answer
    std::atomic<int> nothing{0};
  };

  static void CutOffAndSettle(v1::IdempotencyService::Stub& stub,
                              const Cut& cut, std::mt19937& random,
                              microseconds at_most, Counts& counts) {
    const Work work = Claimed(random);
    const bool answered = FinalizeAndCut(stub, work, cut, random, at_most);
    const std::optional<State> state = StateOf(work);
    if (answered) {
      ++counts.answered;
      EXPECT_EQ(state, State::kRecorded);
    } else {
      ++(state == State::kRecorded ? counts.recorded : counts.nothing);
    }
    EXPECT_EQ(Finalized(work.Finalize()).result(),
              v1::FinalizeResponse::RESULT_RECORDED);
    EXPECT_EQ(StateOf(work), State::kRecorded);
  }

  static void ExpectAllKinds(const Counts& counts) {
    std::cout << counts.answered << " answered, " << counts.recorded
              << " recorded without an answer, " << counts.nothing
              << " not recorded\n";
    EXPECT_GT(counts.answered, 0);
    EXPECT_GT(counts.recorded + counts.nothing, 0);
  }

  // How long an operation takes whose caller stays, among others.
  microseconds StayingTime() {
    constexpr int kCalls = 40;
    const auto begin = steady_clock::now();
    Times(kCalls, [&](std::mt19937&) {
      EXPECT_TRUE(
          Answers(once_->Run(AnOperation(),
                             [](Execution&) { return Respond(200, ""); }),
                  RunOutcome::kExecuted, ""));
    });
    return duration_cast<microseconds>((steady_clock::now() - begin) *
                                       kAtATime / kCalls);
  }

  // Its function, which runs if the operation is granted, answers with the key.
  RunResult StartAndHangUp(const Operation& operation, std::mt19937& random,
                           microseconds at_most) {
    std::atomic<int> ran{0};
    RunResult result;
    absl::Notification done;
    const std::unique_ptr<Running> running = once_->Start(
        operation,
        [&](const std::shared_ptr<Execution>&,
            const Completion<FunctionResult>& completion) {
          ++ran;
          completion(Respond(201, operation.key));
        },
        [&](const RunResult& delivered) {
          result = delivered;
          done.Notify();
        });
    LetPass(at_most, random);
    running->HangUp();
    done.WaitForNotification();
    EXPECT_EQ(ran, result.outcome == RunOutcome::kHungUp ? 0 : 1);
    return result;
  }

  const unsigned seed_ = SeedOfRun();
};

TEST_F(HangUpTest, ACancelledFinalizeIsAppliedWholeOrNotAtAll) {
  const auto stub = v1::IdempotencyService::NewStub(replica().NewChannel());
  const microseconds at_most = 2 * UncutTime(*stub);
  Counts counts;
  Times(kCancelled, [&](std::mt19937& random) {
    CutOffAndSettle(
        *stub, [](grpc::ClientContext& context) { context.TryCancel(); },
        random, at_most, counts);
  });
  ExpectAllKinds(counts);
}

TEST_F(HangUpTest, AFinalizeWhoseConnectionIsCutIsAppliedWholeOrNotAtAll) {
  std::atomic<int> left{kCut};
  Counts counts;
  std::vector<std::jthread> workers;
  for (unsigned worker = 0; worker < kAtATime; ++worker) {
    workers.emplace_back([&, worker] {
      auto gate = TcpGate::Make(replica().port());
      ASSERT_TRUE(gate.ok()) << gate.status();
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
      arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 1);
      arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 20);
      const auto stub =
          v1::IdempotencyService::NewStub(grpc::CreateCustomChannel(
              absl::StrCat("127.0.0.1:", (*gate)->port()),
              grpc::InsecureChannelCredentials(), arguments));
      const microseconds at_most = 2 * UncutTime(*stub);
      std::mt19937 random(seed_ + worker);
      while (left-- > 0 && !HasFailure()) {
        CutOffAndSettle(
            *stub, [&](grpc::ClientContext&) { (*gate)->CutAll(); }, random,
            at_most, counts);
      }
    });
  }
  workers.clear();
  ExpectAllKinds(counts);
}

TEST_F(HangUpTest, AnOperationThatWasGrantedIsRecordedWithoutItsCaller) {
  const microseconds at_most = 2 * StayingTime();
  Mutex mutex;
  std::vector<Operation> executed;
  std::vector<Operation> not_granted;
  Times(kHungUp, [&](std::mt19937& random) {
    const Operation operation = AnOperation("payment");
    const RunResult result = StartAndHangUp(operation, random, at_most);
    const bool granted = result.outcome != RunOutcome::kHungUp;
    if (granted) {
      EXPECT_TRUE(Answers(result, RunOutcome::kExecuted, operation.key));
      EXPECT_TRUE(result.recorded);
    }
    MutexLock lock(mutex);
    (granted ? executed : not_granted).push_back(operation);
  });
  WaitUntil([&] { return once_->operations() == 0; });

  std::cout << executed.size() << " executed, " << not_granted.size()
            << " not granted\n";
  EXPECT_GT(executed.size(), 0u);
  EXPECT_GT(not_granted.size(), 0u);
  for (const Operation& operation : executed) {
    EXPECT_TRUE(Answers(Ask(operation), RunOutcome::kReplayed, operation.key));
  }
  // Nothing ran, and the keys are given back.
  for (const Operation& operation : not_granted) {
    EXPECT_TRUE(Answers(
        once_->Run(operation, [](Execution&) { return Respond(200, "next"); }),
        RunOutcome::kExecuted, "next"));
  }
}

}  // namespace
}  // namespace idempotency
