#include "client/proxy/rules.h"

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"

namespace idempotency {

const char kRulesExample[] = R"({
  "http": {"routes": [
    {"match": "POST /payments", "scope": "payments", "policy": "payment",
     "required": true, "resolves": true, "wait": "5s", "timeout": "60s",
     "leave_out_json_fields": ["/sent_at"]},
    {"match": "POST,PUT /orders/**", "scope": "orders", "fail_open": true}
  ]},
  "grpc": {"routes": [
    {"methods": "/shop.Payments/*", "scope": "payments/grpc",
     "policy": "payment"}
  ]}
}
)";

namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kDayMs = std::chrono::hours(24);
constexpr std::size_t kScopeBytesMax = 128;
// "/digest-" and 64 hexadecimal digits, see HttpRoute::caller.
constexpr std::size_t kCallerBytesMax = 72;
constexpr std::size_t kFileBytesMax = std::size_t{1} << 20;

absl::Status Wrong(const std::string& field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
}

bool IsScope(const std::string& scope, std::size_t bytes_max) {
  if (scope.empty() || scope.size() > bytes_max) return false;
  for (const absl::string_view segment : absl::StrSplit(scope, '/')) {
    if (segment.empty()) return false;
    for (const char c : segment) {
      if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '.' &&
          c != '_' && c != '-') {
        return false;
      }
    }
  }
  return true;
}

// The members of one object of the file. The first thing that is wrong stays.
class Reader {
 public:
  Reader(const Json& object, std::string name)
      : object_(object), name_(std::move(name)) {
    if (!object_.is_object()) Fail(name_, "is not an object");
  }

  void Read(const char* name, std::string& value) {
    const Json* const found = Find(name);
    if (found == nullptr) return;
    if (!found->is_string() || found->get_ref<const std::string&>().empty()) {
      return Fail(Path(name), "is not a text");
    }
    value = found->get<std::string>();
  }

  void Read(const char* name, bool& value) {
    const Json* const found = Find(name);
    if (found == nullptr) return;
    if (!found->is_boolean()) {
      return Fail(Path(name), "is neither true nor false");
    }
    value = found->get<bool>();
  }

  void Read(const char* name, std::size_t& value, std::size_t most) {
    const Json* const found = Find(name);
    if (found == nullptr) return;
    if (!found->is_number_unsigned() || found->get<std::uint64_t>() > most) {
      return Fail(Path(name), absl::StrCat("is not a number from 0 to ", most));
    }
    value = found->get<std::size_t>();
  }

  void Read(const char* name, milliseconds& value, milliseconds least) {
    const Json* const found = Find(name);
    if (found == nullptr) return;
    absl::Duration duration;
    if (!found->is_string() ||
        !absl::ParseDuration(found->get_ref<const std::string&>(), &duration)) {
      return Fail(Path(name), "is no duration, such as \"500ms\" or \"30s\"");
    }
    if (duration < absl::FromChrono(least) ||
        duration > absl::FromChrono(kDayMs)) {
      return Fail(Path(name),
                  absl::StrCat("is not from ", least.count(), "ms to 24h"));
    }
    value = absl::ToChronoMilliseconds(duration);
  }
  void Read(const char* name, std::optional<milliseconds>& value,
            milliseconds least) {
    milliseconds read{-1};
    Read(name, read, least);
    if (read != milliseconds(-1)) value = read;
  }

  void Read(const char* name, std::vector<std::string>& values) {
    const Json* const found = Find(name);
    if (found == nullptr) return;
    if (!found->is_array()) return Fail(Path(name), "is not a list");
    for (const Json& item : *found) {
      if (!item.is_string() || item.get_ref<const std::string&>().empty()) {
        return Fail(Path(name), "holds something that is not a text");
      }
      values.push_back(item.get<std::string>());
    }
  }

  // Null if it is not there.
  const Json* Find(const char* name) {
    known_.insert(name);
    if (!object_.is_object()) return nullptr;
    const auto found = object_.find(name);
    return found == object_.end() ? nullptr : &*found;
  }

  void Fail(const std::string& field, absl::string_view what) {
    status_.Update(Wrong(field, what));
  }
  std::string Path(const char* name) const {
    return name_.empty() ? name : absl::StrCat(name_, ".", name);
  }

