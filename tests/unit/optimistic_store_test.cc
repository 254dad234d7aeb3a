// The batch contract when statements fail, when their replies are lost and
// when others change the records in between.
#include "server/core/optimistic_store.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "server/core/digest.h"
#include "server/core/errors.h"
#include "server/core/limits.h"
#include "server/core/transitions.h"
#include "tests/support/manual_clock.h"
#include "tests/support/memory_table.h"

namespace idempotency {
namespace {

using enum MemoryStatement;
using enum StatementPhase;

const RecordId kId = {"scope", "key"};

Uuid TokenOf(std::uint8_t number) {
  Uuid token;
  token.bytes.fill(number);
  return token;
}

class OptimisticStoreTest : public testing::Test {
 protected:
  static constexpr absl::Duration kLease = absl::Seconds(30);

  // A store whose statements call `hook`.
  std::unique_ptr<Store> MakeStore(StatementHook hook = nullptr) {
    return std::make_unique<OptimisticStore>(
        std::make_unique<MemoryTable>(database_, std::move(hook)), clock_,
        metrics_);
  }

  ClaimCommand ClaimBy(std::uint8_t token) const {
    ClaimCommand command;
    command.id = kId;
    command.request_hash = std::string(32, 'h');
    command.claim_token = TokenOf(token);
    command.policy = database_.rules().policies.at("default");
    return command;
  }

  static FinalizeCommand FinalizeBy(std::uint8_t token, int status) {
    const Response response{.status_code = status, .body = "body"};
    return {.id = kId,
            .claim_token = TokenOf(token),
            .response = response,
            .response_digest = ResponseDigest(response)};
  }

  static ReleaseCommand ReleaseBy(std::uint8_t token, Disposition how) {
    return {.id = kId, .claim_token = TokenOf(token), .disposition = how};
  }

  static absl::StatusOr<ClaimOutcome> Send(Store& store,
                                           const ClaimCommand& command) {
    const ClaimCommand* const batch[] = {&command};
    return store.ClaimBatch(batch).at(0).outcome;
  }
  static absl::StatusOr<FinalizeOutcome> Send(Store& store,
                                              const FinalizeCommand& command) {
    const FinalizeCommand* const batch[] = {&command};
    return store.FinalizeBatch(batch).at(0);
  }
  static absl::StatusOr<ReleaseOutcome> Send(Store& store,
                                             const ReleaseCommand& command) {
    const ReleaseCommand* const batch[] = {&command};
    return store.ReleaseBatch(batch).at(0);
  }

  // Whole seconds, so that time never stands still between two grants.
  void LetTheLeaseLapse() { database_.Advance(kLease + absl::Seconds(1)); }

  MemoryDatabase database_;
  ManualClock clock_;
  Metrics metrics_;
};

template <typename Outcome>
bool Is(const absl::StatusOr<ClaimOutcome>& answer) {
  return answer.ok() && std::holds_alternative<Outcome>(*answer);
}

// A hook that runs `act` once, at the first `statement` in `phase`.
StatementHook Once(MemoryStatement statement, StatementPhase phase,
                   std::function<absl::Status()> act) {
  auto done = std::make_shared<bool>(false);
  return [=, act = std::move(act)](MemoryStatement now, StatementPhase then) {
    if (*done || now != statement || then != phase) return absl::OkStatus();
    *done = true;
    return act();
  };
}

StatementHook Always(MemoryStatement statement, absl::Status status) {
  return [=](MemoryStatement now, StatementPhase phase) {
    return now == statement && phase == kBefore ? status : absl::OkStatus();
  };
}

// ---- A fault at each statement of a whole life.

// The outcomes of a life of one key whose statement number `fault` failed with
// `status`; each call is sent again until it is decided.
class Life {
 public:
  Life(int fault, StatementPhase phase, absl::Status status)
      : fault_(fault), phase_(phase), status_(std::move(status)) {}

  // How many statements were begun.
  int statements() const { return statements_; }

  StatementHook Hook() {
    return [this](MemoryStatement, StatementPhase phase) {
      if (phase == kBefore) ++statements_;
      return statements_ == fault_ && phase == phase_ ? status_
                                                      : absl::OkStatus();
    };
  }

