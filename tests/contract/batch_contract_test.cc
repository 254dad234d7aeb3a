#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "server/core/limits.h"
#include "tests/contract/store_contract.h"

namespace idempotency {
namespace {

// Keys that a careless statement or comparison would mix up or break on.
std::vector<std::string> AwkwardKeys() {
  std::vector<std::string> keys = {
      "a",
      "A",
      "aa",
      "a ",
      " a",
      "NULL",
      "null",
      "\"NULL\"",
      "{}",
      "{a,b}",
      "{\"a\",\"b\"}",
      "(a,b)",
      "a,b",
      ",",
      ",,",
      "'",
      "''",
      "\"",
      "\"\"",
      "\\",
      "\\\\",
      "\\x00",
      "\\n",
      "\\N",
      "$1",
      "%s",
      "%",
      "_",
      "E'a'",
      "a;--",
      "caf\u00e9",
      "cafe\u0301",
      "\u212a",
      "k",
      "K",
      "stra\u00dfe",
      "strasse",
      "\ufb01",
      "fi",
      "\U0001f600",
      "\U0010ffff",
      "\u00a0",
      "\u200b",
      "\ufeff",
      std::string(255, 'k'),
      std::string(254, 'k'),
  };
  std::sort(keys.begin(), keys.end());
  return keys;
}

std::vector<RecordId> Ids(std::size_t count) {
  std::vector<RecordId> ids;
  for (std::size_t i = 0; i < count; ++i) {
    ids.push_back({"contract", "key-" + std::to_string(10'000 + i)});
  }
  return ids;
}

TEST_P(StoreContract, AnEmptyBatchHasNoAnswers) {
  EXPECT_TRUE(store().ClaimBatch({}).empty());
  EXPECT_TRUE(store().FinalizeBatch({}).empty());
  EXPECT_TRUE(store().LookupBatch({}).empty());
  EXPECT_TRUE(store().ReleaseBatch({}).empty());
}

TEST_P(StoreContract, AwkwardKeysAreKeptApartInOneBatch) {
  std::vector<ClaimCommand> claims;
  for (const std::string& key : AwkwardKeys()) {
    ClaimCommand claim =
        ClaimBy(static_cast<std::uint32_t>(claims.size()), Id(key));
    claim.owner = key.substr(0, 128 - 3);
    claim.checkpoint = key;
    claims.push_back(std::move(claim));
  }
  const auto granted = store().ClaimBatch(PointersTo(claims));
  ASSERT_EQ(granted.size(), claims.size());
  for (std::size_t i = 0; i < claims.size(); ++i) {
    ASSERT_TRUE(Is<Claimed>(granted[i].outcome)) << claims[i].id.key;
  }
  std::vector<FinalizeCommand> finalizes;
  for (std::size_t i = 0; i < claims.size(); ++i) {
    FinalizeCommand finalize = FinalizeBy(
        static_cast<std::uint32_t>(i), Answer(200, "of " + claims[i].id.key));
    finalize.id = claims[i].id;
    finalizes.push_back(std::move(finalize));
  }
  for (const auto& answer : store().FinalizeBatch(PointersTo(finalizes))) {
    ASSERT_TRUE(answer.ok()) << answer.status();
  }
  std::vector<LookupCommand> lookups;
  for (const ClaimCommand& claim : claims) lookups.push_back({claim.id});
  const auto found = other_store().LookupBatch(PointersTo(lookups));
  ASSERT_EQ(found.size(), claims.size());
  for (std::size_t i = 0; i < claims.size(); ++i) {
    ASSERT_TRUE(found[i].ok()) << claims[i].id.key;
    EXPECT_EQ(found[i]->record.response, finalizes[i].response);
    EXPECT_EQ(found[i]->record.claim_token, claims[i].claim_token);
    EXPECT_EQ(found[i]->record.owner, claims[i].owner);
    EXPECT_EQ(found[i]->record.checkpoint, claims[i].checkpoint);
  }
}

TEST_P(StoreContract, ScopesAreKeptApart) {
  std::vector<ClaimCommand> claims;
  std::uint32_t token = 0;
  for (const char* scope : {"a", "a/b", "ab", "b"}) {
    for (const char* key : {"/b", "b", "c"}) {
      claims.push_back(ClaimBy(++token, RecordId{scope, key}));
    }
  }
  std::sort(claims.begin(), claims.end(),
            [](const auto& a, const auto& b) { return a.id < b.id; });
  for (const ClaimAnswer& answer : store().ClaimBatch(PointersTo(claims))) {
    EXPECT_TRUE(Is<Claimed>(answer.outcome));
  }
}

TEST_P(StoreContract, EveryOutcomeStandsAtItsPlaceInOneBatch) {
  const auto prepare = [&](const char* key, const Policy& policy) {
    ClaimCommand claim = ClaimBy(1, policy);
    claim.id = Id(key);
    MustClaim(claim);
    return claim.id;
  };
  prepare("1-own", TakeOver());
  const RecordId final_id = prepare("2-final", TakeOver());
  FinalizeCommand finalize = FinalizeBy(1, Answer(200));
  finalize.id = final_id;
  ASSERT_TRUE(SendOne(store(), finalize).ok());
  prepare("3-mismatch", TakeOver());
  Age(prepare("4-in-doubt", Hold()), kLease * 2);
  Age(prepare("5-abandoned", TakeOver()), kLease * 2);
  prepare("6-running", TakeOver());
  const RecordId released_id = prepare("7-released", TakeOver());
  ReleaseCommand release = ReleaseBy(1, Disposition::kNotExecuted);
  release.id = released_id;
  ASSERT_TRUE(SendOne(store(), release).ok());

  std::vector<ClaimCommand> claims;
  for (const char* key :
       {"0-new", "1-own", "2-final", "3-mismatch", "4-in-doubt", "5-abandoned",
        "6-running", "7-released", "8-refused", "9-renewal"}) {
    claims.push_back(ClaimBy(2, Id(key)));
  }
  claims[1].claim_token = Token(1);
  claims[3].request_hash = std::string(32, 'x');
  claims[7].claim_token = Token(1);
  claims[8].policy = MakeError(Reason::kUnknownPolicy, "no");
  claims[9].renew_fencing_token = 1;
  const auto answers = store().ClaimBatch(PointersTo(claims));
  ASSERT_EQ(answers.size(), claims.size());
  EXPECT_TRUE(Is<Claimed>(answers[0].outcome));
  EXPECT_TRUE(Is<Claimed>(answers[1].outcome));
  EXPECT_TRUE(Is<Replay>(answers[2].outcome));
  EXPECT_TRUE(Is<Mismatch>(answers[3].outcome));
  EXPECT_TRUE(Is<InDoubt>(answers[4].outcome));
  ASSERT_TRUE(Is<Claimed>(answers[5].outcome));
  EXPECT_EQ(std::get<Claimed>(*answers[5].outcome).attempt, 2);
  EXPECT_TRUE(Is<InProgress>(answers[6].outcome));
  EXPECT_TRUE(IsRefused(answers[7].outcome, Reason::kClaimReleased));
  EXPECT_TRUE(IsRefused(answers[8].outcome, Reason::kUnknownPolicy));
  EXPECT_TRUE(IsRefused(answers[9].outcome, Reason::kRecordNotFound));
}

TEST_P(StoreContract, AFullBatchIsAnsweredInOrder) {
  const std::vector<RecordId> ids = Ids(limits::kBatchItemsMax);
  std::vector<ClaimCommand> claims;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    claims.push_back(ClaimBy(static_cast<std::uint32_t>(i), ids[i]));
  }
  const auto granted = store().ClaimBatch(PointersTo(claims));
  ASSERT_EQ(granted.size(), ids.size());
  for (const ClaimAnswer& answer : granted) {
    ASSERT_TRUE(Is<Claimed>(answer.outcome));
  }
  std::vector<FinalizeCommand> finalizes;
  std::vector<ReleaseCommand> releases;
  std::vector<LookupCommand> lookups;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    lookups.push_back({ids[i]});
    if (i % 2 == 0) {
      finalizes.push_back({.id = ids[i],
                           .claim_token = claims[i].claim_token,
                           .response = Answer(200, "body " + std::to_string(i)),
                           .response_digest = std::string(32, 'd')});
    } else {
      releases.push_back({.id = ids[i],
                          .claim_token = claims[i].claim_token,
                          .disposition = Disposition::kNotExecuted});
    }
  }
  for (const auto& answer : store().FinalizeBatch(PointersTo(finalizes))) {
    ASSERT_TRUE(answer.ok()) << answer.status();
  }
  for (const auto& answer : store().ReleaseBatch(PointersTo(releases))) {
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_TRUE(answer->released);
  }
  const auto found = store().LookupBatch(PointersTo(lookups));
  ASSERT_EQ(found.size(), ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ASSERT_TRUE(found[i].ok()) << found[i].status();
    EXPECT_EQ(found[i]->record.claim_token, claims[i].claim_token);
    EXPECT_EQ(found[i]->record.response.body,
              i % 2 == 0 ? "body " + std::to_string(i) : "");
  }
}

TEST_P(StoreContract, OneBadTokenDoesNotSpoilItsNeighbours) {
  const std::vector<RecordId> ids = Ids(3);
  std::vector<ClaimCommand> claims;
  std::vector<FinalizeCommand> finalizes;
  for (const RecordId& id : ids) {
    claims.push_back(ClaimBy(1, id));
    finalizes.push_back(FinalizeBy(1, Answer(200)));
    finalizes.back().id = id;
  }
  store().ClaimBatch(PointersTo(claims));
  finalizes[1].claim_token = Token(2);
  const auto answers = store().FinalizeBatch(PointersTo(finalizes));
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_TRUE(answers[0].ok());
  EXPECT_TRUE(IsRefused(answers[1], Reason::kClaimSuperseded));
  EXPECT_TRUE(answers[2].ok());
  EXPECT_EQ(MustLookup(ids[1]).state, RecordState::kUnfinished);
}

TEST_P(StoreContract, ALargeBodyIsReplayedWhole) {
  std::string body(limits::kBodyBytesMax, '\0');
  for (std::size_t i = 0; i < body.size(); ++i) {
    body[i] = static_cast<char>(i * 7 + i / 256);
  }
  MustClaim(ClaimBy(1));
  MustFinalize(1, Answer(200, body));
  const auto replay = SendOne(other_store(), ClaimBy(2)).outcome;
  ASSERT_TRUE(Is<Replay>(replay));
  EXPECT_TRUE(std::get<Replay>(*replay).response.body == body);
  EXPECT_TRUE(MustLookup().response.body == body);
}

// A body is told whole, or the item is to be sent again.
void CheckLargeBody(const absl::Status& status, const std::string& body,
                    std::size_t i, int& whole) {
  if (!status.ok()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    return;
  }
  ++whole;
  EXPECT_TRUE(body == std::string(limits::kMiB, static_cast<char>('a' + i)))
      << i;
}

TEST_P(StoreContract, ManyLargeBodiesAreReadInTurnsAndNeverWrongly) {
  const std::vector<RecordId> ids = Ids(20);
  std::vector<ClaimCommand> replays;
  std::vector<LookupCommand> lookups;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    MustClaim(ClaimBy(1, ids[i]));
    FinalizeCommand finalize = FinalizeBy(
        1, Answer(200, std::string(limits::kMiB, static_cast<char>('a' + i))));
    finalize.id = ids[i];
    ASSERT_TRUE(SendOne(store(), finalize).ok());
    replays.push_back(ClaimBy(2, ids[i]));
    lookups.push_back({ids[i]});
  }
  int replayed = 0;
  const auto claims = store().ClaimBatch(PointersTo(replays));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto& outcome = claims[i].outcome;
    ASSERT_TRUE(!outcome.ok() || Is<Replay>(outcome));
    CheckLargeBody(outcome.status(),
                   outcome.ok() ? std::get<Replay>(*outcome).response.body : "",
                   i, replayed);
  }
  EXPECT_GE(replayed, 8) << "a group of bodies at least";
  int looked_up = 0;
  const auto found = store().LookupBatch(PointersTo(lookups));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    CheckLargeBody(found[i].status(),
                   found[i].ok() ? found[i]->record.response.body : "", i,
                   looked_up);
  }
  EXPECT_GE(looked_up, 8);
}

}  // namespace
}  // namespace idempotency
