// The programs of a fault run, before real servers that nothing happens to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/fault/caller/history_counts.h"
#include "tests/fault/caller/wallet.h"
#include "tests/fault/checker/history.h"
#include "tests/integration/fault_calls.h"
#include "tests/support/server_process.h"
#include "tests/support/temp_folder.h"
#include "tests/support/temp_postgres.h"

namespace idempotency::fault {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr seconds kPatience{60};
constexpr seconds kRunMin{3};
constexpr milliseconds kPoll{500};

// What is to happen in a run: calls of each kind on each way; each outcome of
// the contract's tables, and each reason of a refusal; and what takes several
// callers to happen. See history_counts.h.
constexpr const char* kHappens[] = {
    "claim", "finalize", "lookup", "release", "unary", "bulk", "client",
    "renewal", "wait", "resolve", "checkpoint", "/plain", "/hedge", "/retry",
    "/client", "/bulk", "/once", "/http", "over_body_limit",
    "over_header_limit",
    // Answers.
    "claimed", "took_over", "replay", "in_progress", "mismatch", "in_doubt",
    "recorded", "recorded_without_body", "result_released", "result_in_doubt",
    "released", "not_released", "found", "CLAIM_RELEASED", "CLAIM_SUPERSEDED",
    "ALREADY_FINALIZED", "RECORD_NOT_FOUND", "UNKNOWN_POLICY", "body_omitted",
    "headers_omitted",
    // Effects.
    "effect_executed", "effect_duplicate", "effect_refused",
    // Between callers.
    "superseded_owner", "late_claim", "handed_over", "waited", "new_life",
    "overlapping_owners"};

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class FaultCallerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = Require(TempFolder::Make());
    wallet_ = Start(FAULT_WALLET_PROGRAM,
                    {absl::StrCat("--ledger=", At("wallet.ledger")),
                     absl::StrCat("--socket=", At("wallet"))});
    ASSERT_TRUE(wallet_->WaitForLine("ready").ok());
  }

  void StartServers() {
    database_ = Require(TempPostgres::SharedDatabase());
    for (int i = 0; i < 2; ++i) {
      replicas_.push_back(StartReplica(
          database_, {"--drain_delay=100ms", "--reaper_pause=500ms",
                      "--body_bytes_max=10000"}));
    }
    Require(TempPostgres::RunAt(database_, TextOf(FAULT_POLICIES)));
    Require(TempPostgres::RunAt(database_, TextOf(FAULT_TRANSITIONS)));
  }

  std::string At(const std::string& name) const {
    return absl::StrCat(folder_->path(), "/", name);
  }

  std::unique_ptr<ServerProcess> Start(const std::string& program,
                                       std::vector<std::string> arguments) {
    return Require(ServerProcess::Start({.program = program,
                                         .arguments = std::move(arguments),
                                         .environment = {},
                                         .output_file = ""}));
  }

  std::unique_ptr<ServerProcess> StartCaller(const std::string& name) {
    return Start(FAULT_CALLER_PROGRAM,
                 {absl::StrCat("--servers=", replicas_[0]->target(), ",",
                               replicas_[1]->target()),
                  "--scope=fault/smoke", absl::StrCat("--history=", At(name)),
                  absl::StrCat("--wallet=", At("wallet")),
                  absl::StrCat("--name=", name), "--threads=20"});
  }

  Counts CountsSoFar() {
    return Require(CountsOf({At("c1"), At("c2"), At("wallet.ledger")}));
  }

  static std::vector<std::string> MissingFrom(const Counts& counts) {
    std::vector<std::string> missing;
    for (const char* const word : kHappens) {
      if (!counts.contains(word)) missing.push_back(word);
    }
    return missing;
  }

  // Lets callers run for a moment at least, and until all has happened.
  void RunCallers() {
    const auto begin = steady_clock::now();
    std::vector<std::unique_ptr<ServerProcess>> callers;
    for (const char* const name : {"c1", "c2"}) {
      callers.push_back(StartCaller(name));
    }
    do {
      std::this_thread::sleep_for(kPoll);
    } while (steady_clock::now() - begin < kRunMin ||
             (!MissingFrom(CountsSoFar()).empty() &&
              steady_clock::now() - begin < kPatience));
    for (const auto& caller : callers) caller->Terminate();
    for (const auto& caller : callers) {
      EXPECT_EQ(Require(caller->WaitForExit(kPatience)),
                (ServerProcess::Exit{.code = 0, .signal = 0}));
      EXPECT_THAT(caller->Output(), HasSubstr(" claimed="));
    }
  }

  // Pairs the machine's clock with the database's.
  void WriteClock(HistoryWriter& history) {
    const std::int64_t before = MonotonicNow();
    const std::string micros = Require(TempPostgres::RunAt(
        database_,
        "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"));
    const std::int64_t after = MonotonicNow();
    ClockEvent clock;
    clock.t = (before + after) / 2;
    clock.database_us = std::stoll(micros);
    clock.error_ns = (after - before) / 2;
    RequireOk(history.Append(clock));
  }

  // Once the servers have ended, and with them every call.
  void Dump() {
    for (const auto& replica : replicas_) replica->Terminate();
    for (const auto& replica : replicas_) Require(replica->WaitForExit());
    std::ofstream(At("dump.sql"))
        << "SET timezone = 'UTC'; SET datestyle = 'ISO';\n"
           "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;\n"
           "\\o "
        << At("transitions.tsv")
        << "\nCOPY (SELECT * FROM fault_transitions ORDER BY seq)"
           " TO STDOUT (FORMAT text, HEADER);\n"
           "\\o "
        << At("dump.tsv")
        << "\nCOPY (SELECT clock_timestamp() AS at,"
           " sha256(headers || '\\x00'::bytea || body) AS stored_digest, r.*"
           " FROM idempotency_records AS r) TO STDOUT (FORMAT text, HEADER);\n"
           "\\o "
        << At("conflicts.tsv")
        << "\nCOPY (SELECT * FROM idempotency_conflicts)"
           " TO STDOUT (FORMAT text, HEADER);\n"
           "COMMIT;\n";
    const auto psql =
        Start("/usr/bin/env", {"psql", "-X", "-q", "-v", "ON_ERROR_STOP=1",
                               "-f", At("dump.sql"), database_});
    EXPECT_EQ(Require(psql->WaitForExit(kPatience)).code, 0) << psql->Output();
  }

  std::string database_;
  std::unique_ptr<TempFolder> folder_;
  std::vector<std::unique_ptr<Replica>> replicas_;
  std::unique_ptr<ServerProcess> wallet_;
};