  template <typename Send>
  auto UntilDecided(const Send& send) -> decltype(send()) {
    auto answer = send();
    if (!answer.ok() && !HasReason(answer.status())) {
      EXPECT_EQ(answer.status(), status_);
      answer = send();
    }
    return answer;
  }

 private:
  const int fault_;
  const StatementPhase phase_;
  const absl::Status status_;
  int statements_ = 0;
};

class OptimisticStoreFaultTest : public OptimisticStoreTest {
 protected:
  struct Outcomes {
    std::vector<absl::StatusOr<ClaimOutcome>> claims;
    std::vector<absl::StatusOr<FinalizeOutcome>> finalizes;
    std::vector<absl::StatusOr<ReleaseOutcome>> releases;
    std::optional<Record> record;
    std::size_t evidence = 0;
    int statements = 0;
  };

  // Claim, takeover, give up, takeover, refused and recorded responses, and a
  // release of another key's claim, on a database of its own.
  Outcomes Live(int fault, StatementPhase phase, absl::Status status) {
    MemoryDatabase database;
    Life life(fault, phase, std::move(status));
    OptimisticStore store(std::make_unique<MemoryTable>(database, life.Hook()),
                          clock_, metrics_);
    Outcomes all;
    const auto claim = [&](std::uint8_t token) {
      const ClaimCommand command = ClaimBy(token);
      all.claims.push_back(
          life.UntilDecided([&] { return Send(store, command); }));
    };
    const auto finalize = [&](std::uint8_t token, int status_code) {
      const FinalizeCommand command = FinalizeBy(token, status_code);
      all.finalizes.push_back(
          life.UntilDecided([&] { return Send(store, command); }));
    };
    const auto release = [&](std::uint8_t token, Disposition how) {
      const ReleaseCommand command = ReleaseBy(token, how);
      all.releases.push_back(
          life.UntilDecided([&] { return Send(store, command); }));
    };
    claim(1);
    release(1, Disposition::kNotExecuted);
    claim(2);
    database.Advance(kLease);
    claim(3);
    finalize(3, 503);
    claim(4);
    release(4, Disposition::kOutcomeUnknown);
    claim(5);
    finalize(3, 200);
    finalize(5, 200);
    finalize(5, 201);
    claim(6);
    all.record = database.Find(kId);
    all.evidence = database.ConflictsOf(kId).size();
    all.statements = life.statements();
    return all;
  }

  static void ExpectSame(const Outcomes& faulty, const Outcomes& clean) {
    const auto expect_same = [](const auto& got, const auto& wanted) {
      ASSERT_EQ(got.size(), wanted.size());
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i].status(), wanted[i].status()) << i;
        EXPECT_TRUE(!got[i].ok() || *got[i] == *wanted[i]) << i;
      }
    };
    expect_same(faulty.claims, clean.claims);
    expect_same(faulty.finalizes, clean.finalizes);
    expect_same(faulty.releases, clean.releases);
    EXPECT_EQ(faulty.evidence, clean.evidence);
    Record got = faulty.record.value();
    got.version = clean.record.value().version;
    EXPECT_EQ(got, clean.record.value());
  }
};

TEST_F(OptimisticStoreFaultTest, ALostReplyAtAnyStatementChangesNoOutcome) {
  const Outcomes clean = Live(0, kBefore, absl::OkStatus());
  ASSERT_GT(clean.statements, 15);
  for (int fault = 1; fault <= clean.statements; ++fault) {
    SCOPED_TRACE(fault);
    ExpectSame(Live(fault, kAfterCommit, absl::UnknownError("lost")), clean);
  }
}

TEST_F(OptimisticStoreFaultTest, AFailureBeforeAnyStatementChangesNoOutcome) {
  const Outcomes clean = Live(0, kBefore, absl::OkStatus());
  for (int fault = 1; fault <= clean.statements; ++fault) {
    SCOPED_TRACE(fault);
    ExpectSame(Live(fault, kBefore, absl::UnavailableError("down")), clean);
  }
}

// ---- Failures.

