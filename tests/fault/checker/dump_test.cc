// The log of changes and its dumps, taken from a real PostgreSQL as
// transitions.sql says.
#include "tests/fault/checker/dump.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "server/core/digest.h"
#include "server/core/metrics.h"
#include "server/core/optimistic_store.h"
#include "server/store/postgres/record_table.h"
#include "tests/fault/checker/check.h"
#include "tests/fault/checker/copy_table.h"
#include "tests/fault/checker/hex.h"
#include "tests/fault/checker/history.h"
#include "tests/integration/pg_samples.h"
#include "tests/support/temp_folder.h"

namespace idempotency::fault {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The statements that transitions.sql tells to take the dumps with.
std::string DumpStatements(const std::string& sql) {
  std::istringstream lines(sql.substr(sql.find("-- What fault-checker reads")));
  std::string statements;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("--   ")) statements += line.substr(5) + "\n";
  }
  return statements;
}

class DumpTest : public testing::Test {
 protected:
  DumpTest() {
    const std::string sql =
        ReadFile(std::string(IDEMPOTENCY_FAULT_FOLDER) + "/transitions.sql");
    statements_ = DumpStatements(sql);
    Sql(options_, sql);
  }

  void Claim(int token, const std::string& op) {
    const ClaimCommand claim = idempotency::Claim(id_, token);
    const std::int64_t begin = MonotonicNow();
    const auto answers = store_.ClaimBatch(Pointers(std::vector{claim}));
    ASSERT_TRUE(answers.front().outcome.ok());
    Append(CallEvent{.op = op,
                     .t = begin,
                     .path = Path::kUnary,
                     .kind = Kind::kClaim,
                     .scope = id_.scope,
                     .key = id_.key,
                     .token = FormatUuid(claim.claim_token),
                     .hash = ToHex(claim.request_hash)});
    AnswerEvent answer{.op = op, .t = MonotonicNow(), .code = "OK"};
    if (const auto* claimed = std::get_if<Claimed>(&*answers.front().outcome)) {
      answer.outcome = Outcome::kClaimed;
      answer.fencing = claimed->fencing_token;
      answer.attempt = claimed->attempt;
      answer.lease_us = absl::ToInt64Microseconds(claimed->lease);
      answer.lease_until_us = absl::ToUnixMicros(claimed->lease_expires_at);
      answer.expires_us = absl::ToUnixMicros(claimed->expires_at);
    } else {
      const Replay& replay = std::get<Replay>(*answers.front().outcome);
      answer.outcome = Outcome::kReplay;
      answer.created_us = absl::ToUnixMicros(replay.created_at);
      answer.finalized_us = absl::ToUnixMicros(replay.finalized_at);
      answer.expires_us = absl::ToUnixMicros(replay.expires_at);
      answer.status = 200;
      answer.digest = ToHex(std::string(32, 'd'));
    }
    Append(answer);
  }

  void Finalize(int token, const std::string& op) {
    const FinalizeCommand finalize = idempotency::Finalize(id_, token);
    const std::int64_t begin = MonotonicNow();
    const auto answers = store_.FinalizeBatch(Pointers(std::vector{finalize}));
    Append(CallEvent{.op = op,
                     .t = begin,
                     .path = Path::kUnary,
                     .kind = Kind::kFinalize,
                     .scope = id_.scope,
                     .key = id_.key,
                     .token = FormatUuid(finalize.claim_token),
                     .status = 200,
                     .digest = ToHex(finalize.response_digest)});
    AnswerEvent answer{.op = op, .t = MonotonicNow(), .code = "OK"};
    if (answers.front().ok()) {
      answer.outcome = Outcome::kRecorded;
      answer.expires_us = absl::ToUnixMicros(answers.front()->expires_at);
    } else {
      answer.code = "FAILED_PRECONDITION";
      answer.reason = "CLAIM_SUPERSEDED";
    }
    Append(answer);
  }

  void Append(const Event& event) { ASSERT_TRUE(writer_->Append(event).ok()); }

  // Runs the statements of transitions.sql with psql, in the test's folder.
  Files Dump() {
    Append(ClockEvent{.t = MonotonicNow(),
                      .database_us = absl::ToUnixMicros(absl::Now()),
                      .error_ns = 1'000'000});
    std::ofstream(folder_->path() + "/dump.sql") << statements_;
    const std::string command = "cd '" + folder_->path() +
                                "' && psql -X -q -v ON_ERROR_STOP=1 -d '" +
                                options_.uri + "' -f dump.sql";
    EXPECT_EQ(std::system(command.c_str()), 0);
    return {.histories = {folder_->path() + "/history"},
            .transitions = folder_->path() + "/transitions.tsv",
            .dump = folder_->path() + "/dump.tsv",
            .conflicts = folder_->path() + "/conflicts.tsv"};
  }

