#include "client/http/problem.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/operation.h"

namespace idempotency {

v1::Response MakeProblem(const Problem& problem, std::string_view type_prefix,
                         std::string_view detail,
                         std::optional<std::chrono::nanoseconds> retry_after) {
  using Json = nlohmann::ordered_json;
  Json body;
  body["type"] = std::string(type_prefix).append(problem.name);
  body["title"] = problem.title;
  body["status"] = problem.status;
  if (!detail.empty()) body["detail"] = detail;
  v1::Response response = MakeResponse(
      problem.status, body.dump(-1, ' ', true, Json::error_handler_t::replace),
      "application/problem+json");
  if (retry_after.has_value()) {
    const auto seconds =
        std::chrono::ceil<std::chrono::seconds>(*retry_after).count();
    v1::Header* const header = response.add_headers();
    header->set_name("Retry-After");
    header->set_value(absl::StrCat(std::max<std::int64_t>(seconds, 1)));
  }
  return response;
}

}  // namespace idempotency
