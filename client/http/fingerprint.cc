#include "client/http/fingerprint.h"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/request_hash.h"

namespace idempotency {
namespace {

using Json = nlohmann::json;

// Of nested values; a body of brackets only must not cost a hundred times its
// size.
constexpr std::size_t kDepthMax = 100;

// Writes what it reads, but for the members at some pointers. An event that
// answers false ends the reading.
class MemberFilter final : public nlohmann::json_sax<Json> {
 public:
  explicit MemberFilter(std::span<const std::string> pointers)
      : pointers_(pointers) {}

  std::string Take() { return std::move(written_); }

  bool null() override { return Scalar("null"); }
  bool boolean(bool value) override { return Scalar(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override {
    return Scalar(absl::StrCat(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    return Scalar(absl::StrCat(value));
  }
  // Also a larger integer. The text tells more numbers apart than a double.
  bool number_float(number_float_t, const string_t& text) override {
    return Scalar(WithPoint(text));
  }
  bool string(string_t& value) override { return Scalar(Quoted(value)); }
  bool binary(binary_t&) override { return false; }

  bool start_object(std::size_t) override { return Open(true); }
  bool key(string_t& name) override {
    if (skipped_depth_ > 0) return true;
    Level& level = levels_.back();
    if (!level.names.insert(name).second) return false;
    name_ = name;
    Descend(Escaped(name));
    return true;
  }
  bool end_object() override { return Close('}'); }
  bool start_array(std::size_t) override { return Open(false); }
  bool end_array() override { return Close(']'); }

  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  struct Level {
    bool is_object = false;
    std::size_t path_size = 0;  // of the path to it
    std::size_t index = 0;      // of the next element of an array
    bool is_empty = true;       // as written
    std::set<std::string> names = {};
  };

  static std::string Quoted(const std::string& text) {
    return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  // The parser puts the locale's decimal point into it.
  static std::string WithPoint(std::string number) {
    const std::size_t at = number.find_first_not_of("0123456789+-eE");
    if (at != std::string::npos) number[at] = '.';
    return number;
  }
  // As a part of a pointer.
  static std::string Escaped(const std::string& name) {
    std::string escaped;
    for (const char c : name) {
      if (c == '~') {
        escaped += "~0";
      } else if (c == '/') {
        escaped += "~1";
      } else {
        escaped += c;
      }
    }
    return escaped;
  }

  void Descend(const std::string& step) {
    path_.resize(levels_.back().path_size);
    absl::StrAppend(&path_, "/", step);
  }

  // Whether the value that begins now is written; then what precedes it is.
  bool BeginValue() {
    if (levels_.empty()) return true;
    Level& level = levels_.back();
    if (!level.is_object) Descend(absl::StrCat(level.index++));
    if (std::find(pointers_.begin(), pointers_.end(), path_) !=
        pointers_.end()) {
      return false;
    }
    if (!std::exchange(level.is_empty, false)) written_ += ',';
    if (level.is_object) absl::StrAppend(&written_, Quoted(name_), ":");
    return true;
  }

  bool Scalar(const std::string& text) {
    if (skipped_depth_ == 0 && BeginValue()) written_ += text;
    return true;
  }

  bool Open(bool is_object) {
    if (skipped_depth_ > 0 || !BeginValue()) {
      ++skipped_depth_;
      return true;
    }
    written_ += is_object ? '{' : '[';
    levels_.push_back({.is_object = is_object, .path_size = path_.size()});
    return levels_.size() <= kDepthMax;
  }

  bool Close(char bracket) {
    if (skipped_depth_ > 0) {
      --skipped_depth_;
      return true;
    }
    written_ += bracket;
    levels_.pop_back();
    return true;
  }

  const std::span<const std::string> pointers_;
  std::string written_;
  std::vector<Level> levels_;
  std::string path_;  // to the value that is being read
  std::string name_;  // its name, in an object
  // How many brackets are open in a value that is left out.
  std::size_t skipped_depth_ = 0;
};

std::string WithoutQueryParameters(std::string_view target,
                                   std::span<const std::string> names) {
  const std::size_t mark = target.find('?');
  if (names.empty() || mark == std::string_view::npos) {
    return std::string(target);
  }
  std::vector<std::string> kept;
  bool left_out = false;
  for (std::size_t at = mark + 1; at <= target.size();) {
    const std::size_t end = std::min(target.find('&', at), target.size());
    const std::string_view parameter = target.substr(at, end - at);
    const std::string_view name = parameter.substr(0, parameter.find('='));
    if (std::find(names.begin(), names.end(), name) != names.end()) {
      left_out = true;
    } else {
      kept.emplace_back(parameter);
    }
    at = end + 1;
  }
  if (!left_out) return std::string(target);
  std::string filtered(target.substr(0, mark));
  if (!kept.empty()) absl::StrAppend(&filtered, "?", absl::StrJoin(kept, "&"));
  return filtered;
}

std::string Joined(const std::vector<std::string_view>& values) {
  std::string joined;
  for (const std::string_view value : values) {
    if (!joined.empty()) joined += ", ";
    joined += value;
  }
  return joined;
}

}  // namespace

std::string WithoutJsonMembers(std::string_view body,
                               std::span<const std::string> pointers) {
  if (pointers.empty()) return std::string(body);
  // The parser takes it for the end, whatever follows.
  if (body.find('\0') != std::string_view::npos) return std::string(body);
  MemberFilter filter(pointers);
  if (!Json::sax_parse(body.begin(), body.end(), &filter)) {
    return std::string(body);
  }
  return filter.Take();
}

std::string HashOf(const HttpRequest& request,
                   const HttpFingerprint& fingerprint) {
  if (!request.request_hash.empty()) return request.request_hash;
  RequestHasher hasher;
  hasher.Add(request.method);
  hasher.Add(
      WithoutQueryParameters(request.target, fingerprint.query_left_out));
  hasher.Add(fingerprint.content_type
                 ? Joined(FieldValues(request, "content-type"))
                 : "");
  if (fingerprint.json_left_out.empty()) {
    hasher.Add(request.body);
  } else {
    hasher.Add(WithoutJsonMembers(request.body, fingerprint.json_left_out));
  }
  for (const std::string& name : fingerprint.headers_added) {
    const std::vector<std::string_view> values = FieldValues(request, name);
    hasher.Add(absl::AsciiStrToLower(name));
    hasher.Add(absl::StrCat(values.size()));
    for (const std::string_view value : values) hasher.Add(value);
  }
  return std::move(hasher).Finish().value_or("");
}

}  // namespace idempotency
