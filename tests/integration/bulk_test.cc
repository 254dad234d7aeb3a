// Streams of Bulk as their callers see them: what is answered, in which order,
// and how a stream ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tests/integration/bulk_caller.h"
#include "tests/integration/open_transaction.h"
#include "tests/integration/wire_fixture.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::SizeIs;

class BulkTest : public WireTest {
 protected:
  static std::vector<v1::ClaimRequest> NewClaims(std::size_t count) {
    std::vector<v1::ClaimRequest> claims;
    for (std::size_t i = 0; i < count; ++i)
      claims.push_back(ClaimFor(NewKey()));
    return claims;
  }

  // Commands with the ids `first`, `first` + 1 …
  template <typename Request>
  static std::vector<v1::Command> CommandsOf(
      const std::vector<Request>& requests, std::uint64_t first = 0) {
    std::vector<v1::Command> commands;
    for (const Request& request : requests) {
      commands.push_back(CommandOf(first + commands.size(), request));
    }
    return commands;
  }

  // What an error of a result is, judged as that of a call.
  static testing::AssertionResult IsRefused(const v1::Result& result,
                                            grpc::StatusCode code,
                                            const std::string& reason,
                                            const std::string& field = "") {
    return IsRefusal(StatusOf(result), PushbackIn(StatusOf(result)), code,
                     reason, field);
  }

  // As the rows of others are kept from being decided.
  static std::string LockOn(const v1::ClaimRequest& claim) {
    return "SELECT 1 FROM idempotency_records WHERE key = '" + claim.key() +
           "' FOR UPDATE";
  }
};

TEST_F(BulkTest, TheLifeOfManyKeysGoesOverOneStream) {
  const std::vector<v1::ClaimRequest> claims = NewClaims(700);
  std::vector<v1::FinalizeRequest> finalizes;
  std::vector<v1::LookupRequest> lookups;
  for (const v1::ClaimRequest& claim : claims) {
    finalizes.push_back(FinalizeOf(claim, 201, "paid " + claim.key()));
    lookups.push_back(LookupOf(claim));
  }
  BulkCaller caller(replica().stub());
  caller.Read();
  ASSERT_TRUE(caller.Send(CommandsOf(claims)));
  ASSERT_TRUE(caller.Await(700));
  ASSERT_TRUE(caller.Send(CommandsOf(finalizes, 1000)));
  ASSERT_TRUE(caller.Await(1400));
  ASSERT_TRUE(caller.Send(CommandsOf(lookups, 2000)));
  caller.HalfClose();
  EXPECT_TRUE(caller.End().ok());
  EXPECT_EQ(caller.count(), 2100u);
  for (std::size_t i = 0; i < claims.size(); ++i) {
    EXPECT_EQ(caller.AwaitResult(i).claim().claimed().attempt(), 1);
    EXPECT_EQ(caller.AwaitResult(1000 + i).finalize().result(),
              v1::FinalizeResponse::RESULT_RECORDED);
    EXPECT_EQ(caller.AwaitResult(2000 + i).lookup().record().response().body(),
              "paid " + claims[i].key());
  }
}

TEST_F(BulkTest, CommandThatCannotBeDecidedHoldsNobodyUp) {
  const v1::ClaimRequest locked = ClaimFor(NewKey());
  Granted(locked);
  BulkCaller caller(replica().stub());
  caller.Read();
  {
    const OpenTransaction lock(database(), LockOn(locked));
    ASSERT_TRUE(caller.Send({CommandOf(1, FinalizeOf(locked, 200))}));
    ASSERT_TRUE(caller.Send(CommandsOf(NewClaims(500), 10)));
    ASSERT_TRUE(caller.Await(500));
    EXPECT_THAT(caller.Of(1), SizeIs(0));

    // Its id is taken as long as it is in flight, and it goes on.
    ASSERT_TRUE(caller.Send({CommandOf(1, ClaimFor(NewKey()))}));
    ASSERT_TRUE(caller.Await(501));
    ASSERT_THAT(caller.Of(1), SizeIs(1));
    EXPECT_TRUE(IsRefused(caller.Of(1)[0], grpc::StatusCode::INVALID_ARGUMENT,
                          "INVALID_FIELD", "id"));
  }
  ASSERT_TRUE(caller.Await(502));
  ASSERT_THAT(caller.Of(1), SizeIs(2));
  EXPECT_EQ(caller.Of(1)[1].finalize().result(),
            v1::FinalizeResponse::RESULT_RECORDED);
  ASSERT_TRUE(caller.Send({CommandOf(1, ClaimFor(NewKey()))}));
  ASSERT_TRUE(caller.Await(503));
  EXPECT_TRUE(caller.Of(1)[2].claim().has_claimed());
}

