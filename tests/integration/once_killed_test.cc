// Processes that are killed between any two steps of RunOnce: whoever comes
// next finishes what they began, once.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/run_once.h"
#include "server/core/mutex.h"
#include "tests/integration/fault_calls.h"
#include "tests/integration/wallet_ledger.h"
#include "tests/support/replica.h"
#include "tests/support/server_process.h"
#include "tests/support/temp_folder.h"
#include "tests/support/temp_postgres.h"

namespace idempotency {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::SizeIs;

// Operations at a time. Most of their time they wait for leases to end.
constexpr int kAtATime = 6;

// How one process of a story goes: until it is killed at a step, or to its end.
struct Life {
  std::string scenario;
  std::string death = "";
};

// How it ended.
struct Answer {
  std::string outcome;  // empty: it was killed
  bool recorded = false;
  std::string response;            // serialized; empty: there was none
  std::vector<std::string> steps;  // that it took to its end
};

// The processes of a story one after the other, the last of which is to be
// killed at each of its steps in turn.
struct Story {
  std::vector<Life> before;
  std::string scenario;
};

class OnceKilledTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = Require(TempFolder::Make()).release();
    database_ = new std::string(Require(TempPostgres::SharedDatabase()));
    replica_ = StartReplica(*database_).release();
  }

  static void TearDownTestSuite() {
    delete replica_;
    delete database_;
    delete folder_;
  }

  void SetUp() override { once_ = RunOnce::Connect(replica_->target()); }

  static std::string LedgerPath() { return folder_->path() + "/ledger"; }

  static std::unique_ptr<ServerProcess> StartLife(const std::string& key,
                                                  const Life& life) {
    ServerProcess::Options options;
    options.program = ONCE_VICTIM_PROGRAM;
    options.arguments = {replica_->target(), key, LedgerPath(), life.scenario,
                         life.death};
    auto process = ServerProcess::Start(std::move(options));
    EXPECT_TRUE(process.ok()) << process.status();
    return process.ok() ? *std::move(process) : nullptr;
  }

  static std::vector<std::string> StepsIn(const std::string& output) {
    constexpr std::string_view kMark = "step: ";
    std::vector<std::string> steps;
    std::istringstream lines(output);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with(kMark)) steps.push_back(line.substr(kMark.size()));
    }
    return steps;
  }

  // Waits for its end. True: it was killed at its step. False: it got to its
  // end and wrote its answer.
  bool Died(ServerProcess& process, const Life& life, Answer& answer) {
    const auto exit = process.WaitForExit();
    EXPECT_TRUE(exit.ok()) << exit.status() << process.Output();
    if (!exit.ok()) return false;
    if (exit->signal == SIGKILL && !life.death.empty()) {
      const auto line = process.WaitForLine("died: ");
      EXPECT_TRUE(line.ok()) << line.status();
      if (line.ok()) NoteDeath(life.scenario, *line);
      return true;
    }
    EXPECT_EQ(exit->code, 0) << process.Output();
    const auto line = process.WaitForLine("answer: ");
    EXPECT_TRUE(line.ok()) << line.status();
    if (!line.ok()) return false;
    answer.steps = StepsIn(process.Output());
    std::istringstream words(*line);
    std::string word;
    std::string bytes;
    words >> word >> answer.outcome >> word >> bytes;
    answer.recorded = word == "recorded";
    EXPECT_TRUE(bytes == "-" ||
                absl::WebSafeBase64Unescape(bytes, &answer.response));
    return false;
  }

  bool DiesAsTold(const std::string& key, const Life& life, Answer& answer) {
    const std::unique_ptr<ServerProcess> process = StartLife(key, life);
    return process != nullptr && Died(*process, life, answer);
  }

  void NoteDeath(const std::string& scenario, const std::string& line) {
    MutexLock lock(mutex_);
    constexpr std::string_view kMark = "died: ";
    const std::string step = line.substr(line.find(kMark) + kMark.size());
    ++deaths_[scenario][step.substr(0, step.find('#'))];
  }

  std::set<std::string> DeathsOf(const std::string& scenario) {
    MutexLock lock(mutex_);
    std::set<std::string> steps;
    for (const auto& [step, count] : deaths_[scenario]) steps.insert(step);
    return steps;
  }

  int Deaths() {
    MutexLock lock(mutex_);
    int all = 0;
    for (const auto& [scenario, steps] : deaths_) {
      for (const auto& [step, count] : steps) all += count;
    }
    return all;
  }

  // One charge, and one answer, for good: of the record, of everybody who was
  // answered, and of whoever asks next.
  void ExpectDoneOnce(const std::string& key,
                      const std::vector<Answer>& answers) {
    const auto record =
        Send(replica_->stub(), LookupOf(ClaimOf(key, "payment")));
    ASSERT_EQ(Decided(record), "STATE_FINALIZED") << key;
    const std::string recorded =
        record->record().response().SerializeAsString();

    std::vector<WalletLedger::Charge> charges;
    for (const auto& charge : WalletLedger(LedgerPath()).All()) {
      if (charge.reference == key) charges.push_back(charge);
    }
    ASSERT_THAT(charges, SizeIs(1)) << key;
    EXPECT_THAT(record->record().response().body(),
                HasSubstr(charges.front().id));

    for (const Answer& answer : answers) {
      if (answer.response.empty()) continue;
      EXPECT_TRUE(answer.recorded) << answer.outcome;
      EXPECT_EQ(answer.response, recorded) << answer.outcome;
    }
    const v1::ClaimRequest claim = ClaimOf(key, "payment");
    const RunResult replay = once_->Run({.scope = claim.scope(),
                                         .key = claim.key(),
                                         .request_hash = claim.request_hash()},
                                        [](Execution&) -> FunctionResult {
                                          ADD_FAILURE() << "it ran";
                                          return OutcomeUnknown{};
                                        });
    EXPECT_EQ(replay.outcome, RunOutcome::kReplayed) << replay.status;
    EXPECT_EQ(replay.response.SerializeAsString(), recorded);
  }

  // Tells one story with the last process killed at that step, if it gets there
  // and has one, and lets a new one finish it. Returns the steps of the last.
  std::vector<std::string> TellOnce(const Story& story,
                                    const std::string& step) {
    const std::string key = RandomKey();
    std::vector<Answer> answers(story.before.size() + 2);
    for (std::size_t i = 0; i < story.before.size(); ++i) {
      EXPECT_TRUE(DiesAsTold(key, story.before[i], answers[i]));
    }
    Answer& last = answers[story.before.size()];
    DiesAsTold(key, {story.scenario, step}, last);
    EXPECT_FALSE(DiesAsTold(key, {"pay"}, answers.back()));
    EXPECT_FALSE(answers.back().response.empty()) << answers.back().outcome;
    ExpectDoneOnce(key, answers);
    return last.steps;
  }

  // Once to the end, and then once for each of the steps on the way there.
  void Tell(const Story& story) {
    const std::vector<std::string> steps = TellOnce(story, "");
    ASSERT_FALSE(steps.empty());
    std::atomic<std::size_t> next{0};
    std::vector<std::jthread> tellers;
    for (int i = 0; i < kAtATime; ++i) {
      tellers.emplace_back([&] {
        for (std::size_t step = next++; step < steps.size() && !HasFailure();
             step = next++) {
          TellOnce(story, steps[step]);
        }
      });
    }
  }

  // Processes race for the key, each to be killed at some step, and others
  // after them, until one of them got to its end.
  void RaceToTheEnd(const std::string& key,
                    const std::vector<std::string>& steps,
                    std::mt19937& random) {
    constexpr int kRacers = 3;
    std::vector<Answer> answers;
    while (answers.empty() && !HasFailure()) {
      std::vector<std::pair<Life, std::unique_ptr<ServerProcess>>> racers;
      for (int racer = 0; racer < kRacers; ++racer) {
        const Life life{"pay", steps[random() % steps.size()]};
        racers.emplace_back(life, StartLife(key, life));
      }
      for (auto& [life, racer] : racers) {
        Answer answer;
        if (racer == nullptr || Died(*racer, life, answer)) continue;
        answers.push_back(answer);
      }
    }
    ExpectDoneOnce(key, answers);
  }

  static void ExpectNothingOpen() {
    EXPECT_EQ(Require(TempPostgres::RunAt(
                  *database_,
                  "SELECT count(*) FROM idempotency_records WHERE in_flight")),
              "0");
  }

  static inline TempFolder* folder_ = nullptr;
  static inline std::string* database_ = nullptr;
  static inline Replica* replica_ = nullptr;

  std::unique_ptr<RunOnce> once_;

  Mutex mutex_;
  // By scenario and step.
  std::map<std::string, std::map<std::string, int>> deaths_
      ABSL_GUARDED_BY(mutex_);
};

