#include "client/proxy/request_match.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace idempotency {
namespace {

// A segment with %XX decoded; what is not hexadecimal stays.
std::string DecodeSegment(absl::string_view segment) {
  const auto digit = [](char c) {
    const char lower = absl::ascii_tolower(static_cast<unsigned char>(c));
    return lower <= '9' ? lower - '0' : lower - 'a' + 10;
  };
  std::string decoded;
  for (std::size_t i = 0; i < segment.size(); ++i) {
    if (segment[i] == '%' && i + 2 < segment.size() &&
        absl::ascii_isxdigit(static_cast<unsigned char>(segment[i + 1])) &&
        absl::ascii_isxdigit(static_cast<unsigned char>(segment[i + 2]))) {
      decoded +=
          static_cast<char>(digit(segment[i + 1]) * 16 + digit(segment[i + 2]));
      i += 2;
    } else {
      decoded += segment[i];
    }
  }
  return decoded;
}

bool IsSafe(std::string_view method) {
  return method == "GET" || method == "HEAD" || method == "OPTIONS" ||
         method == "TRACE";
}

}  // namespace

absl::StatusOr<RequestMatch> RequestMatch::Parse(std::string_view text) {
  constexpr char kForm[] = "is not a method and a path: \"POST /payments\"";
  RequestMatch match;
  const std::size_t space = text.find(' ');
  if (space == std::string_view::npos || space == 0 ||
      text.substr(space + 1).substr(0, 1) != "/") {
    return absl::InvalidArgumentError(kForm);
  }
  const std::string methods(text.substr(0, space));
  if (methods != "*") match.methods_ = absl::StrSplit(methods, ',');
  for (const std::string& method : match.methods_) {
    if (method.empty() ||
        !std::all_of(method.begin(), method.end(), [](char c) {
          return absl::ascii_isupper(static_cast<unsigned char>(c)) || c == '-';
        })) {
      return absl::InvalidArgumentError(kForm);
    }
    if (IsSafe(method)) {
      return absl::InvalidArgumentError(
          absl::StrCat(method, " changes nothing and is never guarded"));
    }
  }
  const std::string path(text.substr(space + 2));
  match.segments_ = absl::StrSplit(path, '/');
  if (match.segments_.back() == "**") {
    match.any_rest_ = true;
    match.segments_.pop_back();
  }
  for (const std::string& segment : match.segments_) {
    if (segment != "*" && segment.find_first_of("*?# ") != std::string::npos) {
      return absl::InvalidArgumentError(
          "a path has * only as a whole segment and ** only as the last, and "
          "neither ? nor #");
    }
  }
  return match;
}

bool RequestMatch::Fits(std::string_view method,
                        std::string_view target) const {
  if (IsSafe(method) ||
      (!methods_.empty() &&
       std::find(methods_.begin(), methods_.end(), method) == methods_.end())) {
    return false;
  }
  const absl::string_view path(target.data(),
                               std::min(target.find('?'), target.size()));
  if (path.empty() || path.front() != '/') return false;
  const std::vector<absl::string_view> segments =
      absl::StrSplit(path.substr(1), '/');
  if (any_rest_ ? segments.size() < segments_.size()
                : segments.size() != segments_.size()) {
    return false;
  }
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    const std::string& wanted = segments_[i];
    if (wanted == "*" ? segments[i].empty()
                      : DecodeSegment(segments[i]) != wanted) {
      return false;
    }
  }
  return true;
}

}  // namespace idempotency
