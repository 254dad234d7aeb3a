// What a caller is told of an error, and what it is never told.
#include "server/rpc/status.h"

#include <gmock/gmock.h>
#include <google/protobuf/any.pb.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/core/errors.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kMiddle = 0.5;  // no jitter

google::rpc::Status DetailsOf(const grpc::Status& status) {
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  return details;
}

// The one detail of its kind.
template <typename Detail>
std::optional<Detail> DetailOf(const grpc::Status& status) {
  std::optional<Detail> found;
  const google::rpc::Status details = DetailsOf(status);
  for (const google::protobuf::Any& any : details.details()) {
    Detail detail;
    if (!any.UnpackTo(&detail)) continue;
    EXPECT_FALSE(found.has_value()) << "twice: " << any.type_url();
    found = detail;
  }
  return found;
}

TEST(ToErrorReply, GivesEveryReasonItsCodeNameAndDomain) {
  for (int i = 0; i <= static_cast<int>(Reason::kInternal); ++i) {
    const auto reason = static_cast<Reason>(i);
    const ErrorReply reply =
        ToErrorReply(MakeError(reason, "what to do"), kMiddle);
    EXPECT_EQ(static_cast<int>(reply.status().error_code()),
              static_cast<int>(CodeOf(reason)));
    EXPECT_EQ(reply.status().error_message(), "what to do");
    const auto info = DetailOf<google::rpc::ErrorInfo>(reply.status());
    ASSERT_TRUE(info.has_value());
    EXPECT_EQ(info->reason(), std::string(ReasonName(reason)));
    EXPECT_EQ(info->domain(), "idempotency.v1");
  }
}

TEST(ToErrorReply, SaysTheSameInTheDetailsAsInTheStatus) {
  const ErrorReply reply =
      ToErrorReply(MakeError(Reason::kClaimSuperseded, "too late"), kMiddle);
  const google::rpc::Status details = DetailsOf(reply.status());
  EXPECT_EQ(details.code(), reply.status().error_code());
  EXPECT_EQ(details.message(), "too late");
  EXPECT_EQ(details.details_size(), 1);
}