TEST_F(OptimisticStoreTest, NobodyIsGrantedWhenTheStoreCannotAnswer) {
  for (const MemoryStatement statement : {kInsertNew, kRead}) {
    MemoryDatabase& database = database_;
    database.Put(kId, NewRecord(ClaimBy(9), database.Now()));
    const auto store =
        MakeStore(Always(statement, absl::UnavailableError("down")));
    EXPECT_EQ(Send(*store, ClaimBy(1)).status().code(),
              absl::StatusCode::kUnavailable);
    EXPECT_EQ(database.Find(kId)->claim_token, TokenOf(9));
  }
}

// Each statement to a store that is away may wait for seconds.
TEST_F(OptimisticStoreTest, AStoreThatWasAwayForTheFirstIsNotAskedForTheRest) {
  const ClaimCommand fresh = ClaimBy(1);
  ClaimCommand renewal = ClaimBy(2);
  renewal.id.key = "another";
  renewal.renew_fencing_token = 7;
  const FinalizeCommand finalize = FinalizeBy(3, 200);
  for (const bool inserts : {true, false}) {
    std::map<MemoryStatement, int> asked;
    const auto store = MakeStore([&](MemoryStatement now, StatementPhase) {
      ++asked[now];
      clock_.Advance(limits::kWaitInVain);
      return absl::UnavailableError("down");
    });
    std::vector<const ClaimCommand*> claims{&renewal};
    if (inserts) claims.insert(claims.begin(), &fresh);
    const std::vector<const FinalizeCommand*> finalizes{&finalize};
    const ClaimAndFinalizeAnswers answers =
        store->ClaimAndFinalize(claims, finalizes);
    EXPECT_EQ(asked[kInsertNew], inserts ? 1 : 0);
    EXPECT_EQ(asked[kRead], inserts ? 0 : 1);
    EXPECT_TRUE(inserts || asked[kFinalizeOwned] == 0);
    for (const ClaimAnswer& answer : answers.claims) {
      EXPECT_TRUE(IsStoreAway(answer.outcome.status()));
    }
    for (const auto& answer : answers.finalizes) {
      EXPECT_TRUE(IsStoreAway(answer.status()));
    }
  }
}

TEST_F(OptimisticStoreTest, ARefusalIsNotAnsweredWithoutItsEvidence) {
  const auto store =
      MakeStore(Always(kKeepConflicts, absl::UnavailableError("down")));
  ASSERT_TRUE(Is<Claimed>(Send(*store, ClaimBy(1))));
  const auto answer = Send(*store, FinalizeBy(2, 200));
  EXPECT_FALSE(HasReason(answer.status()));
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(metrics_.conflicts, 0u);
}

TEST_F(OptimisticStoreTest, RefusedResponsesAreCountedByKind) {
  const auto store = MakeStore();
  for (std::uint8_t i = 0; i < 20; ++i) {
    EXPECT_FALSE(Send(*store, FinalizeBy(i, 200)).ok());
  }
  EXPECT_FALSE(Send(*store, FinalizeBy(30, 500)).ok());
  EXPECT_EQ(metrics_.conflicts, 20u);
  EXPECT_EQ(metrics_.conflicts_server_error, 1u);
  EXPECT_EQ(metrics_.conflicts_not_kept, 5u);
}

// ---- Others in between.

TEST_F(OptimisticStoreTest, ALeaseRenewedBetweenReadAndTakeoverIsNotStolen) {
  const auto owner = MakeStore();
  ASSERT_TRUE(Is<Claimed>(Send(*owner, ClaimBy(1))));
  LetTheLeaseLapse();
  const auto other = MakeStore(Once(kReplace, kBefore, [&] {
    EXPECT_TRUE(Is<Claimed>(Send(*owner, ClaimBy(1))));
    return absl::OkStatus();
  }));
  EXPECT_TRUE(Is<InProgress>(Send(*other, ClaimBy(2))));
  EXPECT_EQ(database_.Find(kId)->claim_token, TokenOf(1));
}

TEST_F(OptimisticStoreTest, AResponseRecordedBetweenReadAndTakeoverIsReplayed) {
  const auto owner = MakeStore();
  ASSERT_TRUE(Is<Claimed>(Send(*owner, ClaimBy(1))));
  LetTheLeaseLapse();
  const auto other = MakeStore(Once(kReplace, kBefore, [&] {
    EXPECT_TRUE(Send(*owner, FinalizeBy(1, 200)).ok());
    return absl::OkStatus();
  }));
  EXPECT_TRUE(Is<Replay>(Send(*other, ClaimBy(2))));
}