TEST_F(FaultCallerTest, AllThatMayHappenHappensAndIsWrittenDown) {
  StartServers();
  const auto harness = Require(HistoryWriter::Open(At("harness")));
  WriteClock(*harness);
  RunCallers();
  WriteClock(*harness);
  Dump();
  const auto checker =
      Start(FAULT_CHECKER_PROGRAM,
            {absl::StrCat("--transitions=", At("transitions.tsv")),
             absl::StrCat("--dump=", At("dump.tsv")),
             absl::StrCat("--conflicts=", At("conflicts.tsv")), At("harness"),
             At("c1"), At("c2"), At("wallet.ledger")});
  EXPECT_EQ(Require(checker->WaitForExit(kPatience)).code, 0);
  std::cout << checker->Output();
  EXPECT_THAT(checker->Output(), Not(HasSubstr(" overlapping_owners=0 ")));

  Counts counts = CountsSoFar();
  for (const auto& [word, count] : counts) {
    std::cout << "  " << count << " " << word << "\n";
  }
  EXPECT_THAT(MissingFrom(counts), IsEmpty());
  EXPECT_EQ(counts["called_twice"], 0);
  EXPECT_EQ(counts["answered_unasked"], 0);
  const int calls = counts["claim"] + counts["finalize"] + counts["lookup"] +
                    counts["release"];
  EXPECT_LT(counts["unanswered"] * 20, calls);
}

TEST_F(FaultCallerTest, ASecondCallerOfOneHistoryIsRefused) {
  RequireOk(Require(HistoryWriter::Open(At("c1")))->Append(NoteEvent{.t = 1}));
  const auto caller =
      Start(FAULT_CALLER_PROGRAM,
            {"--servers=127.0.0.1:1", absl::StrCat("--history=", At("c1")),
             absl::StrCat("--wallet=", At("wallet"))});
  EXPECT_EQ(Require(caller->WaitForExit(kPatience)),
            (ServerProcess::Exit{.code = 2, .signal = 0}));
  EXPECT_THAT(caller->Output(), HasSubstr("--history"));
}

TEST_F(FaultCallerTest, WalletRemembersWhatAKilledOneDid) {
  const auto ask = [&](WalletVerb verb, const std::string& downstream) {
    const WalletRequest request{.verb = verb,
                                .scope = "s",
                                .key = "k \xc3\xbc",
                                .downstream = downstream,
                                .token = "t"};
    WalletClient client(At("wallet"));
    absl::StatusOr<WalletAnswer> answer = absl::UnknownError("");
    for (int i = 0; i < 20 && !answer.ok(); ++i) answer = client.Ask(request);
    return Require(answer);
  };
  ask(WalletVerb::kCharge, "charged");
  ask(WalletVerb::kRefuse, "refused");
  wallet_->Kill();
  Require(wallet_->WaitForExit(kPatience));
  wallet_ = Start(FAULT_WALLET_PROGRAM,
                  {absl::StrCat("--ledger=", At("wallet.ledger")),
                   absl::StrCat("--socket=", At("wallet"))});
  ASSERT_TRUE(wallet_->WaitForLine("ready").ok());
  EXPECT_EQ(ask(WalletVerb::kCharge, "charged"), WalletAnswer::kDuplicate);
  EXPECT_EQ(ask(WalletVerb::kRefuse, "charged"), WalletAnswer::kDuplicate);
  EXPECT_EQ(ask(WalletVerb::kCharge, "refused"), WalletAnswer::kRefused);
  EXPECT_EQ(ask(WalletVerb::kFind, "refused"), WalletAnswer::kRefused);
  EXPECT_EQ(ask(WalletVerb::kFind, "other"), WalletAnswer::kAbsent);
}

}  // namespace
}  // namespace idempotency::fault