TEST_F(BulkTest, AWaitingClaimHoldsNobodyUp) {
  const v1::ClaimRequest owner = ClaimFor(NewKey());
  Granted(owner);
  v1::ClaimRequest waiting = ByAnother(owner);
  waiting.mutable_wait()->set_seconds(20);
  const auto begin = steady_clock::now();
  BulkCaller caller(replica().stub());
  caller.Read();
  ASSERT_TRUE(caller.Send({CommandOf(1, waiting)}));
  ASSERT_TRUE(caller.Send(CommandsOf(NewClaims(500), 10)));
  for (std::uint64_t id = 10; id < 510; ++id) {
    ASSERT_TRUE(caller.AwaitResult(id).claim().has_claimed());
  }
  EXPECT_LT(steady_clock::now() - begin, seconds(10));
  Finalized(FinalizeOf(owner, 201, "done"));
  const v1::Result result = caller.AwaitResult(1);
  // A wait may end early; it does not end with a claim.
  EXPECT_TRUE(result.claim().has_replay() || result.claim().has_in_progress())
      << result.ShortDebugString();
}

TEST_F(BulkTest, BadCommandsAreRefusedAmongGoodOnes) {
  std::vector<v1::Command> commands = CommandsOf(NewClaims(100));
  commands[7].mutable_claim()->set_scope("no scope");
  commands[8].mutable_timeout()->set_seconds(-1);
  commands[9].clear_command();
  commands[10].mutable_claim()->set_policy("nobody's");
  BulkCaller caller(replica().stub());
  ASSERT_TRUE(caller.Send(commands));
  caller.HalfClose();
  EXPECT_TRUE(caller.End().ok());
  const auto code = grpc::StatusCode::INVALID_ARGUMENT;
  EXPECT_TRUE(IsRefused(caller.AwaitResult(7), code, "INVALID_FIELD", "scope"));
  EXPECT_TRUE(
      IsRefused(caller.AwaitResult(8), code, "INVALID_FIELD", "timeout"));
  EXPECT_TRUE(
      IsRefused(caller.AwaitResult(9), code, "INVALID_FIELD", "command"));
  EXPECT_TRUE(
      IsRefused(caller.AwaitResult(10), code, "UNKNOWN_POLICY", "policy"));
  for (std::uint64_t id = 0; id < 100; ++id) {
    ASSERT_THAT(caller.Of(id), SizeIs(1));
    EXPECT_EQ(caller.Of(id)[0].claim().has_claimed(), id < 7 || id > 10);
  }
}

TEST_F(BulkTest, AMessageHasAtMost1024Commands) {
  {
    BulkCaller caller(replica().stub());
    ASSERT_TRUE(caller.Send(CommandsOf(NewClaims(1024))));
    caller.HalfClose();
    EXPECT_TRUE(caller.End().ok());
    EXPECT_EQ(caller.count(), 1024u);
  }
  BulkCaller caller(replica().stub());
  ASSERT_TRUE(caller.Send(CommandsOf(NewClaims(3))));
  const std::vector<v1::ClaimRequest> claims = NewClaims(1025);
  ASSERT_TRUE(caller.Send(CommandsOf(claims, 10)));
  const grpc::Status& end = caller.End();
  EXPECT_TRUE(IsRefusal(end, PushbackOf(caller.context()),
                        grpc::StatusCode::INVALID_ARGUMENT, "INVALID_FIELD",
                        "commands"));
  EXPECT_EQ(caller.count(), 3u) << "those before it are answered";
  EXPECT_EQ(Granted(ByAnother(claims.front())).attempt(), 1);
}

