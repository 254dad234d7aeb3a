#include "client/examples/cpp/refusal.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "client/status.h"
#include "google/rpc/error_details.pb.h"

namespace idempotency::payments {
namespace {

thread_local absl::Status refusal;

std::string FieldOf(const absl::Status& status) {
  google::rpc::BadRequest bad;
  const auto packed =
      status.GetPayload("type.googleapis.com/google.rpc.BadRequest");
  if (!packed.has_value() || !bad.ParseFromString(std::string(*packed)) ||
      bad.field_violations().empty()) {
    return "";
  }
  return bad.field_violations(0).field();
}

}  // namespace

void KeepRefusal(const HttpNotice& notice) { refusal = notice.why; }

httplib::Server::Handler ExplainRefusals(httplib::Server::Handler guarded) {
  return [guarded = std::move(guarded)](const httplib::Request& request,
                                        httplib::Response& response) {
    refusal = absl::OkStatus();
    guarded(request, response);
    if (refusal.ok() || response.get_header_value("Content-Type") !=
                            "application/problem+json") {
      return;
    }
    nlohmann::ordered_json problem =
        nlohmann::ordered_json::parse(response.body);
    const std::string reason = ErrorReasonOf(refusal);
    const std::string field = FieldOf(refusal);
    if (!reason.empty()) problem["reason"] = reason;
    if (!field.empty()) problem["field"] = field;
    response.body = problem.dump();
  };
}

}  // namespace idempotency::payments
