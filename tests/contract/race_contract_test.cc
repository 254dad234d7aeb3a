// Several lanes and replicas on one database at once. Each thread has a store
// of its own.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "tests/contract/store_contract.h"

namespace idempotency {
namespace {

constexpr int kThreads = 6;
constexpr int kRounds = 20;

// Sends until it is decided: a lock or a change under way decides nothing.
template <typename Send>
auto UntilDecided(const Send& send) -> decltype(send()) {
  auto answer = send();
  for (int i = 0;
       i < 100 && answer.status().code() == absl::StatusCode::kAborted; ++i) {
    answer = send();
  }
  return answer;
}

// Runs `each` with a number and a store of its own in kThreads threads, which
// start together.
template <typename Each>
void Together(ContractDatabase& database, const Each& each) {
  std::vector<std::unique_ptr<Store>> stores;
  for (int i = 0; i < kThreads; ++i) {
    stores.push_back(database.MakeStore());
    ASSERT_TRUE(stores.back()->ReadRules().ok()) << "connected";
  }
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      ++ready;
      while (ready < kThreads) std::this_thread::yield();
      each(i, *stores[static_cast<std::size_t>(i)]);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

struct Counts {
  std::atomic<int> claimed{0};
  std::atomic<int> in_progress{0};
  std::atomic<int> other{0};

  void Add(const absl::StatusOr<ClaimOutcome>& answer) {
    if (Is<Claimed>(answer)) {
      ++claimed;
    } else if (Is<InProgress>(answer)) {
      ++in_progress;
    } else {
      ++other;
      ADD_FAILURE() << "undecided or another outcome: " << answer.status();
    }
  }
};

TEST_P(StoreContract, OneOfManyClaimsOfANewKeyIsGranted) {
  std::vector<Counts> rounds(kRounds);
  Together(database(), [&](int thread, Store& store) {
    for (int round = 0; round < kRounds; ++round) {
      const ClaimCommand claim = ClaimBy(static_cast<std::uint32_t>(thread),
                                         Id("key-" + std::to_string(round)));
      rounds[static_cast<std::size_t>(round)].Add(
          UntilDecided([&] { return SendOne(store, claim).outcome; }));
    }
  });
  for (const Counts& round : rounds) {
    EXPECT_EQ(round.claimed, 1);
    EXPECT_EQ(round.in_progress, kThreads - 1);
  }
}

TEST_P(StoreContract, OneOfManyClaimsOfAnAbandonedKeyTakesItOver) {
  std::vector<Counts> rounds(kRounds);
  for (int round = 0; round < kRounds; ++round) {
    const RecordId id = Id("key-" + std::to_string(round));
    MustClaim(ClaimBy(1000, id));
    Age(id, kLease * 2);
  }
  Together(database(), [&](int thread, Store& store) {
    for (int round = 0; round < kRounds; ++round) {
      const ClaimCommand claim = ClaimBy(static_cast<std::uint32_t>(thread),
                                         Id("key-" + std::to_string(round)));
      const auto answer =
          UntilDecided([&] { return SendOne(store, claim).outcome; });
      rounds[static_cast<std::size_t>(round)].Add(answer);
      if (Is<Claimed>(answer)) {
        EXPECT_EQ(std::get<Claimed>(*answer).attempt, 2);
        EXPECT_EQ(std::get<Claimed>(*answer).abandoned->owner, "pod-1000");
      }
    }
  });
  for (const Counts& round : rounds) {
    EXPECT_EQ(round.claimed, 1);
    EXPECT_EQ(round.in_progress, kThreads - 1);
  }
}

TEST_P(StoreContract, OneOfManyResponsesIsRecorded) {
  std::atomic<int> recorded{0};
  std::atomic<int> refused{0};
  MustClaim(ClaimBy(1));
  Together(database(), [&](int thread, Store& store) {
    const FinalizeCommand finalize = FinalizeBy(1, Answer(200 + thread));
    const auto answer = UntilDecided([&] { return SendOne(store, finalize); });
    ++(answer.ok() ? recorded : refused);
    if (!answer.ok()) {
      EXPECT_TRUE(IsRefused(answer, Reason::kAlreadyFinalized));
    }
  });
  EXPECT_EQ(recorded, 1);
  EXPECT_EQ(refused, kThreads - 1);
  EXPECT_EQ(Lookup()->conflict_count, kThreads - 1);
}

TEST_P(StoreContract, ATakeoverAndARenewalNeverBothSucceed) {
  std::vector<std::atomic<int>> granted(kRounds);
  for (int round = 0; round < kRounds; ++round) {
    const RecordId id = Id("key-" + std::to_string(round));
    MustClaim(ClaimBy(0, id));
    Age(id, kLease * 2);
  }
  Together(database(), [&](int thread, Store& store) {
    for (int round = 0; round < kRounds; ++round) {
      const RecordId id = Id("key-" + std::to_string(round));
      // The first thread renews; all others want to take over.
      ClaimCommand claim = ClaimBy(static_cast<std::uint32_t>(thread), id);
      if (thread == 0) {
        const auto found = SendOne(store, LookupCommand{id});
        if (!found.ok() || found->record.claim_token != Token(0)) continue;
        claim.renew_fencing_token = found->record.fencing_token;
      }
      const auto answer =
          UntilDecided([&] { return SendOne(store, claim).outcome; });
      if (Is<Claimed>(answer)) ++granted[static_cast<std::size_t>(round)];
    }
  });
  for (const std::atomic<int>& round : granted) EXPECT_EQ(round, 1);
}

TEST_P(StoreContract, SweepersAndClaimsTogetherLoseNoClaim) {
  constexpr int kKeys = 200;
  std::vector<RecordId> ids;
  for (int i = 0; i < kKeys; ++i) {
    ids.push_back(Id("key-" + std::to_string(1000 + i)));
    MustClaim(ClaimBy(1, ids.back()));
    Age(ids.back(), absl::Hours(24 * 10));
  }
  std::atomic<bool> done{false};
  std::thread sweeping([&] {
    const std::unique_ptr<Sweeper> sweeper = database().MakeSweeper();
    while (!done) EXPECT_TRUE(sweeper->SweepRecords(7).ok());
  });
  for (const RecordId& id : ids) {
    const ClaimCommand claim = ClaimBy(2, id);
    EXPECT_TRUE(Is<Claimed>(
        UntilDecided([&] { return SendOne(store(), claim).outcome; })));
  }
  done = true;
  sweeping.join();
  for (const RecordId& id : ids) {
    const Record record = MustLookup(id);
    EXPECT_EQ(record.claim_token, Token(2)) << id.key;
    EXPECT_EQ(record.attempt, 1) << id.key;
  }
}

}  // namespace
}  // namespace idempotency
