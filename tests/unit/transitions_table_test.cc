// Prints what is decided in every situation, one line for all situations that
// come out alike, and compares it with outcomes.txt, which a reviewer can read
// beside the manual's tables. With IDEMPOTENCY_WRITE_OUTCOMES set, the file is
// written instead.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <variant>

#include "server/core/errors.h"
#include "server/core/transitions.h"
#include "tests/unit/decision_table.h"
#include "tests/unit/situations.h"

namespace idempotency {
namespace {

constexpr char kFile[] = IDEMPOTENCY_UNIT_FOLDER "/outcomes.txt";

std::string YesNo(bool value) { return value ? "yes" : "no"; }

std::string Token(bool same) { return same ? "this" : "other"; }

std::string ErrorName(const absl::Status& status) {
  return std::string(ReasonName(ReasonOf(status)));
}

const Record* PointerTo(const std::optional<Record>& record) {
  return record.has_value() ? &*record : nullptr;
}

// The manual's word for the record. That the tables can be told in these words
// is checked by Add(); which record has which word is the table of Lookup.
std::string RecordWord(const Situation& s, const Record* record) {
  if (record == nullptr || IsAbsent(*record, Now())) return "absent";
  if (s.row != Row::kUnfinished) return NameOf(s.row);
  if (s.gave_up != GaveUp::kNo) return "given up";
  return s.lease == Lease::kRunning ? "running" : "lapsed";
}

// ---- Words for what a decision does, relative to the record before.

std::string DescribeGrant(const std::optional<Record>& before,
                          const Record& after) {
  const bool first = after.created_at == Now();
  std::string text = "Claimed: attempt ";
  if (first) {
    text += "1, created now";
  } else if (after.attempt == before->attempt) {
    return text + "and fencing token as at first";
  } else {
    text += "+ 1";
  }
  text += after.policy.name == "kept" ? ", policy stays" : ", policy anew";
  if (after.abandoned.has_value()) text += ", told of the abandoned attempt";
  return text;
}

std::string DescribeClaim(const std::optional<Record>& before,
                          const Decision<ClaimOutcome>& decision) {
  if (!decision.answer.ok()) return ErrorName(decision.answer.status());
  const ClaimOutcome& outcome = *decision.answer;
  if (std::holds_alternative<Claimed>(outcome)) {
    return DescribeGrant(before, *decision.write);
  }
  if (std::holds_alternative<Replay>(outcome)) return "Replay";
  if (std::holds_alternative<InProgress>(outcome)) return "InProgress";
  if (std::holds_alternative<Mismatch>(outcome)) return "Mismatch";
  return "InDoubt";
}

std::string DescribeTold(const Abandoned& told) {
  std::string text =
      told.owner == "own" ? "the latest attempt" : "the earlier attempt";
  switch (told.reason) {
    case AbandonReason::kLeaseLapsed:
      text += ", lease lapsed";
      break;
    case AbandonReason::kOutcomeUnknown:
      text += ", outcome unknown";
      break;
    case AbandonReason::kServerError:
      text += ", server error " + std::to_string(told.status_code);
      break;
  }
  return text + ", " + told.checkpoint.value_or("no checkpoint");
}

std::string DescribeExpiry(const Record& before, const Record& after) {
  if (after.expires_at == absl::InfiniteFuture()) return "never";
  if (after.expires_at == before.expires_at) return "stays";
  if (after.policy.retention.has_value()) {
    if (after.expires_at == Now() + *after.policy.retention) {
      return "now + retention";
    }
    if (after.expires_at == after.lease_expires_at + *after.policy.retention) {
      return "lease end + retention";
    }
  }
  return "now + " + absl::FormatDuration(after.expires_at - Now());
}

std::string DescribeLeaseEnd(const Record& before, const Record& after) {
  if (after.lease_expires_at == before.lease_expires_at) return "stays";
  return "now + " + absl::FormatDuration(after.lease_expires_at - Now());
}

std::string DescribeFinalize(const std::optional<Record>& before,
                             const Decision<FinalizeOutcome>& decision) {
  if (!decision.answer.ok()) {
    return ErrorName(decision.answer.status()) +
           (decision.evidence ? ", evidence" : "");
  }
  std::string text;
  switch (decision.answer->result) {
    case FinalizeResult::kRecorded:
      text = "RECORDED";
      break;
    case FinalizeResult::kRecordedWithoutBody:
      text = "RECORDED_WITHOUT_BODY";
      break;
    case FinalizeResult::kReleased:
      text = "RELEASED";
      break;
    case FinalizeResult::kInDoubt:
      text = "IN_DOUBT";
      break;
  }
  if (before->state == RecordState::kFinal) return text + ", as at first";
  if (decision.write->gave_up == GaveUp::kServerError) {
    return text + ", given up" + (decision.write->held ? " and held" : "");
  }
  return text;
}

std::string NameOf(VisibleState state) {
  static const char* const kNames[] = {"IN_PROGRESS", "FINALIZED", "RELEASED",
                                       "IN_DOUBT"};
  return kNames[static_cast<int>(state)];
}

std::string DescribeRelease(const std::optional<Record>& before,
                            const Decision<ReleaseOutcome>& decision) {
  if (!decision.answer.ok()) return ErrorName(decision.answer.status());
  std::string text = "released=";
  text += decision.answer->released ? "true" : "false";
  text += decision.answer->state.has_value()
              ? ", " + NameOf(*decision.answer->state)
              : ", no record";
  if (!decision.write.has_value()) return text;
  if (decision.write->freed_count > before->freed_count) {
    return text + ", key freed, new downstream key, expiry " +
           DescribeExpiry(*before, *decision.write);
  }
  if (decision.write->gave_up == before->gave_up) return text + ", a repeat";
  return text + ", gave up: " + NameOf(decision.write->gave_up);
}

// ---- The tables.

DecisionTable ClaimTable() {
  DecisionTable table("Claim: the answer", {"record", "token", "hash", "held",
                                            "resolve", "renewal", "policy"});
  for (const Situation& s : AllSituations()) {
    const std::optional<Record> record = RecordIn(s);
    for (const ClaimChoice& c : AllClaimChoices()) {
      if (c.lease != LeaseAsked::kUnset ||
          c.checkpoint != CheckpointSent::kNone) {
        continue;
      }
      const auto decision =
          DecideClaim(PointerTo(record), ClaimOf(s, c), Now());
      EXPECT_TRUE(
          table.Add({RecordWord(s, PointerTo(record)), Token(c.same_token),
                     c.same_hash ? "same" : "other", YesNo(s.held),
                     YesNo(c.resolve_in_doubt), NameOf(c.renewal),
                     c.policy == PolicyFound::kRefused ? "refused" : "found"},
                    DescribeClaim(record, decision)));
    }
  }
  return table;
}

DecisionTable ToldTable() {
  DecisionTable table("Claim: what a takeover is told",
                      {"gave up", "took over", "checkpoint"});
  for (const Situation& s : AllSituations()) {
    const std::optional<Record> record = RecordIn(s);
    const ClaimChoice c{.same_token = false, .resolve_in_doubt = true};
    const auto decision = DecideClaim(PointerTo(record), ClaimOf(s, c), Now());
    if (!decision.write.has_value() || !decision.write->abandoned.has_value()) {
      continue;
    }
    EXPECT_TRUE(
        table.Add({NameOf(s.gave_up), YesNo(s.took_over), YesNo(s.checkpoint)},
                  DescribeTold(*decision.write->abandoned)));
  }
  return table;
}

DecisionTable HeldTable() {
  DecisionTable table("Claim: held after a grant",
                      {"record", "held", "abandoned", "policy now"});
  for (const Situation& s : AllSituations()) {
    const std::optional<Record> record = RecordIn(s);
    for (const ClaimChoice& c : AllClaimChoices()) {
      if (c.same_token) continue;
      const auto decision =
          DecideClaim(PointerTo(record), ClaimOf(s, c), Now());
      if (!decision.write.has_value()) continue;
      const bool absent = !record.has_value() || IsAbsent(*record, Now());
      EXPECT_TRUE(table.Add({absent ? "absent" : NameOf(s.row), YesNo(s.held),
                             NameOf(s.on_abandoned), NameOf(c.policy)},
                            "held " + YesNo(decision.write->held)));
    }
  }
  return table;
}

std::string AgainTables() {
  DecisionTable lease("Claim: lease_expires_at of an owner that claims again",
                      {"lease", "asked"});
  DecisionTable expiry("Claim: expires_at of an owner that claims again",
                       {"expiry", "keep"});
  DecisionTable checkpoint("Claim: checkpoint of an owner that claims again",
                           {"checkpoint", "sent"});
  for (const Situation& s : AllSituations()) {
    const std::optional<Record> record = RecordIn(s);
    for (const ClaimChoice& c : AllClaimChoices()) {
      if (!c.same_token || !record.has_value()) continue;
      const auto decision = DecideClaim(&*record, ClaimOf(s, c), Now());
      const std::optional<Record>& after = decision.write;
      if (!after.has_value() || after->attempt != record->attempt) continue;
      EXPECT_TRUE(lease.Add({NameOf(s.lease), NameOf(c.lease)},
                            DescribeLeaseEnd(*record, *after)));
      EXPECT_TRUE(expiry.Add({NameOf(s.expiry), NameOf(s.keep)},
                             DescribeExpiry(*record, *after)));
      EXPECT_TRUE(checkpoint.Add(
          {YesNo(s.checkpoint), NameOf(c.checkpoint)},
          after->checkpoint == record->checkpoint ? "stays" : "replaced"));
    }
  }
  return lease.Print() + expiry.Print() + checkpoint.Print();
}

DecisionTable FinalizeTable() {
  DecisionTable table("Finalize: the answer",
                      {"record", "token", "response", "status", "5xx",
                       "abandoned", "held", "left out"});
  for (const Situation& s : AllSituations()) {
    const std::optional<Record> record = RecordIn(s);
    for (const FinalizeChoice& c : AllFinalizeChoices()) {
      const auto decision =
          DecideFinalize(PointerTo(record), FinalizeOf(c), Now());
      EXPECT_TRUE(table.Add(
          {RecordWord(s, PointerTo(record)), Token(c.same_token),
           c.same_response ? "same" : "other", std::to_string(c.status_code),
           NameOf(s.on_server_error), NameOf(s.on_abandoned), YesNo(s.held),
           YesNo(c.body_omitted || c.headers_omitted)},
          DescribeFinalize(record, decision)));
    }
  }
  return table;
}

DecisionTable FinalExpiryTable() {
  DecisionTable table("Finalize: expires_at once recorded",
                      {"keep", "expiry", "held"});
  for (const Situation& s : AllSituations()) {
    const std::optional<Record> record = RecordIn(s);
    if (s.row != Row::kUnfinished) continue;
    const auto decision =
        DecideFinalize(PointerTo(record), FinalizeOf({}), Now());
    if (!decision.write.has_value()) continue;
    EXPECT_TRUE(table.Add({NameOf(s.keep), NameOf(s.expiry), YesNo(s.held)},
                          DescribeExpiry(*record, *decision.write)));
  }
  return table;
}

DecisionTable ReleaseTable() {
  DecisionTable table("Release",
                      {"record", "token", "disposition", "took over", "keep"});
  for (const Situation& s : AllSituations()) {
    const std::optional<Record> record = RecordIn(s);
    for (const ReleaseChoice& c : AllReleaseChoices()) {
      const auto decision =
          DecideRelease(PointerTo(record), ReleaseOf(c), Now());
      EXPECT_TRUE(
          table.Add({RecordWord(s, PointerTo(record)), Token(c.same_token),
                     NameOf(c.disposition), YesNo(s.took_over), NameOf(s.keep)},
                    DescribeRelease(record, decision)));
    }
  }
  return table;
}

DecisionTable LookupTable() {
  DecisionTable table("Lookup, and what each record is called below",
                      {"record", "expiry", "lease", "gave up", "held"});
  for (const Situation& s : AllSituations()) {
    const std::optional<Record> record = RecordIn(s);
    const auto outcome = DecideLookup(PointerTo(record), Now());
    EXPECT_TRUE(table.Add({NameOf(s.row), NameOf(s.expiry), NameOf(s.lease),
                           NameOf(s.gave_up), YesNo(s.held)},
                          RecordWord(s, PointerTo(record)) + ": " +
                              (outcome.ok() ? NameOf(outcome->state)
                                            : ErrorName(outcome.status()))));
  }
  return table;
}

std::string PrintAll() {
  return "What is decided in every situation. Made by transitions_table_test;\n"
         "a dash stands for every value that occurs there.\n\n" +
         LookupTable().Print() + ClaimTable().Print() + ToldTable().Print() +
         HeldTable().Print() + AgainTables() + FinalizeTable().Print() +
         FinalExpiryTable().Print() + ReleaseTable().Print();
}

TEST(TransitionsTableTest, TheOutcomesAreThoseOfTheReviewedFile) {
  const std::string printed = PrintAll();
  std::cout << printed;
  if (std::getenv("IDEMPOTENCY_WRITE_OUTCOMES") != nullptr) {
    ASSERT_TRUE(std::ofstream(kFile) << printed);
  }
  std::ostringstream reviewed;
  reviewed << std::ifstream(kFile).rdbuf();
  EXPECT_EQ(printed, reviewed.str())
      << "read the difference beside the manual's tables; if it is right, run "
         "this test with IDEMPOTENCY_WRITE_OUTCOMES=1";
}

}  // namespace
}  // namespace idempotency