std::vector<std::string> StepsOf(const std::vector<std::string>& calls) {
  std::vector<std::string> steps;
  for (const std::string& call : calls) {
    for (const char* const where :
         {" to be sent", " sent", " answered", "'s answer handled"}) {
      steps.push_back(call + where);
    }
  }
  return steps;
}

TEST_F(OnceKilledTest, KilledAtAnyStepAPaymentIsMadeOnce) {
  for (int round = 0; round < (IsLongRun() ? 20 : 2); ++round) {
    Tell({.before = {}, .scenario = "pay"});
  }
  EXPECT_THAT(
      DeathsOf("pay"),
      IsSupersetOf(StepsOf({"claim", "checkpoint", "renewal", "finalize"})));
  EXPECT_THAT(DeathsOf("pay"),
              IsSupersetOf({"function begins", "charge to be made",
                            "charge made", "function ends", "answer there"}));
  ExpectNothingOpen();
  std::cout << Deaths() << " killed\n";
}

TEST_F(OnceKilledTest, KilledAtAnyStepAPaymentThatDidNotHappenIsMadeLater) {
  for (int round = 0; round < (IsLongRun() ? 20 : 1); ++round) {
    Tell({.before = {}, .scenario = "decline"});
  }
  EXPECT_THAT(DeathsOf("decline"), IsSupersetOf(StepsOf({"claim", "release"})));
  ExpectNothingOpen();
  std::cout << Deaths() << " killed\n";
}

