// Replies that are lost after the work was done: between the server and
// PostgreSQL, where the server sends again, and between the client and the
// server, where the client does.

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "tests/integration/fault_calls.h"
#include "tests/integration/http2_answer.h"
#include "tests/support/replica.h"
#include "tests/support/tcp_gate.h"
#include "tests/support/temp_postgres.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kShortLease{200};
constexpr seconds kLong{20};

class LostRepliesTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const TempPostgres& postgres = *Require(TempPostgres::Shared());
    database_ = new std::string(Require(TempPostgres::SharedDatabase()));
    store_gate_ = Require(TcpGate::Make(postgres.port())).release();
    replica_ =
        Require(Replica::Start(ThroughPort(*database_, store_gate_->port())))
            .release();
    call_gate_ = Require(TcpGate::Make(replica_->port())).release();
  }

  static void TearDownTestSuite() {
    delete call_gate_;
    delete replica_;
    delete store_gate_;
    delete database_;
  }

  void SetUp() override {
    client_ =
        Client::Connect(absl::StrCat("127.0.0.1:", call_gate_->port()),
                        {.timeout = kLong, .retry = {.attempts_max = 20}});
    WarmUp();
    store_cuts_ = store_gate_->counters().cuts;
    call_cuts_ = call_gate_->counters().cuts;
  }

  // So that every statement is prepared and every connection quiet.
  void WarmUp() {
    v1::ClaimRequest claim = ClaimOf(RandomKey());
    ASSERT_EQ(Decided(client_->Claim(claim)), "Claimed");
    ASSERT_EQ(Decided(client_->Claim(claim)), "Claimed");
    ASSERT_EQ(Decided(client_->Finalize(FinalizeOf(claim, 200, ""))),
              "RESULT_RECORDED");
    ASSERT_EQ(Decided(client_->Finalize(FinalizeOf(claim, 201, ""))),
              "ALREADY_FINALIZED");
    ASSERT_EQ(Decided(client_->Lookup(LookupOf(claim))), "STATE_FINALIZED");
  }

  // The reply to the next statement with these bytes in it is lost once it is
  // committed.
  void LoseReplyToStatementWith(const std::string& bytes) {
    TcpGate::Cut cut;
    cut.request_contains = bytes;
    store_gate_->CutAfterNextRequest(cut);
  }

  // The same of a prepared statement, which is sent by its name.
  void LoseReplyToStatement(const std::string& name) {
    LoseReplyToStatementWith(std::string(1, '\0') + name +
                             std::string(1, '\0'));
  }

  // The server's answer to the next call about that key is lost.
  void LoseAnswerToCallAbout(const std::string& key) {
    TcpGate::Cut cut;
    cut.request_contains = key;
    cut.answered = EndsAStream;
    call_gate_->CutAfterNextRequest(cut);
  }

  void ExpectLostToTheServer() {
    EXPECT_TRUE(store_gate_->WaitForCuts(store_cuts_ + 1, kLong));
  }

  void ExpectLostToTheClient() {
    EXPECT_TRUE(call_gate_->WaitForCuts(call_cuts_ + 1, kLong));
  }

  std::string Query(const std::string& sql) const {
    return Require(TempPostgres::RunAt(*database_, sql));
  }

  std::string Row(const v1::ClaimRequest& claim,
                  const std::string& columns) const {
    return Query(absl::StrCat("SELECT ", columns,
                              " FROM idempotency_records AS r WHERE key = '",
                              claim.key(), "'"));
  }

  std::string Evidence(const v1::ClaimRequest& claim) const {
    return Query(
        absl::StrCat("SELECT claim_token, status_code, count FROM "
                     "idempotency_conflicts WHERE key = '",
                     claim.key(), "'"));
  }

  // An attempt with a checkpoint whose lease is over.
  v1::ClaimRequest MakeAbandoned(const std::string& policy = "") const {
    v1::ClaimRequest claim = ClaimFor(kShortLease, RandomKey(), policy);
    claim.set_checkpoint("the card was asked");
    claim.set_owner("first");
    EXPECT_EQ(Decided(Send(stub(), claim)), "Claimed");
    for (;;) {
      const auto found = Send(stub(), LookupOf(claim));
      if (Decided(found) == "STATE_IN_DOUBT" || !found.ok()) return claim;
      std::this_thread::sleep_for(milliseconds(20));
    }
  }

  static void ExpectToldOfTheFirst(const v1::Abandoned& abandoned) {
    EXPECT_EQ(abandoned.attempt(), 1);
    EXPECT_EQ(abandoned.checkpoint(), "the card was asked");
    EXPECT_EQ(abandoned.owner(), "first");
    EXPECT_EQ(abandoned.reason(), v1::Abandoned::REASON_LEASE_LAPSED);
  }

  // Straight to the server, sent once.
  Stub& stub() const { return replica_->stub(); }

  static inline std::string* database_ = nullptr;
  static inline TcpGate* store_gate_ = nullptr;
  static inline Replica* replica_ = nullptr;
  static inline TcpGate* call_gate_ = nullptr;

  std::unique_ptr<Client> client_;
  // Before the test.
  std::int64_t store_cuts_ = 0;
  std::int64_t call_cuts_ = 0;
};