  // What was wrong, or that something is in the object that nobody read.
  absl::Status Close() {
    if (object_.is_object()) {
      for (const auto& [name, value] : object_.items()) {
        if (!known_.contains(name)) {
          Fail(name_.empty() ? name : absl::StrCat(name_, ".", name),
               "is not known");
        }
      }
    }
    return status_;
  }

 private:
  const Json& object_;
  const std::string name_;
  std::set<std::string> known_;
  absl::Status status_;
};

void ReadScope(Reader& reader, std::size_t bytes_max, std::string& scope) {
  reader.Read("scope", scope);
  if (!IsScope(scope, bytes_max)) {
    reader.Fail(reader.Path("scope"),
                absl::StrCat("is not 1 to ", bytes_max,
                             " characters: segments of A-Z a-z 0-9 . _ - "
                             "joined by /"));
  }
}

// A function that tells the value of a header, for HttpRoute::caller.
std::function<std::string(const HttpRequest&)> HeaderValue(std::string name) {
  return [name = std::move(name)](const HttpRequest& request) {
    std::string value;
    for (const std::string_view each : FieldValues(request, name)) {
      if (!value.empty()) value += ',';
      value += each;
    }
    return value;
  };
}

void ReadFingerprint(Reader& reader, HttpFingerprint& fingerprint) {
  reader.Read("count_headers", fingerprint.headers_added);
  reader.Read("count_content_type", fingerprint.content_type);
  reader.Read("leave_out_query", fingerprint.query_left_out);
  reader.Read("leave_out_json_fields", fingerprint.json_left_out);
  for (std::string& pointer : fingerprint.json_left_out) {
    // A plain name is a member of the body itself.
    if (pointer.front() != '/') {
      pointer = absl::StrCat(
          "/", absl::StrReplaceAll(pointer, {{"~", "~0"}, {"/", "~1"}}));
    }
  }
}

absl::StatusOr<std::shared_ptr<const HttpProxyRoute>> ReadHttpRoute(
    const Json& json, const std::string& name) {
  auto route = std::make_shared<HttpProxyRoute>();
  HttpRoute& rule = route->rule;
  Reader reader(json, name);

  std::string match;
  reader.Read("match", match);
  absl::StatusOr<RequestMatch> parsed = RequestMatch::Parse(match);
  if (parsed.ok()) {
    route->match = *std::move(parsed);
  } else {
    reader.Fail(reader.Path("match"), parsed.status().message());
  }
  std::string caller_header;
  reader.Read("caller_header", caller_header);
  if (!caller_header.empty()) rule.caller = HeaderValue(caller_header);
  ReadScope(
      reader,
      caller_header.empty() ? kScopeBytesMax : kScopeBytesMax - kCallerBytesMax,
      rule.scope);
  reader.Read("policy", rule.policy);
  reader.Read("owner", rule.owner);
  reader.Read("required", rule.required);
  reader.Read("fail_open", rule.fail_open);
  reader.Read("resolves", route->resolves);
  reader.Read("wait", rule.wait, milliseconds(0));
  reader.Read("lease", rule.lease, milliseconds(1));
  reader.Read("timeout", route->timeout, milliseconds(1));
  reader.Read("claim_timeout", rule.claim_timeout, milliseconds(1));
  reader.Read("key_header", rule.key_header);
  reader.Read("replayed_header", rule.replayed_header);
  ReadFingerprint(reader, rule.fingerprint);
  reader.Read("record_headers", rule.headers_recorded);
  reader.Read("leave_out_headers", rule.headers_left_out);
  reader.Read("record_bytes_max", rule.body_bytes_max, kRecordBytesMax);
  if (absl::Status read = reader.Close(); !read.ok()) return read;
  return route;
}