TEST_F(OnceKilledTest, KilledAtAnyStepAPaymentOfUnknownOutcomeIsMadeOnce) {
  for (int round = 0; round < (IsLongRun() ? 20 : 1); ++round) {
    Tell({.before = {}, .scenario = "unsure"});
  }
  EXPECT_THAT(DeathsOf("unsure"), IsSupersetOf(StepsOf({"claim", "release"})));
  ExpectNothingOpen();
  std::cout << Deaths() << " killed\n";
}

TEST_F(OnceKilledTest, KilledAtAnyStepWhoeverTakesOverDoesNoHarm) {
  for (int round = 0; round < (IsLongRun() ? 20 : 1); ++round) {
    Tell({.before = {{"pay", "charge to be made#1"}}, .scenario = "pay"});
    Tell({.before = {{"pay", "charge made#1"}}, .scenario = "pay"});
  }
  EXPECT_THAT(DeathsOf("pay"),
              IsSupersetOf({"resolver begins", "resolver ends",
                            "function begins", "function ends"}));
  ExpectNothingOpen();
  std::cout << Deaths() << " killed\n";
}

TEST_F(OnceKilledTest, KilledAtAnyStepWhoeverWasLateIsToldTheWinnersAnswer) {
  for (int round = 0; round < (IsLongRun() ? 20 : 1); ++round) {
    Tell({.before = {}, .scenario = "late"});
  }
  EXPECT_THAT(DeathsOf("late"),
              IsSupersetOf(StepsOf({"claim", "finalize", "lookup"})));
  ExpectNothingOpen();
  std::cout << Deaths() << " killed\n";
}

TEST_F(OnceKilledTest, KilledAtRandomThoseWhoRaceForAKeyPayOnce) {
  const int keys_per_teller = IsLongRun() ? 60 : 3;
  const unsigned seed = SeedOfRun();
  const std::vector<std::string> steps =
      TellOnce({.before = {}, .scenario = "pay"}, "");
  ASSERT_FALSE(steps.empty());
  std::vector<std::jthread> tellers;
  for (unsigned teller = 0; teller < kAtATime; ++teller) {
    tellers.emplace_back([&, teller] {
      std::mt19937 random(seed + teller);
      for (int i = 0; i < keys_per_teller && !HasFailure(); ++i) {
        RaceToTheEnd(RandomKey(), steps, random);
      }
    });
  }
  tellers.clear();
  ExpectNothingOpen();
  std::cout << Deaths() << " killed\n";
}

}  // namespace
}  // namespace idempotency