  const ConnectionOptions options_ = MigratedDatabase();
  const std::unique_ptr<TempFolder> folder_ = *TempFolder::Make();
  const std::unique_ptr<HistoryWriter> writer_ =
      *HistoryWriter::Open(folder_->path() + "/history");
  const RecordId id_{"fault/r17", "odd \\ key\twith \xc3\xa9"};
  std::string statements_;
  Metrics metrics_;
  OptimisticStore store_{
      std::make_unique<PgRecordTable>(options_, SampleClock()), SampleClock(),
      metrics_};
};

TEST_F(DumpTest, TellsOfEveryChangeOfARecord) {
  Claim(1, "c1-1");
  Claim(1, "c1-2");
  Finalize(1, "c1-3");
  Claim(2, "c2-1");
  Finalize(2, "c2-2");
  const Files files = Dump();

  std::vector<Change> changes;
  ASSERT_TRUE(ReadTransitions(files.transitions, [&](Change change) {
                changes.push_back(std::move(change));
              }).ok());
  ASSERT_EQ(changes.size(), 3U);
  EXPECT_EQ(changes[0].kind, ChangeKind::kInsert);
  EXPECT_EQ(changes[1].old_version, changes[0].row.record.version);
  EXPECT_EQ(changes[2].row.id, id_);
  EXPECT_EQ(changes[2].row.record.response_digest, std::string(32, 'd'));
  std::vector<StoredRow> rows;
  ASSERT_TRUE(ReadRecords(files.dump, [&](StoredRow row) {
                rows.push_back(std::move(row));
              }).ok());
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].record, changes[2].row.record);
  std::vector<Conflict> conflicts;
  ASSERT_TRUE(ReadConflicts(files.conflicts, [&](Conflict conflict) {
                conflicts.push_back(std::move(conflict));
              }).ok());
  EXPECT_EQ(conflicts.size(), 1U);

  const absl::StatusOr<fault::Run> run = ReadRun(files);
  ASSERT_TRUE(run.ok()) << run.status();
  Findings findings;
  Limits limits;
  limits.success_needs_effect = false;
  ASSERT_TRUE(Check(*run, limits, findings).ok());
  for (const Violation& violation : findings.violations()) {
    ADD_FAILURE() << violation.number << ": " << violation.what;
  }
  EXPECT_EQ(findings.counts.changes, 3);
}

TEST_F(DumpTest, TheProgramEndsWithWhatItFound) {
  Claim(1, "c1-1");
  const Files files = Dump();
  const auto check = [&](const std::string& arguments) {
    const std::string command = "cd '" + folder_->path() +
                                "' && '" IDEMPOTENCY_FAULT_CHECKER "' " +
                                arguments + " >checker.log 2>&1";
    return WEXITSTATUS(std::system(command.c_str()));
  };
  const std::string all =
      "--transitions=transitions.tsv --dump=dump.tsv "
      "--conflicts=conflicts.tsv --effects_min=0 --clock_error_max=1s "
      "history";
  EXPECT_EQ(check(all), 0);
  EXPECT_THAT(ReadFile(folder_->path() + "/checker.log"),
              HasSubstr("checked operations=1 decided=1 keys=1"));
  EXPECT_EQ(check("--help"), 0);
  EXPECT_EQ(check(all + " --budget=0s"), 2);
  EXPECT_EQ(check(all + " --later=1s"), 2);
  EXPECT_EQ(check(all + " nowhere"), 2);
  EXPECT_EQ(check("history"), 2);
  EXPECT_EQ(check(all + " --effects_min=1"), 2);
  EXPECT_EQ(check(all + " --after_min=1"), 2);
  EXPECT_EQ(check(all + " --left_min=1"), 2);
  EXPECT_EQ(check("--transitions=transitions.tsv --dump=dump.tsv history"), 2);
  Append(EffectEvent{.t = 1,
                     .scope = id_.scope,
                     .key = id_.key,
                     .downstream = "d",
                     .result = EffectResult::kExecuted});
  EXPECT_EQ(check(all), 1);
  EXPECT_THAT(ReadFile(folder_->path() + "/checker.log"),
              HasSubstr("\nchecked operations=1"));
  EXPECT_THAT(ReadFile(folder_->path() + "/checker.log"),
              testing::StartsWith("S14 fault/r17 "));
  Append(NoteEvent{.t = 1, .fault = "test", .phase = Phase::kBegin});
  EXPECT_EQ(check(all), 1);
  EXPECT_THAT(ReadFile(folder_->path() + "/checker.log"),
              AllOf(HasSubstr("\nunfinished operations=1"),
                    HasSubstr("a fault was begun and never ended")));
}