absl::StatusOr<GrpcRoute> ReadGrpcRoute(const Json& json,
                                        const std::string& name) {
  GrpcRoute route;
  OnceRule& rule = route.rule;
  rule.required = false;
  Reader reader(json, name);
  reader.Read("methods", route.methods);
  ReadScope(reader, kScopeBytesMax, rule.scope);
  reader.Read("policy", rule.policy);
  reader.Read("owner", rule.owner);
  reader.Read("required", rule.required);
  reader.Read("fail_open", rule.fail_open);
  reader.Read("resolves", route.resolves);
  reader.Read("wait", rule.wait, milliseconds(0));
  reader.Read("lease", rule.lease, milliseconds(1));
  reader.Read("timeout", route.timeout, milliseconds(1));
  reader.Read("claim_timeout", rule.claim_timeout, milliseconds(1));
  if (absl::Status read = reader.Close(); !read.ok()) return read;
  return route;
}

template <typename Route, typename ReadRoute>
absl::Status ReadRoutes(Reader& top, const char* half, ReadRoute read_route,
                        std::vector<Route>& routes) {
  const Json* const section = top.Find(half);
  if (section == nullptr) return absl::OkStatus();
  Reader reader(*section, half);
  const std::string name = absl::StrCat(half, ".routes");
  const Json* const list = reader.Find("routes");
  if (list == nullptr || !list->is_array()) {
    reader.Fail(name, "is not a list of routes");
  } else {
    for (const Json& item : *list) {
      auto route =
          read_route(item, absl::StrCat(name, "[", routes.size(), "]"));
      if (!route.ok()) return route.status();
      routes.push_back(*std::move(route));
    }
  }
  return reader.Close();
}

// Of two members with one name the parser would take the last.
class NamesOnce {
 public:
  bool operator()(int /*depth*/, Json::parse_event_t event,
                  const Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
        names_.emplace_back();
        break;
      case Json::parse_event_t::object_end:
        names_.pop_back();
        break;
      case Json::parse_event_t::key:
        if (!names_.back().insert(parsed.get<std::string>()).second &&
            twice.empty()) {
          twice = parsed.get<std::string>();
        }
        break;
      default:
        break;
    }
    return true;
  }

  std::string twice;

 private:
  std::vector<std::set<std::string>> names_;
};

absl::StatusOr<Json> ParseJson(std::string_view text) {
  // The parser takes it for the end, whatever follows.
  if (text.find('\0') != std::string_view::npos) {
    return absl::InvalidArgumentError("it is not JSON: it has a zero byte");
  }
  NamesOnce names;
  try {
    Json json = Json::parse(text.begin(), text.end(), std::ref(names));
    if (names.twice.empty()) return json;
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("it is not JSON: ", error.what()));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", names.twice, "\" is there twice in one object"));
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  if (file) {
    text.resize(kFileBytesMax + 1);
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(file.gcount()));
  }
  if (!file && !file.eof()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": it cannot be read"));
  }
  if (text.size() > kFileBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": it is longer than 1 MiB"));
  }
  return text;
}

}  // namespace

std::shared_ptr<const HttpProxyRoute> RouteOf(const ProxyRules& rules,
                                              std::string_view method,
                                              std::string_view target) {
  for (const auto& route : rules.http) {
    if (route->match.Fits(method, target)) return route;
  }
  return nullptr;
}

absl::StatusOr<ProxyRules> ParseRules(std::string_view text) {
  const absl::StatusOr<Json> json = ParseJson(text);
  if (!json.ok()) return json.status();
  if (!json->is_object()) {
    return absl::InvalidArgumentError("it is not a JSON object");
  }
  ProxyRules rules;
  Reader top(*json, "");
  absl::Status read = ReadRoutes(top, "http", ReadHttpRoute, rules.http);
  read.Update(ReadRoutes(top, "grpc", ReadGrpcRoute, rules.grpc));
  read.Update(top.Close());
  if (!read.ok()) return read;
  return rules;
}

absl::StatusOr<std::optional<ProxyRules>> RulesFile::ReadIfChanged() {
  absl::StatusOr<std::string> content = ReadFile(path_);
  if (last_.has_value() && last_->status() == content.status() &&
      (!content.ok() || **last_ == *content)) {
    return std::nullopt;
  }
  last_ = content;
  if (!content.ok()) return content.status();
  absl::StatusOr<ProxyRules> rules = ParseRules(*content);
  if (!rules.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": ", rules.status().message()));
  }
  return *std::move(rules);
}

}  // namespace idempotency
