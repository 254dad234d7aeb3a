// What is recorded of a gRPC answer, and what becomes of records of others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "client/grpc/recorded_call.h"
#include "client/operation.h"
#include "google/rpc/code.pb.h"

namespace idempotency {
namespace {

using grpc::StatusCode;
using testing::ElementsAre;
using testing::Pair;

std::string HeadersOf(const v1::Response& response) {
  std::string text;
  for (const v1::Header& header : response.headers()) {
    text += header.name() + "=" + header.value() + ";";
  }
  return text;
}

TEST(RecordedCall, HasTheHttpStatusThatIsWrittenBesideEachCode) {
  // As google/rpc/code.proto says, by number.
  const int expected[] = {200, 499, 500, 400, 504, 404, 409, 403, 429,
                          400, 409, 400, 501, 500, 503, 500, 401};
  ASSERT_EQ(std::size(expected), google::rpc::UNAUTHENTICATED + 1);
  for (int code = 0; code <= google::rpc::UNAUTHENTICATED; ++code) {
    EXPECT_EQ(HttpStatusOf(static_cast<StatusCode>(code)), expected[code])
        << google::rpc::Code_Name(code);
  }
}

TEST(RecordedCall, EveryCodeComesBack) {
  for (int code = 1; code <= google::rpc::UNAUTHENTICATED; ++code) {
    const grpc::Status status(static_cast<StatusCode>(code), "why", "details");
    const GrpcAnswer answer =
        ToAnswer(ToResponse({.status = status, .trailers = {{"x", "1"}}}));
    EXPECT_EQ(answer.status.error_code(), code);
    EXPECT_EQ(answer.status.error_message(), "why");
    EXPECT_EQ(answer.status.error_details(), "details");
    EXPECT_THAT(answer.trailers, ElementsAre(Pair("x", "1")));
  }
}

TEST(RecordedCall, TheMessageOfAnErrorIsNotRecorded) {
  const v1::Response response =
      ToResponse({.status = {StatusCode::ABORTED, ""}, .message = "left over"});

  EXPECT_EQ(response.body(), "");
  EXPECT_EQ(HeadersOf(response), "grpc-status=10;");
}

TEST(RecordedCall, WhatBelongsToATransferIsLeftOut) {
  const v1::Response response =
      ToResponse({.status = grpc::Status::OK,
                  .trailers = {{"grpc-retry-pushback-ms", "5"},
                               {"content-type", "application/grpc"},
                               {"idempotent-replayed", "true"},
                               {"Upper", "no name of HTTP/2"},
                               {"x-line", "a\nb"},
                               {"x-kept", "1"}},
                  .message = "m"});

  EXPECT_EQ(HeadersOf(response), "grpc-status=0;x-kept=1;");
}

TEST(RecordedCall, TrailersTooLongToKeepLeaveTheCodeKnown) {
  GrpcAnswer answer = {
      .status = {StatusCode::ALREADY_EXISTS, "why"},
      .trailers = {{"x-long", std::string(17 << 10, 'x')}, {"x-short", "1"}}};
  const std::string kept =
      "grpc-status=6;grpc-message=why;idempotent-headers-omitted=true;";
  EXPECT_EQ(HeadersOf(ToResponse(answer)), kept);

  answer.trailers.assign(64, {"x-many", "1"});
  const v1::Response response = ToResponse(answer);
  EXPECT_EQ(HeadersOf(response), kept);
  EXPECT_THAT(ToAnswer(response).trailers,
              ElementsAre(Pair("idempotent-headers-omitted", "true")));

  answer.trailers.clear();
  answer.status = {StatusCode::ALREADY_EXISTS, "why",
                   std::string(17 << 10, 'd')};
  EXPECT_EQ(HeadersOf(ToResponse(answer)), kept);
}

TEST(RecordedCall, ARecordWithoutHeadersHasTheNearestCodeAndTheMark) {
  v1::Response response;
  response.set_headers_omitted(true);
  response.set_status_code(200);
  response.set_body("message");
  EXPECT_TRUE(ToAnswer(response).status.ok());
  EXPECT_EQ(ToAnswer(response).message, "message");
  EXPECT_THAT(ToAnswer(response).trailers,
              ElementsAre(Pair("idempotent-headers-omitted", "true")));

  response.set_status_code(404);
  EXPECT_EQ(ToAnswer(response).status.error_code(), StatusCode::NOT_FOUND);
  response.set_status_code(0);
  EXPECT_EQ(ToAnswer(response).status.error_code(), StatusCode::UNKNOWN);
}

TEST(RecordedCall, AnErrorWithoutABodyNeedsNone) {
  v1::Response response =
      ToResponse({.status = {StatusCode::NOT_FOUND, "no such account"}});
  response.set_body_omitted(true);

  EXPECT_EQ(ToAnswer(response).status.error_message(), "no such account");
}

TEST(RecordedCall, ARecordOfHttpIsNoAnswerOfGrpc) {
  const GrpcAnswer answer = ToAnswer(MakeResponse(200, "{}"));

  EXPECT_EQ(answer.status.error_code(), StatusCode::FAILED_PRECONDITION);
}

// gRPC would end the process over them.
TEST(RecordedCall, HeadersThatGrpcDoesNotSendAreNotReplayed) {
  v1::Response response = ToResponse({.status = grpc::Status::OK});
  for (const char* name :
       {"Set-Cookie", "", "a b", ":path", kReplayedTrailer}) {
    v1::Header* const header = response.add_headers();
    header->set_name(name);
    header->set_value("x");
  }
  v1::Header* const header = response.add_headers();
  header->set_name("x-text");
  header->set_value("\xff");

  EXPECT_TRUE(ToAnswer(response).trailers.empty());
}

TEST(RecordedCall, AStatusThatIsNoneIsNotTakenForOne) {
  for (const char* text : {"17", "-1", "", "0x", "99999999999"}) {
    v1::Response response;
    v1::Header* const header = response.add_headers();
    header->set_name("grpc-status");
    header->set_value(text);
    EXPECT_EQ(ToAnswer(response).status.error_code(),
              StatusCode::FAILED_PRECONDITION)
        << text;
  }
}

}  // namespace
}  // namespace idempotency