// ---- Between the server and PostgreSQL.

TEST_F(LostRepliesTest, ClaimWhoseCommitWasNotHeardOfIsGrantedOnce) {
  const v1::ClaimRequest claim = ClaimOf(RandomKey());
  LoseReplyToStatement("insert_new");
  const auto answer = Send(stub(), claim);
  ExpectLostToTheServer();
  ASSERT_EQ(Decided(answer), "Claimed");
  EXPECT_EQ(answer->claimed().attempt(), 1);
  EXPECT_FALSE(answer->claimed().has_abandoned());
  // One row, whose version tells that a second write found the first.
  EXPECT_EQ(Row(claim, "fencing_token, attempt, version - fencing_token"),
            absl::StrCat(answer->claimed().fencing_token(), "\t1\t1"));
}

TEST_F(LostRepliesTest, TakeoverWhoseCommitWasNotHeardOfIsGrantedOnce) {
  const v1::ClaimRequest second = ByAnother(MakeAbandoned());
  LoseReplyToStatement("replace");
  const auto answer = Send(stub(), second);
  ExpectLostToTheServer();
  ASSERT_EQ(Decided(answer), "Claimed");
  EXPECT_EQ(answer->claimed().attempt(), 2);
  ExpectToldOfTheFirst(answer->claimed().abandoned());
  EXPECT_EQ(Row(second, "fencing_token, attempt, claim_token"),
            absl::StrCat(answer->claimed().fencing_token(), "\t2\t",
                         second.claim_token()));
}

TEST_F(LostRepliesTest, FinalizeWhoseCommitWasNotHeardOfIsRecordedOnce) {
  const v1::ClaimRequest claim = ClaimOf(RandomKey());
  ASSERT_EQ(Decided(Send(stub(), claim)), "Claimed");
  LoseReplyToStatement("finalize_owned");
  const v1::FinalizeRequest finalize = FinalizeOf(claim, 201, "done");
  EXPECT_EQ(Decided(Send(stub(), finalize)), "RESULT_RECORDED");
  ExpectLostToTheServer();
  EXPECT_EQ(Row(claim, "status_code, body, in_flight, attempt"),
            "201\t\\x646f6e65\tf\t1");
  EXPECT_EQ(Evidence(claim), "");
  EXPECT_THAT(MissingReplays(stub(), {{claim, finalize.response()}}),
              ::testing::IsEmpty());
}

TEST_F(LostRepliesTest, ServerErrorWhoseCommitWasNotHeardOfGivesUpOnce) {
  const v1::ClaimRequest claim = ClaimOf(RandomKey(), "payment");
  ASSERT_EQ(Decided(Send(stub(), claim)), "Claimed");
  LoseReplyToStatement("replace");
  EXPECT_EQ(Decided(Send(stub(), FinalizeOf(claim, 504, "no answer"))),
            "RESULT_IN_DOUBT");
  ExpectLostToTheServer();
  const auto next = Send(stub(), ByAnother(claim));
  ASSERT_EQ(Decided(next), "InDoubt");
  EXPECT_EQ(next->in_doubt().abandoned().status_code(), 504);
}

TEST_F(LostRepliesTest, ReleaseWhoseCommitWasNotHeardOfFreesTheKeyOnce) {
  const v1::ClaimRequest claim = ClaimOf(RandomKey());
  ASSERT_EQ(Decided(Send(stub(), claim)), "Claimed");
  LoseReplyToStatement("replace");
  const auto released = Send(
      stub(), ReleaseOf(claim, v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED));
  ExpectLostToTheServer();
  EXPECT_EQ(Decided(released), "released");
  EXPECT_EQ(released->state(), v1::Record::STATE_RELEASED);
  EXPECT_EQ(Row(claim, "freed_count"), "1");
  EXPECT_EQ(Decided(Send(stub(), claim)), "CLAIM_RELEASED");
  const auto next = Send(stub(), ByAnother(claim));
  ASSERT_EQ(Decided(next), "Claimed");
  EXPECT_EQ(next->claimed().attempt(), 2);
}

TEST_F(LostRepliesTest, RefusedFinalizeIsNotAnsweredBeforeItsEvidenceIsKept) {
  const v1::ClaimRequest first = MakeAbandoned();
  ASSERT_EQ(Decided(Send(stub(), ByAnother(first))), "Claimed");
  LoseReplyToStatementWith("INSERT INTO idempotency_conflicts");
  EXPECT_EQ(Decided(Send(stub(), FinalizeOf(first, 201, "late"))),
            "CLAIM_SUPERSEDED");
  ExpectLostToTheServer();
  // Both writes counted: one too many, which evidence may be.
  EXPECT_EQ(Evidence(first), absl::StrCat(first.claim_token(), "\t201\t2"));
}

// ---- Between the client and the server.

