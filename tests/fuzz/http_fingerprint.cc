// Input, apart by U+001E: JSON Pointers that are left out, one a line; names of
// query parameters that are left out, one a line; two targets; two bodies.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/http/fingerprint.h"
#include "client/request_hash.h"
#include "tests/fuzz/check.h"

namespace idempotency {
namespace {

using fuzz::Require;
using Json = nlohmann::ordered_json;
using Lines = std::vector<std::string>;

Lines LinesOf(std::string_view text) {
  return absl::StrSplit(absl::string_view(text.data(), text.size()), '\n',
                        absl::SkipEmpty());
}

bool IsAmong(const Lines& lines, const std::string& text) {
  return std::find(lines.begin(), lines.end(), text) != lines.end();
}

// ---- The same rules once more, over a tree instead of a stream.

Json Without(const Json& value, const std::string& path,
             const Lines& pointers) {
  if (!value.is_structured()) return value;
  Json kept = value.is_object() ? Json::object() : Json::array();
  std::size_t index = 0;
  for (const auto& [name, child] : value.items()) {
    const std::string step =
        value.is_object()
            ? absl::StrReplaceAll(name, {{"~", "~0"}, {"/", "~1"}})
            : absl::StrCat(index++);
    const std::string child_path = absl::StrCat(path, "/", step);
    if (IsAmong(pointers, child_path)) continue;
    if (value.is_object()) {
      kept[name] = Without(child, child_path, pointers);
    } else {
      kept.push_back(Without(child, child_path, pointers));
    }
  }
  return kept;
}

// The body's JSON without those members; nothing if it is no JSON text.
std::optional<Json> Tree(std::string_view body, const Lines& pointers) {
  if (body.find('\0') != std::string_view::npos) return std::nullopt;
  Json tree = Json::parse(body.begin(), body.end(), nullptr, false);
  if (tree.is_discarded()) return std::nullopt;
  return Without(tree, "", pointers);
}

std::string WithoutParameters(const std::string& target, const Lines& names) {
  const std::vector<std::string> halves =
      absl::StrSplit(target, absl::MaxSplits('?', 1));
  if (halves.size() == 1) return target;
  std::vector<std::string> parameters = absl::StrSplit(halves[1], '&');
  const std::size_t dropped =
      std::erase_if(parameters, [&](const std::string& parameter) {
        const std::vector<std::string> name =
            absl::StrSplit(parameter, absl::MaxSplits('=', 1));
        return IsAmong(names, name.front());
      });
  if (dropped == 0) return target;
  if (parameters.empty()) return halves[0];
  return absl::StrCat(halves[0], "?", absl::StrJoin(parameters, "&"));
}

// ---- What is checked.

void CheckBodies(std::string_view one, std::string_view other,
                 const Lines& pointers) {
  const std::string kept = WithoutJsonMembers(one, pointers);
  if (const std::optional<Json> tree = Tree(one, pointers); tree.has_value()) {
    if (kept != one) {
      Require(Json::parse(kept, nullptr, false) == *tree,
              "what is kept is the body without those members");
    }
  } else {
    Require(kept == one, "a body that is no JSON stays as it is");
  }
  if (kept != WithoutJsonMembers(other, pointers) || one == other) return;
  const std::optional<Json> tree = Tree(one, pointers);
  Require(tree.has_value() && tree == Tree(other, pointers),
          "two bodies that are hashed as one differ only in what is left out");
}

void CheckTargets(const HttpRequest& request, const std::string& target,
                  const std::string& other,
                  const HttpFingerprint& fingerprint) {
  const Lines& names = fingerprint.query_left_out;
  HttpRequest filtered = request;
  const std::string kept = WithoutParameters(target, names);
  filtered.target = kept;
  HttpFingerprint all = fingerprint;
  all.query_left_out.clear();
  Require(HashOf(request, fingerprint) == HashOf(filtered, all),
          "a parameter that is left out is as if it were not there");
  filtered.target = other;
  Require((HashOf(request, fingerprint) == HashOf(filtered, fingerprint)) ==
              (kept == WithoutParameters(other, names)),
          "targets have one hash exactly if they differ in what is left out");
}

void CheckFraming(const HttpRequest& request,
                  const HttpFingerprint& fingerprint) {
  if (request.target.empty()) return;
  const std::string longer =
      std::string(request.method) + request.target.front();
  HttpRequest moved = request;
  moved.method = longer;
  moved.target.remove_prefix(1);
  Require(HashOf(request, fingerprint) != HashOf(moved, fingerprint),
          "bytes that move from one part to the next change the hash");
}

void FuzzFingerprint(std::string_view input) {
  const std::vector<std::string_view> parts = fuzz::ExactlyParts(input, 6);
  const HttpFingerprint fingerprint{.headers_added = {"X-Tenant"},
                                    .query_left_out = LinesOf(parts[1]),
                                    .json_left_out = LinesOf(parts[0])};
  const std::string target(parts[2]);
  const HttpRequest request{
      .method = "POST",
      .target = target,
      .headers = {{"x-tenant", parts[1]}, {"content-type", "application/json"}},
      .body = parts[4]};
  const std::string hash = HashOf(request, fingerprint);
  Require(hash.size() == 32, "a hash has 32 bytes");
  Require(hash == HashOf(request, fingerprint), "the same request, same hash");

  HttpRequest other = request;
  other.body = parts[5];
  const bool same_body =
      WithoutJsonMembers(parts[4], fingerprint.json_left_out) ==
      WithoutJsonMembers(parts[5], fingerprint.json_left_out);
  Require((hash == HashOf(other, fingerprint)) == same_body,
          "bodies have one hash exactly if what is kept of them is the same");

  CheckBodies(parts[4], parts[5], fingerprint.json_left_out);
  CheckTargets(request, target, std::string(parts[3]), fingerprint);
  CheckFraming(request, fingerprint);
}

}  // namespace
}  // namespace idempotency

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  idempotency::FuzzFingerprint(idempotency::fuzz::Text(data, size));
  return 0;
}
