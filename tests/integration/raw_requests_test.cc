// Messages as bytes, such as no generated client sends.
#include <gmock/gmock.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <vector>

#include "client/environment.h"
#include "tests/integration/wire_fixture.h"

namespace idempotency {
namespace {

std::string Varint(std::uint64_t number) {
  std::string bytes;
  for (; number >= 0x80; number >>= 7) {
    bytes += static_cast<char>(number | 0x80);
  }
  return bytes + static_cast<char>(number);
}

constexpr int kVarint = 0;
constexpr int kFixed64 = 1;
constexpr int kBytes = 2;
constexpr int kGroup = 3;
constexpr int kGroupEnd = 4;
constexpr int kFixed32 = 5;

std::string Tag(int field, int wire_type) {
  return Varint(static_cast<std::uint64_t>(field) << 3 |
                static_cast<std::uint64_t>(wire_type));
}

std::string Field(int field, const std::string& bytes) {
  return Tag(field, kBytes) + Varint(bytes.size()) + bytes;
}

std::string Number(int field, std::uint64_t number) {
  return Tag(field, kVarint) + Varint(number);
}

class RawRequestsTest : public WireTest {
 protected:
  template <typename Message>
  static Reply<Message> SendRaw(const std::string& method,
                                const std::string& bytes) {
    grpc::GenericStub stub(replica().channel());
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer response;
    std::promise<grpc::Status> done;
    stub.UnaryCall(&context, "/idempotency.v1.IdempotencyService/" + method, {},
                   &request, &response, [&done](grpc::Status status) {
                     done.set_value(std::move(status));
                   });
    Reply<Message> reply;
    reply.status = done.get_future().get();
    grpc::Slice answer;
    if (reply.status.ok()) {
      EXPECT_TRUE(response.DumpToSingleSlice(&answer).ok());
      EXPECT_TRUE(reply.message.ParseFromArray(
          answer.begin(), static_cast<int>(answer.size())));
    }
    return reply;
  }
  static ClaimReply SendRawClaim(const std::string& bytes) {
    return SendRaw<v1::ClaimResponse>("Claim", bytes);
  }
  // A whole claim, field by field.
  static std::string RawClaim(const std::string& key) {
    return Field(1, kScope) + Field(2, key) + Field(3, std::string(32, 'h')) +
           Field(4, NewClaimToken());
  }
  static void ExpectUnparsable(const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL)
        << status.error_message();
  }
  static std::string RecordCount() {
    return Sql("SELECT count(*) FROM idempotency_records");
  }
};

TEST_F(RawRequestsTest, HandWrittenBytesAreUnderstood) {
  const ClaimReply reply = SendRawClaim(RawClaim(NewKey()));
  EXPECT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_EQ(reply->claimed().attempt(), 1);
}

TEST_F(RawRequestsTest, StringsThatAreNotUtf8AreRefusedByTheParser) {
  const std::string before = RecordCount();
  const std::vector<std::string> bad = {
      "\xff",                      // no UTF-8 byte at all
      "\xc3",                      // cut off
      "\xa9",                      // begins in the middle
      "k\xc0\xaf",                 // a slash, too long
      "\xc0\x80",                  // U+0000, too long
      "\xed\xa0\x80",              // half a surrogate pair
      "\xed\xa0\xbd\xed\xb8\x80",  // a pair, each encoded by itself
      "\xf4\x90\x80\x80",          // beyond U+10FFFF
      "\xf8\x88\x80\x80\x80",      // five bytes
  };
  for (const std::string& text : bad) {
    // scope, key, claim_token, policy and owner.
    for (const int field : {1, 2, 4, 5, 12}) {
      ExpectUnparsable(
          SendRawClaim(RawClaim(NewKey()) + Field(field, text)).status);
    }
    const std::string id = Field(1, kScope) + Field(2, text);
    ExpectUnparsable(SendRaw<v1::LookupResponse>("Lookup", id).status);
    ExpectUnparsable(SendRaw<v1::ReleaseResponse>("Release", id).status);
    ExpectUnparsable(SendRaw<v1::FinalizeResponse>("Finalize", id).status);
    const std::string header = Field(2, Field(1, text));
    ExpectUnparsable(
        SendRaw<v1::FinalizeResponse>("Finalize", Field(4, header)).status);
  }
  EXPECT_EQ(RecordCount(), before);
}

TEST_F(RawRequestsTest, BytesNeedNotBeUtf8) {
  v1::ClaimRequest claim = ClaimFor(NewKey());
  claim.set_request_hash(std::string(32, '\xff'));
  claim.set_checkpoint("\xc0\x80");
  Granted(claim);
  v1::FinalizeRequest request = FinalizeOf(claim, 200, "\xff\xfe");
  v1::Header& header = *request.mutable_response()->add_headers();
  header.set_name("binary");
  header.set_value("\xed\xa0\x80");
  Finalized(request);
  EXPECT_EQ(Replayed(claim).response().SerializeAsString(),
            request.response().SerializeAsString());
  EXPECT_EQ(RecordOf(claim).checkpoint(), claim.checkpoint());
}

TEST_F(RawRequestsTest, ANulIsRefusedAndTruncatesNothing) {
  const std::string key = NewKey();
  const std::string with_nul = key + std::string("\0end", 4);
  EXPECT_TRUE(IsRefusal(SendRawClaim(RawClaim(with_nul)).status, std::nullopt,
                        grpc::StatusCode::INVALID_ARGUMENT, "INVALID_FIELD",
                        "key"));
  EXPECT_TRUE(IsRefusedAs(Send(LookupOf(ClaimFor(key))), "RECORD_NOT_FOUND"));
}

TEST_F(RawRequestsTest, UnknownFieldsAreOfNoConsequence) {
  const std::string unknown = Number(99, 7) + Field(100, "text \xff") +
                              Number(536'870'911, 1) + Tag(101, kFixed64) +
                              std::string(8, 'x') + Tag(102, kFixed32) +
                              std::string(4, 'x') + Tag(103, kGroup) +
                              Number(1, 1) + Tag(103, kGroupEnd);
  const std::string key = NewKey();
  const ClaimReply reply = SendRawClaim(unknown + RawClaim(key) + unknown);
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_EQ(reply->claimed().attempt(), 1);
  EXPECT_EQ(RecordOf(ClaimFor(key)).key(), key);
}

TEST_F(RawRequestsTest, TheLastOfARepeatedFieldCounts) {
  const std::string key = NewKey();
  ASSERT_TRUE(SendRawClaim(RawClaim(NewKey()) + Field(2, key)).status.ok());
  EXPECT_EQ(RecordOf(ClaimFor(key)).attempt(), 1);
}

TEST_F(RawRequestsTest, AFieldOfAnotherTypeIsNotThere) {
  const std::string claim = Field(1, kScope) + Number(2, 7) +
                            Field(3, std::string(32, 'h')) +
                            Field(4, NewClaimToken());
  EXPECT_TRUE(IsRefusal(SendRawClaim(claim).status, std::nullopt,
                        grpc::StatusCode::INVALID_ARGUMENT, "INVALID_FIELD",
                        "key"));
}

TEST_F(RawRequestsTest, TruncatedMessagesAreRefusedWhereverTheyEnd) {
  const std::string before = RecordCount();
  const std::string claim = RawClaim("truncated");
  for (std::size_t size = 0; size < claim.size(); ++size) {
    const grpc::Status status = SendRawClaim(claim.substr(0, size)).status;
    EXPECT_TRUE(status.error_code() == grpc::StatusCode::INTERNAL ||
                status.error_code() == grpc::StatusCode::INVALID_ARGUMENT)
        << size << ": " << status.error_code() << " " << status.error_message();
  }
  EXPECT_EQ(RecordCount(), before);
}

TEST_F(RawRequestsTest, NoiseIsRefused) {
  const std::string claim = RawClaim(NewKey());
  for (const std::string& noise :
       {std::string(1, '\0'), std::string("\x0f"), std::string(11, '\xff'),
        Tag(2, kBytes) + Varint(1'000'000) + "short",
        Tag(2, kBytes) + Varint(0xffff'ffff'ffff'ffff), Tag(50, kGroupEnd),
        Tag(50, kGroup), Tag(99, kVarint) + std::string(10, '\xff')}) {
    ExpectUnparsable(SendRawClaim(claim + noise).status);
  }
}

TEST_F(RawRequestsTest, NestingHasAnEnd) {
  std::string deep;
  for (int i = 0; i < 10'000; ++i) deep += Tag(50, kGroup);
  for (int i = 0; i < 10'000; ++i) deep += Tag(50, kGroupEnd);
  ExpectUnparsable(SendRawClaim(RawClaim(NewKey()) + deep).status);
}

TEST_F(RawRequestsTest, AnUnknownDispositionIsRefused) {
  const std::string request = Field(1, kScope) + Field(2, NewKey()) +
                              Field(3, NewClaimToken()) + Number(4, 99);
  const auto reply = SendRaw<v1::ReleaseResponse>("Release", request);
  EXPECT_TRUE(IsRefusal(reply.status, std::nullopt,
                        grpc::StatusCode::INVALID_ARGUMENT, "INVALID_FIELD",
                        "disposition"));
}

TEST_F(RawRequestsTest, AMessageOver4MiBIsRefused) {
  const std::string padding = Field(99, std::string(4 << 20, 'x'));
  EXPECT_EQ(SendRawClaim(RawClaim(NewKey()) + padding).status.error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(RawRequestsTest, AMethodThatDoesNotExistIsUnimplemented) {
  EXPECT_EQ(SendRaw<v1::ClaimResponse>("Steal", "").status.error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

}  // namespace
}  // namespace idempotency
