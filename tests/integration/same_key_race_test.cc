// Two hundred callers ask two server processes for one key at the same time,
// again and again.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "server/core/mutex.h"
#include "tests/integration/fault_calls.h"
#include "tests/support/replica.h"
#include "tests/support/temp_postgres.h"

namespace idempotency {
namespace {

constexpr int kReplicas = 2;
constexpr int kThreads = 200;
constexpr int kChannelsPerReplica = 10;
constexpr int kRoundsShort = 100;
constexpr int kRoundsLong = 1000;

int Rounds() { return IsLongRun() ? kRoundsLong : kRoundsShort; }

// Every byte value, long enough that a truncation would show.
std::string BodyOf(int round) {
  std::string body = std::to_string(round) + "|";
  for (int i = 0; i < 1024; ++i) {
    body.push_back(static_cast<char>((i + round) % 256));
  }
  return body;
}

class SameKeyRaceTest : public ::testing::Test {
 protected:
  struct Round {
    std::string key;
    v1::Response response;
    std::atomic<int> claimed{0};
    std::atomic<int> in_progress{0};
    std::atomic<int> replayed{0};
    // Replays of other bytes than those that were recorded.
    std::atomic<int> wrong_bytes{0};
    std::atomic<int> recorded{0};
    // Of the second question, which everybody asks once the first is settled.
    std::atomic<int> replayed_later{0};
  };

  void SetUp() override {
    const std::string database = Require(TempPostgres::SharedDatabase());
    for (int i = 0; i < kReplicas; ++i) {
      replicas_.push_back(Require(Replica::Start(database)));
    }
    for (int i = 0; i < kReplicas * kChannelsPerReplica; ++i) {
      const Replica& replica =
          *replicas_[static_cast<std::size_t>(i) % kReplicas];
      channels_.push_back(replica.NewChannel());
      // Else the connecting decides who comes first.
      ASSERT_TRUE(channels_.back()->WaitForConnected(
          std::chrono::system_clock::now() + std::chrono::seconds(20)));
    }
  }

  static bool IsExactly(const v1::ClaimResponse& claim, const Round& round) {
    return claim.replay().response().SerializeAsString() ==
           round.response.SerializeAsString();
  }

  void AskFirst(Stub& stub, const v1::ClaimRequest& claim, Round& round) {
    const auto answer = Send(stub, claim, std::chrono::seconds(30));
    const std::string decided = Decided(answer);
    if (decided == "Claimed") {
      ++round.claimed;
      v1::FinalizeRequest finalize = FinalizeOf(claim, 201, "");
      *finalize.mutable_response() = round.response;
      if (Decided(Send(stub, finalize)) == "RESULT_RECORDED") ++round.recorded;
    } else if (decided == "InProgress") {
      ++round.in_progress;
    } else if (decided == "Replay") {
      ++round.replayed;
      if (!IsExactly(*answer, round)) ++round.wrong_bytes;
    } else {
      NoteOther(answer);
    }
  }

  void AskAgain(Stub& stub, const v1::ClaimRequest& claim, Round& round) {
    const auto answer = Send(stub, claim, std::chrono::seconds(30));
    if (Decided(answer) != "Replay") return NoteOther(answer);
    ++round.replayed_later;
    if (!IsExactly(*answer, round)) ++round.wrong_bytes;
  }

  void NoteOther(const absl::StatusOr<v1::ClaimResponse>& answer) {
    MutexLock lock(mutex_);
    other_.insert(answer.ok() ? Decided(answer) : answer.status().ToString());
  }

  std::set<std::string> other() {
    MutexLock lock(mutex_);
    return other_;
  }

  void Race(std::vector<Round>& rounds) {
    std::barrier start(kThreads);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        const auto stub = v1::IdempotencyService::NewStub(
            channels_[static_cast<std::size_t>(i) % channels_.size()]);
        for (Round& round : rounds) {
          const v1::ClaimRequest claim = ClaimOf(round.key);
          start.arrive_and_wait();
          AskFirst(*stub, claim, round);
          start.arrive_and_wait();
          AskAgain(*stub, claim, round);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<std::unique_ptr<Replica>> replicas_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;

  Mutex mutex_;
  // Answers that must not be.
  std::set<std::string> other_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(SameKeyRaceTest, ExactlyOneOfTwoHundredIsGrantedInEveryRound) {
  std::vector<Round> rounds(static_cast<std::size_t>(Rounds()));
  int number = 0;
  for (Round& round : rounds) {
    round.key = RandomKey();
    round.response = ResponseOf(201, BodyOf(++number));
  }
  Race(rounds);
  EXPECT_THAT(other(), ::testing::IsEmpty());

  std::map<std::string, int> counts;
  for (const Round& round : rounds) {
    EXPECT_EQ(round.claimed, 1);
    EXPECT_EQ(round.recorded, 1);
    EXPECT_EQ(round.in_progress + round.replayed, kThreads - 1);
    EXPECT_EQ(round.replayed_later, kThreads);
    EXPECT_EQ(round.wrong_bytes, 0);
    counts["claimed"] += round.claimed;
    counts["in progress"] += round.in_progress;
    counts["replayed"] += round.replayed;
    counts["replayed later"] += round.replayed_later;
  }
  std::cout << rounds.size() << " rounds of " << kThreads << " callers:";
  for (const auto& [what, count] : counts) {
    std::cout << " " << count << " " << what << ";";
  }
  std::cout << "\n";
  // Else the callers did not meet.
  EXPECT_GT(counts["in progress"], 0);
}

}  // namespace
}  // namespace idempotency