TEST_F(OptimisticStoreTest, AHoldParkedBetweenReadAndTakeoverIsTakenOver) {
  ClaimCommand claim = ClaimBy(1);
  claim.policy->on_abandoned = OnAbandoned::kHold;
  const auto store = MakeStore();
  ASSERT_TRUE(Is<Claimed>(Send(*store, claim)));
  database_.Advance(absl::Hours(48));
  MemorySweeper sweeper(database_);
  const auto other = MakeStore(Once(kReplace, kBefore, [&] {
    EXPECT_EQ(sweeper.SweepRecords(10)->parked, 1);
    return absl::OkStatus();
  }));
  claim.claim_token = TokenOf(2);
  claim.resolve_in_doubt = true;
  ASSERT_TRUE(Is<Claimed>(Send(*other, claim)));
  EXPECT_LT(database_.Find(kId)->expires_at, absl::InfiniteFuture());
}

TEST_F(OptimisticStoreTest, ARecordSweptAfterItRefusedTheInsertIsMadeAnew) {
  const auto owner = MakeStore();
  ASSERT_TRUE(Is<Claimed>(Send(*owner, ClaimBy(1))));
  database_.Advance(absl::Hours(48));
  MemorySweeper sweeper(database_);
  for (const MemoryStatement statement : {kRead, kReplace}) {
    database_.Put(kId, NewRecord(ClaimBy(1), database_.Now()));
    database_.Advance(absl::Hours(48));
    const auto other = MakeStore(Once(statement, kBefore, [&] {
      EXPECT_EQ(sweeper.SweepRecords(10)->deleted, 1);
      return absl::OkStatus();
    }));
    const auto answer = Send(*other, ClaimBy(2));
    ASSERT_TRUE(Is<Claimed>(answer));
    EXPECT_EQ(std::get<Claimed>(*answer).attempt, 1);
    EXPECT_EQ(database_.Find(kId)->claim_token, TokenOf(2));
  }
}

TEST_F(OptimisticStoreTest, AClaimBetweenTheChoiceAndTheSweepIsNotSwept) {
  const auto store = MakeStore();
  ASSERT_TRUE(Is<Claimed>(Send(*store, ClaimBy(1))));
  database_.Advance(absl::Hours(48));
  MemorySweeper sweeper(database_, Once(kSweepRecords, kBefore, [&] {
                          EXPECT_TRUE(Is<Claimed>(Send(*store, ClaimBy(2))));
                          return absl::OkStatus();
                        }));
  EXPECT_EQ(sweeper.SweepRecords(10)->deleted, 0);
  EXPECT_EQ(database_.Find(kId)->claim_token, TokenOf(2));
}

TEST_F(OptimisticStoreTest, ATakeoverBetweenIsSeenByFinalizeAndRelease) {
  for (const MemoryStatement statement : {kFinalizeOwned, kRead}) {
    database_.Put(kId, NewRecord(ClaimBy(1), database_.Now()));
    LetTheLeaseLapse();
    const auto other = MakeStore();
    const auto owner = MakeStore(Once(statement, kBefore, [&] {
      EXPECT_TRUE(Is<Claimed>(Send(*other, ClaimBy(2))));
      return absl::OkStatus();
    }));
    // A status that the optimistic statement leaves to the rounds.
    EXPECT_EQ(ReasonOf(Send(*owner, FinalizeBy(1, 500)).status()),
              Reason::kClaimSuperseded);
  }
  database_.Put(kId, NewRecord(ClaimBy(1), database_.Now()));
  LetTheLeaseLapse();
  const auto other = MakeStore();
  const auto owner = MakeStore(Once(kReplace, kBefore, [&] {
    EXPECT_TRUE(Is<Claimed>(Send(*other, ClaimBy(2))));
    return absl::OkStatus();
  }));
  EXPECT_EQ(
      ReasonOf(Send(*owner, ReleaseBy(1, Disposition::kNotExecuted)).status()),
      Reason::kClaimSuperseded);
}

