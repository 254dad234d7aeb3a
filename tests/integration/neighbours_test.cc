// Calls that share a batch: none of them can be mistaken for another, and one
// call's bad luck is not its neighbour's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/burst.h"
#include "tests/integration/wire_fixture.h"

namespace idempotency {
namespace {

// What arrays, rows, escapes, formats and NULL are written with.
std::vector<std::string> OddTexts() {
  std::vector<std::string> texts = {"{",
                                    "}",
                                    "{}",
                                    "{{}}",
                                    "}{",
                                    "{,}",
                                    "{\"}",
                                    "{NULL}",
                                    "{a,b}",
                                    "\"",
                                    "\"\"",
                                    "\"a\"",
                                    "\\",
                                    "\\\\",
                                    "\\\"",
                                    "\\}",
                                    "a\\",
                                    ",",
                                    ",,",
                                    "a,b",
                                    ",a",
                                    "'",
                                    "''",
                                    "';",
                                    "'; DROP TABLE idempotency_records; --",
                                    "$1",
                                    "$$",
                                    "$2::text",
                                    ":name",
                                    "?",
                                    "%s",
                                    "%",
                                    "_",
                                    "NULL",
                                    "null",
                                    "Null",
                                    "\"NULL\"",
                                    "\\N",
                                    "\\x00",
                                    "\\000",
                                    "E'\\x41'",
                                    "U&'\\0041'",
                                    "(",
                                    ")",
                                    "(,)",
                                    "()",
                                    "[1]",
                                    "[0:1]={a,b}",
                                    " ",
                                    "  ",
                                    " {",
                                    "{ ",
                                    "--",
                                    "/*",
                                    "*/",
                                    "#",
                                    ";",
                                    "=",
                                    "<",
                                    "&",
                                    "|",
                                    "\xc2\xa0",
                                    "\xc2\x85",
                                    "é",
                                    "日本",
                                    "\xf0\x9f\x98\x80",
                                    "true",
                                    "0",
                                    "-1",
                                    "NaN",
                                    "infinity",
                                    "now()"};
  texts.push_back(std::string(255, '{'));
  texts.push_back(std::string(255, '"'));
  texts.push_back(std::string(255, '\\'));
  texts.push_back(std::string(254, '\\') + "\"");
  return texts;
}

class NeighboursTest : public WireTest {
 protected:
  // A PostgreSQL of their own, which may be stopped.
  static void SetUpTestSuite() {
    auto postgres = TempPostgres::Make({.fsync = false, .settings = {}});
    ASSERT_TRUE(postgres.ok()) << postgres.status();
    postgres_ = *std::move(postgres);
    const auto database = postgres_->CreateDatabase();
    ASSERT_TRUE(database.ok()) << database.status();
    StartReplica(*database, {"--lanes=1"});
  }
  static void TearDownTestSuite() {
    WireTest::TearDownTestSuite();
    postgres_.reset();
  }

  // Sends the calls while the lane waits for the database, so that it finds
  // them all queued when it comes back.
  template <typename Request, typename Response>
  static std::vector<Reply<Response>> SendTogether(
      const std::vector<Request>& requests) {
    EXPECT_TRUE(postgres_->Pause().ok());
    LookupBurst plug(replica(), {LookupOf(ClaimFor("plug"))});
    WaitForArrival(replica());
    Burst<Request, Response> burst(replica(), requests);
    WaitForArrival(replica());
    postgres_->Resume();
    plug.Wait();
    return burst.Wait();
  }

  // How many statements wrote the records of a scope last.
  static std::string WritesOf(const std::string& scope) {
    return Sql(
        "SELECT count(DISTINCT xmin::text) FROM idempotency_records WHERE "
        "scope = '" +
        scope + "'");
  }

