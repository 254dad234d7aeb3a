#include "client/http/request.h"

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace idempotency {

bool IsSameField(std::string_view a, std::string_view b) {
  return absl::EqualsIgnoreCase(absl::string_view(a.data(), a.size()),
                                absl::string_view(b.data(), b.size()));
}

std::vector<std::string_view> FieldValues(const HttpRequest& request,
                                          std::string_view name) {
  std::vector<std::string_view> values;
  for (const HttpField& field : request.headers) {
    if (IsSameField(field.name, name)) values.push_back(field.value);
  }
  return values;
}

}  // namespace idempotency
