// Nothing that callers send gets into a log or into an error, whatever goes
// wrong.
#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cctype>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/burst.h"
#include "tests/integration/open_transaction.h"
#include "tests/integration/wire_fixture.h"
#include "tests/support/port.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;

// Each field carries one; all of them begin alike.
constexpr char kCanary[] = "canary-";

std::string Hex(const std::string& text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const char c : text) {
    hex += kDigits[static_cast<unsigned char>(c) >> 4];
    hex += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return hex;
}

std::string Lower(std::string text) {
  for (char& c : text) {
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

class LogSecrecyTest : public WireTest {
 protected:
  static void SetUpTestSuite() {
    auto postgres = TempPostgres::Make({.fsync = false, .settings = {}});
    ASSERT_TRUE(postgres.ok()) << postgres.status();
    postgres_ = *std::move(postgres);
    const auto database = postgres_->CreateDatabase();
    ASSERT_TRUE(database.ok()) << database.status();
    StartReplica(*database);
  }
  static void TearDownTestSuite() {
    WireTest::TearDownTestSuite();
    postgres_.reset();
  }
  static TempPostgres& postgres() { return *postgres_; }

  // A claim with a canary in every field.
  static v1::ClaimRequest Canaries() {
    v1::ClaimRequest claim = ClaimFor(kCanary + NewKey());
    claim.set_scope(std::string(kCanary) + "scope");
    claim.set_request_hash(std::string(kCanary) + "request-hash");
    claim.set_owner(std::string(kCanary) + "owner");
    claim.set_checkpoint(std::string(kCanary) + "checkpoint");
    tokens_.push_back(claim.claim_token());
    return claim;
  }
  static v1::ClaimRequest ByAnotherCanary(const v1::ClaimRequest& claim) {
    const v1::ClaimRequest other = ByAnother(claim);
    tokens_.push_back(other.claim_token());
    return other;
  }
  static v1::FinalizeRequest ResponseTo(const v1::ClaimRequest& claim,
                                        int status_code) {
    v1::FinalizeRequest request =
        FinalizeOf(claim, status_code, std::string(kCanary) + "body");
    v1::Header& header = *request.mutable_response()->add_headers();
    header.set_name(std::string(kCanary) + "header");
    header.set_value(std::string(kCanary) + "value");
    return request;
  }

  // Fails the test where `text` shows anything that a caller sent.
  static void ExpectNothingIn(std::string text, const std::string& what) {
    text = Lower(std::move(text));
    std::vector<std::string> secrets = {kCanary, Hex(kCanary)};
    for (const std::string& token : tokens_) {
      secrets.push_back(Lower(token));
      std::string digits;
      for (const char c : Lower(token)) {
        if (c != '-') digits += c;
      }
      secrets.push_back(digits);
    }
    for (const std::string& secret : secrets) {
      const std::size_t at = text.find(secret);
      EXPECT_EQ(at, std::string::npos)
          << secret << " in " << what << ": "
          << text.substr(at < 200 ? 0 : at - 200, 400);
    }
  }
  template <typename Message>
  static void ExpectSecretError(const Reply<Message>& reply) {
    EXPECT_FALSE(reply.status.ok()) << reply->ShortDebugString();
    ExpectNothingIn(reply.status.error_message(), "the message");
    ExpectNothingIn(reply.status.error_details(), "the details");
  }
  static void ExpectSecretLogs() {
    ExpectNothingIn(replica().Log(), "the server's log");
    ExpectNothingIn(postgres().Log(), "PostgreSQL's log");
    ExpectNoSqlOrAddress();
  }
  // Nor does the server's log show how it speaks to its database.
  static void ExpectNoSqlOrAddress() {
    const std::string log = replica().Log();
    for (const std::string words : {"INSERT INTO", "UPDATE ", "SELECT ",
                                    "unnest", "ON CONFLICT", "postgresql://"}) {
      EXPECT_EQ(log.find(words), std::string::npos) << words;
    }
  }

 private:
  static std::unique_ptr<TempPostgres> postgres_;
  static std::vector<std::string> tokens_;
};

std::unique_ptr<TempPostgres> LogSecrecyTest::postgres_;
std::vector<std::string> LogSecrecyTest::tokens_;

TEST_F(LogSecrecyTest, TheSearchFindsACanary) {
  const v1::ClaimRequest claim = Canaries();
  for (const std::string& text :
       {claim.key(), Hex(claim.key()), claim.claim_token(), claim.owner()}) {
    EXPECT_NONFATAL_FAILURE(ExpectNothingIn("x" + text + "y", "a text"),
                            "in a text");
  }
}

TEST_F(LogSecrecyTest, EverydayCallsLeaveNoTrace) {
  const v1::ClaimRequest claim = Canaries();
  Granted(claim);
  Granted(claim);
  EXPECT_TRUE(Send(ByAnotherCanary(claim))->has_in_progress());
  v1::ClaimRequest mismatch = ByAnotherCanary(claim);
  mismatch.set_request_hash(std::string(kCanary) + "other-hash");
  EXPECT_TRUE(Send(mismatch)->has_mismatch());
  RecordOf(claim);
  Finalized(ResponseTo(claim, 503));
  Finalized(ResponseTo(claim, 200));
  Replayed(ByAnotherCanary(claim));
  ExpectSecretError(Send(ResponseTo(claim, 201)));
  ExpectSecretError(Send(ResponseTo(ByAnotherCanary(claim), 200)));
  ExpectSecretError(
      Send(ReleaseOf(claim, v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED)));
  ExpectSecretError(Send(LookupOf(Canaries())));
  ExpectSecretError(Send(ResponseTo(Canaries(), 200)));
  ExpectSecretLogs();
}

TEST_F(LogSecrecyTest, BadInputIsNotRepeated) {
  std::vector<v1::ClaimRequest> bad(10, Canaries());
  bad[0].set_scope(std::string(kCanary) + "scope!");
  bad[1].set_key(kCanary + std::string(256, 'k'));
  bad[2].set_key(std::string(kCanary) + "\n");
  bad[3].set_request_hash(kCanary + std::string(64, 'h'));
  bad[4].set_claim_token(std::string(kCanary) + "token");
  bad[5].set_policy(std::string(kCanary) + "policy");
  bad[6].set_policy(kCanary + std::string(1000, 'p'));
  bad[7].set_owner(kCanary + std::string(128, 'o'));
  bad[8].set_checkpoint(kCanary + std::string(4096, 'c'));
  bad[9].mutable_lease()->set_seconds(-1);
  for (const v1::ClaimRequest& claim : bad) ExpectSecretError(Send(claim));
  v1::FinalizeRequest omitted = ResponseTo(Canaries(), 200);
  omitted.mutable_response()->set_body_omitted(true);
  ExpectSecretError(Send(omitted));
  ExpectSecretError(Send(ResponseTo(Canaries(), 1000)));
  ExpectSecretLogs();
}

TEST_F(LogSecrecyTest, LocksAndDeadlinesLeaveNoTrace) {
  const v1::ClaimRequest claim = Canaries();
  Granted(claim);
  {
    const OpenTransaction lock(database(),
                               "SELECT FROM idempotency_records FOR "
                               "UPDATE");
    ExpectSecretError(
        SendTo(replica(), ResponseTo(claim, 200), milliseconds(800)));
    ExpectSecretError(SendTo(replica(), claim, milliseconds(800)));
  }
  ExpectSecretLogs();
}

TEST_F(LogSecrecyTest, LostConnectionsLeaveNoTrace) {
  std::vector<v1::ClaimRequest> claims;
  for (int i = 0; i < 50; ++i) claims.push_back(Canaries());
  for (int i = 0; i < 5; ++i) {
    ClaimBurst burst(replica(), claims);
    EXPECT_TRUE(postgres()
                    .Run("SELECT pg_terminate_backend(pid) FROM "
                         "pg_stat_activity WHERE application_name LIKE "
                         "'idempotency%'")
                    .ok());
  }
  EXPECT_TRUE(postgres().Restart(TempPostgres::StopMode::kImmediate).ok());
  Granted(claims.front());
  ExpectSecretLogs();
}

TEST_F(LogSecrecyTest, ThePasswordOfTheDatabaseIsNotShown) {
  const std::string port = std::to_string(FreePort());
  for (const std::string& uri :
       {"postgresql://somebody:canary-password@127.0.0.1:" + port + "/none",
        "host=127.0.0.1 port=" + port + " password=canary-password",
        std::string("postgresql://somebody:canary-password@[none/none"),
        std::string("host=127.0.0.1 password='canary-password")}) {
    Replica::Options options;
    options.database = uri;
    options.wait_until_serving = false;
    const auto other = Replica::Start(std::move(options));
    ASSERT_TRUE(other.ok()) << other.status();
    // Where it can't go on with such an address it ends, saying why.
    WaitUntil([&] {
      return !(*other)->running() ||
             (*other)->Log().find("not serving") != std::string::npos;
    });
    EXPECT_THAT((*other)->Log(), testing::Not(testing::IsEmpty()));
    ExpectNothingIn((*other)->Log(), "the server's log");
  }
}

// PostgreSQL itself logs the row that a CHECK refuses; what is shown here is
// that the server does not pass that on.
TEST_F(LogSecrecyTest, RefusedRowsAndMissingTablesAreNotShown) {
  Sql("ALTER TABLE idempotency_records ADD CONSTRAINT none_more CHECK (attempt "
      "> 1) NOT VALID");
  ExpectSecretError(Send(Canaries()));
  Sql("ALTER TABLE idempotency_records DROP CONSTRAINT none_more");
  Sql("ALTER TABLE idempotency_conflicts RENAME TO gone");
  const v1::ClaimRequest claim = Canaries();
  Granted(claim);
  ExpectSecretError(Send(ResponseTo(ByAnotherCanary(claim), 200)));
  Sql("ALTER TABLE gone RENAME TO idempotency_conflicts");
  Sql("ALTER TABLE idempotency_records RENAME TO gone");
  ExpectSecretError(Send(Canaries()));
  Sql("ALTER TABLE gone RENAME TO idempotency_records");
  ExpectNothingIn(replica().Log(), "the server's log");
  ExpectNoSqlOrAddress();
  EXPECT_THAT(replica().Log(), testing::HasSubstr("INTERNAL"));
}

}  // namespace
}  // namespace idempotency