TEST_F(DumpTest, ADeletionIsLoggedWithWhatWasDeleted) {
  Claim(1, "c1-1");
  Sql(options_, "DELETE FROM idempotency_records");
  std::vector<Change> changes;
  ASSERT_TRUE(ReadTransitions(Dump().transitions, [&](Change change) {
                changes.push_back(std::move(change));
              }).ok());
  ASSERT_EQ(changes.size(), 2U);
  EXPECT_EQ(changes[1].kind, ChangeKind::kDelete);
  EXPECT_EQ(changes[1].row.record, changes[0].row.record);
}

TEST_F(DumpTest, WhatIsRolledBackIsNotLogged) {
  Claim(1, "c1-1");
  Sql(options_,
      "BEGIN; UPDATE idempotency_records SET version = version + 1; ROLLBACK");
  EXPECT_EQ(Sql(options_, "SELECT count(*) FROM fault_transitions"), "1");
}

TEST_F(DumpTest, LooksOnlyAtTheRoundsScopes) {
  Claim(1, "c1-1");
  Sql(options_,
      "UPDATE idempotency_records SET scope = 'fault/r170', version = 9");
  std::vector<Change> changes;
  ASSERT_TRUE(ReadTransitions(Dump().transitions, [&](Change change) {
                changes.push_back(std::move(change));
              }).ok());
  EXPECT_EQ(changes.size(), 1U);
}

// ---- Refusals.

class CopyTest : public testing::Test {
 protected:
  std::string Problem(const std::string& contents) {
    const std::string path = folder_->path() + "/copy";
    std::ofstream(path) << contents;
    const absl::Status status = ReadConflicts(path, [](Conflict) {});
    return std::string(status.message());
  }

  const std::unique_ptr<TempFolder> folder_ = *TempFolder::Make();
  const std::string header_ =
      "scope\tkey\tclaim_token\tresponse_digest\tstatus_code\tfirst_seen_at\t"
      "last_seen_at\tcount\n";
  const std::string row_ =
      "s\tk\taaaaaaaa-0000-4000-8000-000000000001\t\\\\x01\t200\t-\t-\t1\n";
};

TEST_F(CopyTest, RefusesWhatItDoesNotUnderstand) {
  EXPECT_THAT(Problem(header_ + row_), IsEmpty());
  EXPECT_THAT(Problem(""), HasSubstr("no header"));
  EXPECT_THAT(Problem("scope\tkey\n"), HasSubstr("no column 'claim_token'"));
  EXPECT_THAT(Problem("more\t" + header_), HasSubstr("unknown column 'more'"));
  EXPECT_THAT(Problem("key\t" + header_), HasSubstr("twice"));
  EXPECT_THAT(Problem(header_ + "s\tk\n"), HasSubstr(":2: another number"));
  EXPECT_THAT(Problem(header_ + row_ + "s\tk"), HasSubstr(":3: the line is"));
  for (const auto& [from, to] :
       {std::pair<std::string, std::string>{"aaaaaaaa", "aaaa"},
        {"\\\\x01", "\\\\x0"},
        {"\\\\x01", "01"},
        {"200", "x"},
        {"s\t", "\\q\t"}}) {
    std::string row = row_;
    row.replace(row.find(from), from.size(), to);
    EXPECT_THAT(Problem(header_ + row), HasSubstr("cannot be understood"))
        << to;
  }
}

TEST_F(CopyTest, ReadsTimesToTheMicrosecond) {
  const std::string_view columns[] = {"at"};
  const auto time_of = [&](std::string_view text) -> absl::Time {
    const std::string_view fields[] = {text};
    CopyRow row(columns, fields);
    const absl::Time time = row.Time(0);
    return row.ok() ? time : absl::InfinitePast();
  };
  EXPECT_EQ(time_of("2026-11-30 20:04:36.12345+00"),
            absl::FromUnixMicros(1'796'069'076'123'450));
  EXPECT_EQ(time_of("2026-11-30 20:04:36+00"),
            absl::FromUnixSeconds(1'796'069'076));
  EXPECT_EQ(time_of("infinity"), absl::InfiniteFuture());
  for (const char* text :
       {"", "2026-11-30", "2026-11-30 20:04:36", "2026-11-30 20:04:36+01",
        "2026-11-30 20:04:36.+x+00", "2026/11/30 20:04:36+00",
        "2026-11-30 20:04:36.1234567+00"}) {
    EXPECT_EQ(time_of(text), absl::InfinitePast()) << text;
  }
}

}  // namespace
}  // namespace idempotency::fault