 private:
  static std::unique_ptr<TempPostgres> postgres_;
};

std::unique_ptr<TempPostgres> NeighboursTest::postgres_;

TEST_F(NeighboursTest, OddTextsBesideEachOtherStayWhatTheyAre) {
  const std::vector<std::string> texts = OddTexts();
  std::vector<v1::ClaimRequest> claims;
  std::vector<v1::ClaimRequest> repeats;
  std::vector<v1::FinalizeRequest> responses;
  std::vector<v1::LookupRequest> lookups;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    // Beside each text another one, in every field that takes any.
    const std::string& other = texts[(i + 1) % texts.size()];
    v1::ClaimRequest claim = ClaimFor(texts[i]);
    claim.set_scope("odd/texts");
    claim.set_owner(other.substr(0, 128));
    claim.set_checkpoint(other);
    claim.set_request_hash((other + std::string(16, '}')).substr(0, 64));
    claims.push_back(claim);
    repeats.push_back(ByAnother(claim));
    lookups.push_back(LookupOf(claim));
    v1::FinalizeRequest response = FinalizeOf(claim, 200, other);
    v1::Header& header = *response.mutable_response()->add_headers();
    header.set_name(texts[i]);
    header.set_value(other);
    responses.push_back(response);
  }

  for (const auto& reply :
       SendTogether<v1::ClaimRequest, v1::ClaimResponse>(claims)) {
    ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
    EXPECT_EQ(reply->claimed().attempt(), 1) << reply->ShortDebugString();
  }
  EXPECT_EQ(WritesOf("odd/texts"), "1");
  for (const auto& reply :
       SendTogether<v1::FinalizeRequest, v1::FinalizeResponse>(responses)) {
    ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
    EXPECT_EQ(reply->result(), v1::FinalizeResponse::RESULT_RECORDED);
  }
  EXPECT_EQ(WritesOf("odd/texts"), "1");
  const auto replays =
      SendTogether<v1::ClaimRequest, v1::ClaimResponse>(repeats);
  const auto records =
      SendTogether<v1::LookupRequest, v1::LookupResponse>(lookups);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::string response = responses[i].response().SerializeAsString();
    EXPECT_EQ(replays[i]->replay().response().SerializeAsString(), response)
        << texts[i];
    const v1::Record& record = records[i]->record();
    EXPECT_EQ(record.key(), texts[i]);
    EXPECT_EQ(record.owner(), claims[i].owner());
    EXPECT_EQ(record.checkpoint(), claims[i].checkpoint());
    EXPECT_EQ(record.request_hash(), claims[i].request_hash());
    EXPECT_EQ(record.response().SerializeAsString(), response);
  }
}

TEST_F(NeighboursTest, EveryKindOfResponseFitsBesideEveryOther) {
  std::vector<v1::ClaimRequest> claims;
  std::vector<v1::FinalizeRequest> requests;
  std::vector<std::string> kept;
  for (const std::size_t size : {0, 1, 200, 16'384, 16'385, 300'000, 1 << 20}) {
    for (const bool with_header : {false, true}) {
      const v1::ClaimRequest claim = ClaimFor(NewKey());
      Granted(claim);
      v1::FinalizeRequest request = FinalizeOf(
          claim, 200, std::string(size, static_cast<char>('a' + size % 26)));
      if (with_header) request.mutable_response()->add_headers();
      claims.push_back(ByAnother(claim));
      requests.push_back(request);
    }
  }
  for (const auto& reply :
       SendTogether<v1::FinalizeRequest, v1::FinalizeResponse>(requests)) {
    ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
    EXPECT_EQ(reply->result(), v1::FinalizeResponse::RESULT_RECORDED);
  }
  const auto replays =
      SendTogether<v1::ClaimRequest, v1::ClaimResponse>(claims);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_TRUE(replays[i]->replay().response().SerializeAsString() ==
                requests[i].response().SerializeAsString())
        << i;
  }
}