TEST(ToErrorReply, NamesTheBadField) {
  const ErrorReply reply = ToErrorReply(
      InvalidField("response.status_code", "want 0 to 999"), kMiddle);
  EXPECT_EQ(reply.status().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(reply.status().error_message(),
            "response.status_code: want 0 to 999");
  const auto bad = DetailOf<google::rpc::BadRequest>(reply.status());
  ASSERT_TRUE(bad.has_value());
  ASSERT_EQ(bad->field_violations_size(), 1);
  EXPECT_EQ(bad->field_violations(0).field(), "response.status_code");
  EXPECT_EQ(bad->field_violations(0).description(), "want 0 to 999");
}

TEST(ToErrorReply, NamesNoFieldWhereNoneIsToBlame) {
  const ErrorReply reply =
      ToErrorReply(MakeError(Reason::kClaimReleased, "x"), kMiddle);
  EXPECT_FALSE(DetailOf<google::rpc::BadRequest>(reply.status()).has_value());
}

TEST(ToErrorReply, TellsOnlyUnavailableCallersWhenToComeBack) {
  for (int i = 0; i <= static_cast<int>(Reason::kInternal); ++i) {
    const auto reason = static_cast<Reason>(i);
    const ErrorReply reply = ToErrorReply(MakeError(reason, "x"), kMiddle);
    const bool unavailable = CodeOf(reason) == absl::StatusCode::kUnavailable;
    EXPECT_EQ(reply.pushback.has_value(), unavailable) << ReasonName(reason);
    EXPECT_EQ(DetailOf<google::rpc::RetryInfo>(reply.status()).has_value(),
              unavailable)
        << ReasonName(reason);
  }
}

TEST(ToErrorReply, SaysTheSameTimeInTrailerAndDetails) {
  for (const double random : {0.0, 0.3, 0.999}) {
    const ErrorReply reply =
        ToErrorReply(MakeError(Reason::kOverloaded, "x"), random);
    const auto info = DetailOf<google::rpc::RetryInfo>(reply.status());
    ASSERT_TRUE(info.has_value());
    EXPECT_EQ(std::chrono::seconds(info->retry_delay().seconds()) +
                  std::chrono::nanoseconds(info->retry_delay().nanos()),
              *reply.pushback);
  }
}

TEST(ToErrorReply, SpreadsTheCallersThatItSendsAway) {
  const auto pushback = [](Reason reason, double random) {
    return *ToErrorReply(MakeError(reason, "x"), random).pushback;
  };
  EXPECT_EQ(pushback(Reason::kOverloaded, 0.0), milliseconds(100));
  EXPECT_EQ(pushback(Reason::kOverloaded, kMiddle), milliseconds(200));
  EXPECT_LT(pushback(Reason::kOverloaded, 0.999), milliseconds(300));
  EXPECT_GT(pushback(Reason::kOverloaded, 0.999), milliseconds(290));
}

TEST(ToErrorReply, SendsCallersAwayForAsLongAsTheErrorSays) {
  const auto pushback = [](int said) {
    return ToErrorReply(WithRetryDelay(MakeError(Reason::kOverloaded, "x"),
                                       milliseconds(said)),
                        kMiddle)
        .pushback;
  };
  EXPECT_EQ(pushback(1500), milliseconds(1500));
  EXPECT_EQ(pushback(5), milliseconds(200));
}

TEST(ToErrorReply, SendsCallersOfADrainingReplicaElsewhereSoon) {
  const ErrorReply reply =
      ToErrorReply(MakeError(Reason::kDraining, "x"), kMiddle);
  EXPECT_EQ(reply.pushback, milliseconds(20));
  EXPECT_GT(*ToErrorReply(MakeError(Reason::kDraining, "x"), 0).pushback,
            milliseconds(0));
}

TEST(ToErrorReply, NeverShowsAMessageThatNobodyWroteForCallers) {
  struct Row {
    absl::Status error;
    grpc::StatusCode code;
    std::string reason;
  };
  const std::vector<Row> rows = {
      {absl::InternalError("SECRET"), grpc::StatusCode::INTERNAL, "INTERNAL"},
      {absl::InvalidArgumentError("SECRET"), grpc::StatusCode::INTERNAL,
       "INTERNAL"},
      {absl::UnknownError("SECRET"), grpc::StatusCode::INTERNAL, "INTERNAL"},
      {absl::UnavailableError("SECRET"), grpc::StatusCode::UNAVAILABLE,
       "STORE_UNAVAILABLE"},
      {absl::DeadlineExceededError("SECRET"),
       grpc::StatusCode::DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED"},
  };
  for (const Row& row : rows) {
    const ErrorReply reply = ToErrorReply(row.error, kMiddle);
    EXPECT_EQ(reply.status().error_code(), row.code);
    EXPECT_NE(reply.status().error_message(), "");
    EXPECT_THAT(reply.status().error_message(), Not(HasSubstr("SECRET")));
    EXPECT_THAT(reply.status().error_details(), Not(HasSubstr("SECRET")));
    EXPECT_EQ(DetailOf<google::rpc::ErrorInfo>(reply.status())->reason(),
              row.reason);
  }
}

TEST(ToErrorReply, GivesACallerThatWentAwayABareCancelled) {
  const ErrorReply reply =
      ToErrorReply(absl::CancelledError("SECRET"), kMiddle);
  EXPECT_EQ(reply.status().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(reply.status().error_message(), "");
  EXPECT_FALSE(reply.pushback.has_value());
}

TEST(IsFault, IsWhatIsBrokenAndNotWhatIsRefused) {
  EXPECT_TRUE(IsFault(absl::InternalError("x")));
  EXPECT_TRUE(IsFault(absl::UnknownError("x")));
  EXPECT_TRUE(IsFault(MakeError(Reason::kInternal, "x")));
  EXPECT_TRUE(IsFault(MakeError(Reason::kRecordCorrupt, "x")));
  EXPECT_FALSE(IsFault(absl::CancelledError("x")));
  EXPECT_FALSE(IsFault(absl::UnavailableError("x")));
  EXPECT_FALSE(IsFault(absl::DeadlineExceededError("x")));
  EXPECT_FALSE(IsFault(InvalidField("key", "x")));
  EXPECT_FALSE(IsFault(MakeError(Reason::kClaimSuperseded, "x")));
  EXPECT_FALSE(IsFault(MakeError(Reason::kOverloaded, "x")));
}

}  // namespace
}  // namespace idempotency
