// What is kept of a long response, and that work which was done is never free
// again because its answer was long.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/integration/wire_fixture.h"

namespace idempotency {
namespace {

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;
constexpr std::size_t kMessageBytesMax = 4 * kMiB;

class ResponseLimitsTest : public WireTest {
 protected:
  static v1::ClaimRequest Running() {
    const v1::ClaimRequest claim = ClaimFor(NewKey());
    Granted(claim);
    return claim;
  }
  // `count` headers of `bytes` bytes altogether, names and values.
  static void AddHeaders(v1::FinalizeRequest& request, std::size_t count,
                         std::size_t bytes) {
    for (std::size_t i = 0; i < count; ++i) {
      v1::Header& header = *request.mutable_response()->add_headers();
      header.set_name("name");
      bytes -= header.name().size();
    }
    std::size_t left = count;
    for (v1::Header& header : *request.mutable_response()->mutable_headers()) {
      header.set_value(std::string(bytes / left, 'v'));
      bytes -= bytes / left--;
    }
  }
  // Records the response, and expects `kept` of it for ever.
  static void ExpectKept(const v1::FinalizeRequest& request,
                         const v1::ClaimRequest& claim,
                         const v1::Response& kept) {
    const bool whole = !kept.body_omitted() && !kept.headers_omitted();
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(Finalized(request).result(),
                whole ? v1::FinalizeResponse::RESULT_RECORDED
                      : v1::FinalizeResponse::RESULT_RECORDED_WITHOUT_BODY);
    }
    EXPECT_TRUE(Replayed(claim).response().SerializeAsString() ==
                kept.SerializeAsString());
    EXPECT_TRUE(Replayed(ByAnother(claim)).response().SerializeAsString() ==
                kept.SerializeAsString());
    EXPECT_TRUE(RecordOf(claim).response().SerializeAsString() ==
                kept.SerializeAsString());
    EXPECT_TRUE(IsRefusedAs(
        Send(ReleaseOf(claim, v1::ReleaseRequest::DISPOSITION_NEVER_EXECUTED)),
        "ALREADY_FINALIZED"));
  }
  static v1::Response WithoutBody(v1::Response response) {
    response.clear_body();
    response.set_body_omitted(true);
    return response;
  }
  static v1::Response WithoutHeaders(v1::Response response) {
    response.clear_headers();
    response.set_headers_omitted(true);
    return response;
  }
};

TEST_F(ResponseLimitsTest, ABodyOf1MiBIsKept) {
  const v1::ClaimRequest claim = Running();
  const v1::FinalizeRequest request =
      FinalizeOf(claim, 200, std::string(kMiB, '\xff'));
  ExpectKept(request, claim, request.response());
}

TEST_F(ResponseLimitsTest, ABodyOneByteOverTheLimitIsFinalWithoutIt) {
  const v1::ClaimRequest claim = Running();
  v1::FinalizeRequest request =
      FinalizeOf(claim, 201, std::string(kMiB + 1, 'b'));
  AddHeaders(request, 2, 100);
  ExpectKept(request, claim, WithoutBody(request.response()));
}

TEST_F(ResponseLimitsTest, BodiesThatWereLeftOutAreStillCompared) {
  const v1::ClaimRequest claim = Running();
  v1::FinalizeRequest request =
      FinalizeOf(claim, 200, std::string(kMiB + 1, 'b'));
  Finalized(request);
  request.mutable_response()->mutable_body()->back() = 'c';
  EXPECT_TRUE(IsRefusedAs(Send(request), "ALREADY_FINALIZED"));
  *request.mutable_response() = WithoutBody(request.response());
  EXPECT_TRUE(IsRefusedAs(Send(request), "ALREADY_FINALIZED"));
  EXPECT_EQ(RecordOf(claim).conflict_count(), 2);
}

TEST_F(ResponseLimitsTest, AsManyHeadersAsAllowedAreKept) {
  const v1::ClaimRequest claim = Running();
  v1::FinalizeRequest request = FinalizeOf(claim, 200, "body");
  AddHeaders(request, 64, 16 * kKiB);
  ExpectKept(request, claim, request.response());
}

TEST_F(ResponseLimitsTest, A65thHeaderLeavesThemOut) {
  const v1::ClaimRequest claim = Running();
  v1::FinalizeRequest request = FinalizeOf(claim, 200, "body");
  AddHeaders(request, 65, 1000);
  ExpectKept(request, claim, WithoutHeaders(request.response()));
}

TEST_F(ResponseLimitsTest, AByteOver16KiBOfHeadersLeavesThemOut) {
  for (const std::size_t count : {1, 64}) {
    const v1::ClaimRequest claim = Running();
    v1::FinalizeRequest request = FinalizeOf(claim, 200, "body");
    AddHeaders(request, count, 16 * kKiB + 1);
    ExpectKept(request, claim, WithoutHeaders(request.response()));
  }
}

TEST_F(ResponseLimitsTest, BothMayBeTooLong) {
  const v1::ClaimRequest claim = Running();
  v1::FinalizeRequest request =
      FinalizeOf(claim, 200, std::string(2 * kMiB, 'b'));
  AddHeaders(request, 100, 100 * kKiB);
  ExpectKept(request, claim, WithoutHeaders(WithoutBody(request.response())));
}

TEST_F(ResponseLimitsTest, AMessageHasAtMost4MiB) {
  const v1::ClaimRequest claim = Running();
  v1::FinalizeRequest request = FinalizeOf(claim, 200);
  std::string& body = *request.mutable_response()->mutable_body();
  body.resize(kMessageBytesMax);
  body.resize(body.size() - (request.ByteSizeLong() - kMessageBytesMax));
  ASSERT_EQ(request.ByteSizeLong(), kMessageBytesMax);

  body += 'b';
  const FinalizeReply over = Send(request);
  EXPECT_EQ(over.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(RecordOf(claim).state(), v1::Record::STATE_IN_PROGRESS);

  body.pop_back();
  ExpectKept(request, claim, WithoutBody(request.response()));
}

TEST_F(ResponseLimitsTest, TheClientLeavesOutWhatNoMessageCanHold) {
  const v1::ClaimRequest claim = Running();
  const v1::FinalizeRequest request =
      FinalizeOf(claim, 200, std::string(5 * kMiB, 'b'));
  const auto finalized = replica().client().Finalize(request);
  ASSERT_TRUE(finalized.ok()) << finalized.status();
  EXPECT_EQ(finalized->result(),
            v1::FinalizeResponse::RESULT_RECORDED_WITHOUT_BODY);
  EXPECT_TRUE(Replayed(ByAnother(claim)).response().body_omitted());
}

TEST_F(ResponseLimitsTest, ABodyOf3MiBIsKeptWhereTheServerIsToldSo) {
  Replica::Options options;
  options.database = database();
  options.flags = {"--body_bytes_max=3145728"};
  const auto generous = Replica::Start(std::move(options));
  ASSERT_TRUE(generous.ok()) << generous.status();

  const v1::ClaimRequest claim = Running();
  v1::FinalizeRequest request =
      FinalizeOf(claim, 200, std::string(3 * kMiB, '\0'));
  AddHeaders(request, 64, 16 * kKiB);
  EXPECT_EQ(SendTo(**generous, request)->result(),
            v1::FinalizeResponse::RESULT_RECORDED);
  EXPECT_TRUE(Replayed(ByAnother(claim)).response().SerializeAsString() ==
              request.response().SerializeAsString());

  const v1::ClaimRequest other = Running();
  request = FinalizeOf(other, 200, std::string(3 * kMiB + 1, 'b'));
  EXPECT_EQ(SendTo(**generous, request)->result(),
            v1::FinalizeResponse::RESULT_RECORDED_WITHOUT_BODY);
  EXPECT_TRUE(Replayed(ByAnother(other)).response().body_omitted());
}

}  // namespace
}  // namespace idempotency