TEST_F(NeighboursTest, DifferentOutcomesOfOneBatchDoNotMix) {
  const v1::ClaimRequest fresh = ClaimFor(NewKey());
  const v1::ClaimRequest running = ClaimFor(NewKey());
  Granted(running);
  const v1::ClaimRequest final = ClaimFor(NewKey());
  Granted(final);
  Finalized(FinalizeOf(final, 200, "final"));
  v1::ClaimRequest held = ClaimFor(NewKey());
  held.set_policy("payment");
  Granted(held);
  Finalized(FinalizeOf(held, 500));
  const v1::ClaimRequest given_up = ClaimFor(NewKey());
  Granted(given_up);
  Finalized(FinalizeOf(given_up, 500));
  const v1::ClaimRequest abandoned = ClaimFor(NewKey());
  Granted(abandoned);
  Finalized(FinalizeOf(abandoned, 500));
  v1::ClaimRequest mismatch = ByAnother(running);
  mismatch.set_key(final.key());
  mismatch.set_request_hash(std::string(32, 'o'));
  v1::ClaimRequest unknown = ClaimFor(NewKey());
  unknown.set_policy("no-such-policy");
  v1::ClaimRequest renewal = ClaimFor(NewKey());
  renewal.set_renew_fencing_token(7);

  const auto replies = SendTogether<v1::ClaimRequest, v1::ClaimResponse>(
      {fresh, ByAnother(running), ByAnother(final), ByAnother(held), given_up,
       ByAnother(abandoned), mismatch, unknown, renewal, running});
  EXPECT_EQ(replies[0]->claimed().attempt(), 1);
  EXPECT_TRUE(replies[1]->has_in_progress());
  EXPECT_EQ(replies[2]->replay().response().body(), "final");
  EXPECT_TRUE(replies[3]->has_in_doubt());
  EXPECT_TRUE(IsRefusedAs(replies[4], "CLAIM_RELEASED"));
  EXPECT_EQ(replies[5]->claimed().attempt(), 2);
  EXPECT_TRUE(replies[6]->has_mismatch());
  EXPECT_TRUE(IsRefusal(replies[7], grpc::StatusCode::INVALID_ARGUMENT,
                        "UNKNOWN_POLICY", "policy"));
  EXPECT_TRUE(IsRefusedAs(replies[8], "RECORD_NOT_FOUND"));
  EXPECT_EQ(replies[9]->claimed().attempt(), 1);
}

TEST_F(NeighboursTest, OneClaimThatFailsDoesNotHarmTheOthers) {
  Sql("ALTER TABLE idempotency_records ADD CONSTRAINT unlucky CHECK (scope <> "
      "'unlucky')");
  std::vector<v1::ClaimRequest> claims;
  for (int i = 0; i < 20; ++i) claims.push_back(ClaimFor(NewKey()));
  claims[7].set_scope("unlucky");
  const auto replies =
      SendTogether<v1::ClaimRequest, v1::ClaimResponse>(claims);
  for (std::size_t i = 0; i < claims.size(); ++i) {
    if (i == 7) {
      EXPECT_TRUE(
          IsRefusal(replies[i], grpc::StatusCode::INTERNAL, "INTERNAL"));
    } else {
      EXPECT_TRUE(replies[i]->has_claimed()) << i;
    }
  }
  EXPECT_EQ(replica().Log().find(claims[7].key() + "\""), std::string::npos);
  Sql("ALTER TABLE idempotency_records DROP CONSTRAINT unlucky");
  EXPECT_TRUE(Send(claims[7])->has_claimed());
}

TEST_F(NeighboursTest, ManyCallersOfOneKeyAreOneOwnerAndTheRest) {
  constexpr int kCallers = 200;
  std::vector<v1::ClaimRequest> claims;
  const v1::ClaimRequest claim = ClaimFor(NewKey());
  for (int i = 0; i < kCallers; ++i) claims.push_back(ByAnother(claim));
  int granted = 0;
  for (const auto& reply :
       SendTogether<v1::ClaimRequest, v1::ClaimResponse>(claims)) {
    ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
    if (reply->has_claimed()) {
      ++granted;
    } else {
      EXPECT_TRUE(reply->has_in_progress()) << reply->ShortDebugString();
    }
  }
  EXPECT_EQ(granted, 1);
}

}  // namespace
}  // namespace idempotency