TEST_F(OptimisticStoreTest, ARecordThatChangesInEveryRoundIsGivenBack) {
  const auto owner = MakeStore();
  ASSERT_TRUE(Is<Claimed>(Send(*owner, ClaimBy(1))));
  int rounds = 0;
  const auto busy = MakeStore([&](MemoryStatement now, StatementPhase phase) {
    if (now == kReplace && phase == kBefore) {
      ++rounds;
      EXPECT_TRUE(Is<Claimed>(Send(*owner, ClaimBy(1))));
    }
    return absl::OkStatus();
  });
  EXPECT_EQ(Send(*busy, ClaimBy(1)).status().code(),
            absl::StatusCode::kAborted);
  EXPECT_EQ(rounds, limits::kStoreRoundsMax);
}

// ---- Leases that pass while a statement waits.

TEST_F(OptimisticStoreTest, AGrantIsAnsweredWithTheLeaseThatIsLeft) {
  const auto store = MakeStore(Once(kInsertNew, kAfterCommit, [&] {
    clock_.Advance(std::chrono::seconds(10));
    return absl::OkStatus();
  }));
  const auto answer = Send(*store, ClaimBy(1));
  ASSERT_TRUE(Is<Claimed>(answer));
  EXPECT_EQ(std::get<Claimed>(*answer).lease, kLease - absl::Seconds(10));
}

TEST_F(OptimisticStoreTest, AGrantThatWaitedTooLongIsRenewedBeforeItIsTold) {
  const auto wait = [&] {
    clock_.Advance(std::chrono::seconds(20));
    database_.Advance(absl::Seconds(20));
    return absl::OkStatus();
  };
  const auto fresh = MakeStore(Once(kInsertNew, kAfterCommit, wait));
  auto answer = Send(*fresh, ClaimBy(1));
  ASSERT_TRUE(Is<Claimed>(answer));
  EXPECT_EQ(std::get<Claimed>(*answer).lease, kLease);
  EXPECT_EQ(std::get<Claimed>(*answer).lease_expires_at,
            database_.Now() + kLease);
  LetTheLeaseLapse();
  const auto takeover = MakeStore(Once(kReplace, kAfterCommit, wait));
  answer = Send(*takeover, ClaimBy(2));
  ASSERT_TRUE(Is<Claimed>(answer));
  EXPECT_EQ(std::get<Claimed>(*answer).lease, kLease);
  EXPECT_EQ(std::get<Claimed>(*answer).attempt, 2);
  EXPECT_TRUE(std::get<Claimed>(*answer).abandoned.has_value());
}

TEST_F(OptimisticStoreTest, ALeaseThatAlwaysPassesIsNeverToldAsHeld) {
  const auto slow = MakeStore([&](MemoryStatement, StatementPhase phase) {
    if (phase == kAfterCommit) {
      clock_.Advance(std::chrono::seconds(40));
      database_.Advance(absl::Seconds(40));
    }
    return absl::OkStatus();
  });
  EXPECT_FALSE(Send(*slow, ClaimBy(1)).ok());
}

// ---- Large bodies.

TEST_F(OptimisticStoreTest, WhatOneReadCannotHoldIsReadInTheNextRounds) {
  const auto store = MakeStore();
  std::vector<ClaimCommand> claims;
  for (int i = 0; i < 6; ++i) {
    Record record = NewRecord(ClaimBy(1), database_.Now());
    record.state = RecordState::kFinal;
    record.response.body = std::string(100, static_cast<char>('a' + i));
    claims.push_back(ClaimBy(2));
    claims.back().id.key = "key-" + std::to_string(i);
    database_.Put(claims.back().id, record);
  }
  database_.SetBodyBytesMax(250);
  std::vector<const ClaimCommand*> batch;
  for (const ClaimCommand& claim : claims) batch.push_back(&claim);
  const std::vector<ClaimAnswer> answers = store->ClaimBatch(batch);
  ASSERT_EQ(answers.size(), 6u);
  for (std::size_t i = 0; i < answers.size(); ++i) {
    ASSERT_TRUE(Is<Replay>(answers[i].outcome)) << i;
    EXPECT_EQ(std::get<Replay>(*answers[i].outcome).response.body,
              std::string(100, static_cast<char>('a' + i)));
  }
}

}  // namespace
}  // namespace idempotency
