// What Finalize, Lookup and Release may ask: every limit from both sides, and
// what is kept of a response that is too long.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "server/core/digest.h"
#include "server/core/errors.h"
#include "server/core/header_codec.h"
#include "server/rpc/validation.h"

namespace idempotency {
namespace {

using ::testing::IsEmpty;

constexpr char kToken[] = "0f8fad5b-d9cb-469f-a165-70867728950e";
constexpr std::size_t kBodyMax = 100;

v1::FinalizeRequest GoodFinalize() {
  v1::FinalizeRequest request;
  request.set_scope("payments");
  request.set_key("k");
  request.set_claim_token(kToken);
  request.mutable_response()->set_status_code(201);
  request.mutable_response()->set_body("paid");
  return request;
}

v1::ReleaseRequest GoodRelease() {
  v1::ReleaseRequest request;
  request.set_scope("payments");
  request.set_key("k");
  request.set_claim_token(kToken);
  request.set_disposition(v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED);
  return request;
}

// The field that is refused, or "" when nothing is.
template <typename Command>
std::string RefusedField(const absl::StatusOr<Command>& command) {
  if (command.ok()) return "";
  EXPECT_EQ(ReasonOf(command.status()), Reason::kInvalidField);
  EXPECT_EQ(command.status().code(), absl::StatusCode::kInvalidArgument);
  return FieldOf(command.status());
}

TEST(ValidateFinalize, RefusesWhatEveryCallRefuses) {
  const auto refused = [](const std::function<void(v1::FinalizeRequest&)>& f) {
    v1::FinalizeRequest request = GoodFinalize();
    f(request);
    return RefusedField(ValidateFinalize(request, kBodyMax));
  };
  EXPECT_EQ(refused([](auto&) {}), "");
  EXPECT_EQ(refused([](auto& r) { r.set_scope("/"); }), "scope");
  EXPECT_EQ(refused([](auto& r) { r.set_key(""); }), "key");
  EXPECT_EQ(refused([](auto& r) { r.set_claim_token("x"); }), "claim_token");
  EXPECT_EQ(refused([](auto& r) { r.clear_response(); }), "response");
}

TEST(ValidateFinalize, TakesStatusCodes0To999) {
  const auto refused = [](std::int32_t code) {
    v1::FinalizeRequest request = GoodFinalize();
    request.mutable_response()->set_status_code(code);
    return RefusedField(ValidateFinalize(request, kBodyMax));
  };
  EXPECT_EQ(refused(-1), "response.status_code");
  EXPECT_EQ(refused(0), "");
  EXPECT_EQ(refused(999), "");
  EXPECT_EQ(refused(1000), "response.status_code");
}

TEST(ValidateFinalize, RefusesOmittedPartsThatAreThere) {
  v1::FinalizeRequest request = GoodFinalize();
  request.mutable_response()->set_body_omitted(true);
  EXPECT_EQ(RefusedField(ValidateFinalize(request, kBodyMax)),
            "response.body_omitted");
  request.mutable_response()->clear_body();
  EXPECT_EQ(RefusedField(ValidateFinalize(request, kBodyMax)), "");
  request.mutable_response()->set_headers_omitted(true);
  EXPECT_EQ(RefusedField(ValidateFinalize(request, kBodyMax)), "");
  request.mutable_response()->add_headers();
  EXPECT_EQ(RefusedField(ValidateFinalize(request, kBodyMax)),
            "response.headers_omitted");
}

Response Validated(const v1::FinalizeRequest& request) {
  const absl::StatusOr<FinalizeCommand> command =
      ValidateFinalize(request, kBodyMax);
  EXPECT_TRUE(command.ok()) << command.status();
  return command.ok() ? command->response : Response{};
}

TEST(ValidateFinalize, KeepsOrderDuplicatesEmptyAndBinaryHeaders) {
  v1::FinalizeRequest request = GoodFinalize();
  const std::vector<HeaderView> sent = {
      {"Set-Cookie", "a=1"},
      {"Set-Cookie", "b=2"},
      {"x-empty", ""},
      {"", "nameless"},
      {"x-bin", std::string_view("\0\xff\n", 3)},
  };
  for (const HeaderView& header : sent) {
    v1::Header& added = *request.mutable_response()->add_headers();
    added.set_name(std::string(header.name));
    added.set_value(std::string(header.value));
  }
  EXPECT_EQ(DecodeHeaders(Validated(request).headers), sent);
}

TEST(ValidateFinalize, LeavesOutABodyOverItsLimit) {
  v1::FinalizeRequest request = GoodFinalize();
  request.mutable_response()->set_body(std::string(kBodyMax, 'b'));
  EXPECT_EQ(Validated(request).body.size(), kBodyMax);
  EXPECT_FALSE(Validated(request).body_omitted);
  request.mutable_response()->set_body(std::string(kBodyMax + 1, 'b'));
  EXPECT_THAT(Validated(request).body, IsEmpty());
  EXPECT_TRUE(Validated(request).body_omitted);
  EXPECT_FALSE(Validated(request).headers_omitted);
  EXPECT_EQ(Validated(request).status_code, 201);
}

TEST(ValidateFinalize, LeavesOutMoreThan64Headers) {
  v1::FinalizeRequest request = GoodFinalize();
  for (int i = 0; i < 64; ++i) request.mutable_response()->add_headers();
  EXPECT_FALSE(Validated(request).headers_omitted);
  EXPECT_EQ(DecodeHeaders(Validated(request).headers)->size(), 64U);
  request.mutable_response()->add_headers();
  EXPECT_TRUE(Validated(request).headers_omitted);
  EXPECT_THAT(Validated(request).headers, IsEmpty());
  EXPECT_EQ(Validated(request).body, "paid");
  EXPECT_FALSE(Validated(request).body_omitted);
}

TEST(ValidateFinalize, LeavesOutHeadersOver16KiBOfNamesAndValues) {
  v1::FinalizeRequest request = GoodFinalize();
  v1::Header& header = *request.mutable_response()->add_headers();
  header.set_name("name");
  header.set_value(std::string(16 * 1024 - 4, 'v'));
  EXPECT_FALSE(Validated(request).headers_omitted);
  header.set_name("names");
  EXPECT_TRUE(Validated(request).headers_omitted);
  EXPECT_THAT(Validated(request).headers, IsEmpty());
}

TEST(ValidateFinalize, DigestsTheResponseAsItWasSent) {
  v1::FinalizeRequest request = GoodFinalize();
  const auto digest = [&] {
    return ValidateFinalize(request, kBodyMax)->response_digest;
  };
  EXPECT_EQ(digest(), ResponseDigest({.status_code = 201, .body = "paid"}));
  request.mutable_response()->set_body(std::string(kBodyMax + 1, 'x'));
  const std::string long_x = digest();
  request.mutable_response()->set_body(std::string(kBodyMax + 1, 'y'));
  EXPECT_NE(digest(), long_x) << "both are kept without their body";
  request.mutable_response()->clear_body();
  request.mutable_response()->set_body_omitted(true);
  EXPECT_NE(digest(), long_x);
  for (int i = 0; i < 65; ++i) request.mutable_response()->add_headers();
  const std::string many = digest();
  request.mutable_response()->mutable_headers(64)->set_value("other");
  EXPECT_NE(digest(), many) << "both are kept without their headers";
}

TEST(ValidateLookup, ChecksScopeAndKey) {
  v1::LookupRequest request;
  request.set_scope("payments");
  request.set_key("k");
  EXPECT_EQ(ValidateLookup(request)->id,
            (RecordId{.scope = "payments", .key = "k"}));
  request.set_key("\n");
  EXPECT_EQ(RefusedField(ValidateLookup(request)), "key");
  request.set_scope("");
  EXPECT_EQ(RefusedField(ValidateLookup(request)), "scope");
}

TEST(ValidateRelease, WantsToKnowWhatHappened) {
  const auto disposition = [](v1::ReleaseRequest::Disposition asked) {
    v1::ReleaseRequest request = GoodRelease();
    request.set_disposition(asked);
    return ValidateRelease(request);
  };
  EXPECT_EQ(
      disposition(v1::ReleaseRequest::DISPOSITION_NOT_EXECUTED)->disposition,
      Disposition::kNotExecuted);
  EXPECT_EQ(
      disposition(v1::ReleaseRequest::DISPOSITION_OUTCOME_UNKNOWN)->disposition,
      Disposition::kOutcomeUnknown);
  EXPECT_EQ(
      disposition(v1::ReleaseRequest::DISPOSITION_NEVER_EXECUTED)->disposition,
      Disposition::kNeverExecuted);
  EXPECT_EQ(
      RefusedField(disposition(v1::ReleaseRequest::DISPOSITION_UNSPECIFIED)),
      "disposition");
  EXPECT_EQ(RefusedField(
                disposition(static_cast<v1::ReleaseRequest::Disposition>(4))),
            "disposition");
}

TEST(ValidateRelease, RefusesWhatEveryCallRefuses) {
  v1::ReleaseRequest request = GoodRelease();
  EXPECT_EQ(FormatUuid(ValidateRelease(request)->claim_token), kToken);
  request.set_claim_token("x");
  EXPECT_EQ(RefusedField(ValidateRelease(request)), "claim_token");
  request.set_key("");
  EXPECT_EQ(RefusedField(ValidateRelease(request)), "key");
  request.set_scope("a//b");
  EXPECT_EQ(RefusedField(ValidateRelease(request)), "scope");
}

}  // namespace
}  // namespace idempotency