TEST_F(LostRepliesTest, ClaimWhoseAnswerWasLostIsAnsweredTheSameAgain) {
  v1::ClaimRequest claim = ClaimOf(RandomKey());
  LoseAnswerToCallAbout(claim.key());
  const auto answer = client_->Claim(claim);
  ExpectLostToTheClient();
  ASSERT_EQ(Decided(answer), "Claimed");
  EXPECT_EQ(answer->claimed().attempt(), 1);
  EXPECT_EQ(Row(claim, "fencing_token, attempt, version - fencing_token"),
            absl::StrCat(answer->claimed().fencing_token(), "\t1\t1"));
  EXPECT_EQ(Decided(Send(stub(), ByAnother(claim))), "InProgress");
}

TEST_F(LostRepliesTest, TakeoverWhoseAnswerWasLostTellsTheSameAgain) {
  const v1::ClaimRequest first = MakeAbandoned();
  v1::ClaimRequest second = ByAnother(first);
  const auto gated = v1::IdempotencyService::NewStub(
      grpc::CreateChannel(absl::StrCat("127.0.0.1:", call_gate_->port()),
                          grpc::InsecureChannelCredentials()));
  ASSERT_EQ(Decided(Send(*gated, LookupOf(first))), "STATE_IN_DOUBT");
  LoseAnswerToCallAbout(second.key());
  EXPECT_TRUE(absl::IsUnavailable(Send(*gated, second).status()));
  ExpectLostToTheClient();
  const auto found = Send(stub(), LookupOf(second));
  ASSERT_EQ(Decided(found), "STATE_IN_PROGRESS");

  const auto answer = client_->Claim(second);
  ASSERT_EQ(Decided(answer), "Claimed");
  const v1::Claimed& claimed = answer->claimed();
  EXPECT_EQ(claimed.attempt(), 2);
  EXPECT_EQ(claimed.fencing_token(), found->record().fencing_token());
  EXPECT_EQ(claimed.downstream_key(), found->record().downstream_key());
  ExpectToldOfTheFirst(claimed.abandoned());
  EXPECT_EQ(claimed.abandoned().SerializeAsString(),
            found->record().abandoned().SerializeAsString());
  EXPECT_EQ(Row(second, "attempt"), "2");
}

TEST_F(LostRepliesTest, FinalizeWhoseAnswerWasLostIsRecordedOnce) {
  v1::ClaimRequest claim = ClaimOf(RandomKey());
  ASSERT_EQ(Decided(client_->Claim(claim)), "Claimed");
  LoseAnswerToCallAbout(claim.key());
  const v1::FinalizeRequest finalize = FinalizeOf(claim, 201, "done");
  EXPECT_EQ(Decided(client_->Finalize(finalize)), "RESULT_RECORDED");
  ExpectLostToTheClient();
  EXPECT_EQ(Evidence(claim), "");
  EXPECT_THAT(MissingReplays(stub(), {{claim, finalize.response()}}),
              ::testing::IsEmpty());
}

TEST_F(LostRepliesTest, ReleaseWhoseAnswerWasLostFreesTheKeyOnce) {
  v1::ClaimRequest claim = ClaimOf(RandomKey());
  ASSERT_EQ(Decided(client_->Claim(claim)), "Claimed");
  LoseAnswerToCallAbout(claim.key());
  EXPECT_EQ(Decided(client_->Release(ReleaseOf(
                claim, v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED))),
            "released");
  ExpectLostToTheClient();
  EXPECT_EQ(Row(claim, "freed_count"), "1");
}

// ---- A third party.

TEST_F(LostRepliesTest, StaleTokenIsRefusedWithEvidenceAndChangesNothing) {
  const v1::ClaimRequest first = MakeAbandoned();
  const v1::ClaimRequest second = ByAnother(first);
  ASSERT_EQ(Decided(Send(stub(), second)), "Claimed");
  const std::string running = Row(second, "r::text");
  EXPECT_EQ(Decided(Send(stub(), FinalizeOf(first, 201, "mine"))),
            "CLAIM_SUPERSEDED");
  EXPECT_EQ(Row(second, "r::text"), running);
  EXPECT_EQ(Evidence(first), absl::StrCat(first.claim_token(), "\t201\t1"));

  // When the key is final too, and even with the response that was recorded.
  ASSERT_EQ(Decided(Send(stub(), FinalizeOf(second, 200, "done"))),
            "RESULT_RECORDED");
  const std::string final = Row(second, "r::text");
  EXPECT_EQ(Decided(Send(stub(), FinalizeOf(first, 201, "mine"))),
            "CLAIM_SUPERSEDED");
  EXPECT_EQ(Decided(Send(stub(), FinalizeOf(first, 200, "done"))),
            "CLAIM_SUPERSEDED");
  EXPECT_EQ(Row(second, "r::text"), final);
  EXPECT_EQ(Query(absl::StrCat("SELECT status_code, count FROM "
                               "idempotency_conflicts WHERE key = '",
                               first.key(), "' ORDER BY status_code")),
            "200\t1\n201\t2");
  const auto found = Send(stub(), LookupOf(second));
  ASSERT_EQ(Decided(found), "STATE_FINALIZED");
  EXPECT_EQ(found->record().conflict_count(), 2);
}

}  // namespace
}  // namespace idempotency