TEST_F(BulkTest, AMessageThatIsNoneEndsTheStream) {
  BulkCaller caller(replica().stub());
  v1::ClaimRequest claim = ClaimFor(NewKey());
  claim.set_key("\xff");
  ASSERT_TRUE(caller.Send({CommandOf(1, ClaimFor(NewKey()))}));
  ASSERT_TRUE(caller.Send({CommandOf(2, claim)}));
  const grpc::Status& end = caller.End();
  EXPECT_TRUE(IsRefusal(end, PushbackOf(caller.context()),
                        grpc::StatusCode::INTERNAL, "INTERNAL"));
  EXPECT_EQ(caller.count(), 1u);
}

TEST_F(BulkTest, AMessageHasAtMost4MiB) {
  BulkCaller caller(replica().stub());
  const v1::ClaimRequest claim = ClaimFor(NewKey());
  caller.Send(
      {CommandOf(1, FinalizeOf(claim, 200, std::string(4 << 20, 'b')))});
  EXPECT_EQ(caller.End().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(BulkTest, ABrokenStreamIsRepeatedSafely) {
  const std::vector<v1::ClaimRequest> claims = NewClaims(1000);
  std::vector<v1::FinalizeRequest> finalizes;
  for (const v1::ClaimRequest& claim : claims) {
    finalizes.push_back(FinalizeOf(claim, 201, claim.key()));
  }
  // Broken while it is anybody's guess what has been decided.
  const auto break_after = [&](const std::vector<v1::Command>& commands,
                               std::size_t results) {
    BulkCaller caller(replica().stub());
    caller.Read();
    ASSERT_TRUE(caller.Send(commands));
    ASSERT_TRUE(caller.Await(results));
    caller.Cancel();
    EXPECT_EQ(caller.End().error_code(), grpc::StatusCode::CANCELLED);
  };
  for (const std::size_t results : {0u, 1u, 2u, 600u}) {
    break_after(CommandsOf(claims), results);
  }
  {
    BulkCaller caller(replica().stub());
    ASSERT_TRUE(caller.Send(CommandsOf(claims)));
    caller.HalfClose();
    ASSERT_TRUE(caller.End().ok());
    for (std::size_t i = 0; i < claims.size(); ++i) {
      EXPECT_EQ(caller.AwaitResult(i).claim().claimed().attempt(), 1);
      EXPECT_FALSE(caller.AwaitResult(i).claim().claimed().has_abandoned());
    }
  }
  for (const std::size_t results : {0u, 1u, 600u}) {
    break_after(CommandsOf(finalizes), results);
  }
  BulkCaller caller(replica().stub());
  ASSERT_TRUE(caller.Send(CommandsOf(finalizes)));
  caller.HalfClose();
  ASSERT_TRUE(caller.End().ok());
  for (std::size_t i = 0; i < claims.size(); ++i) {
    EXPECT_EQ(caller.AwaitResult(i).finalize().result(),
              v1::FinalizeResponse::RESULT_RECORDED);
  }
  EXPECT_EQ(Sql("SELECT count(*) FROM idempotency_conflicts"), "0");
}

TEST_F(BulkTest, TimeoutEndsACommandAndNotItsStream) {
  const v1::ClaimRequest locked = ClaimFor(NewKey());
  Granted(locked);
  BulkCaller caller(replica().stub());
  caller.Read();
  const OpenTransaction lock(database(), LockOn(locked));
  v1::Command brief = CommandOf(1, FinalizeOf(locked, 200));
  *brief.mutable_timeout() = ToProto(milliseconds(300));
  const auto begin = steady_clock::now();
  ASSERT_TRUE(caller.Send({brief}));
  EXPECT_TRUE(caller.AwaitResult(1).has_error());
  EXPECT_LT(steady_clock::now() - begin, seconds(5));
  ASSERT_TRUE(caller.Send({CommandOf(2, ClaimFor(NewKey()))}));
  EXPECT_TRUE(caller.AwaitResult(2).claim().has_claimed());
}

}  // namespace
}  // namespace idempotency
