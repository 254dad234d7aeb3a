// The request hash of a Claim: what tells a retry of the same request from
// another request under the same key, which is answered with Mismatch.
//
//   request.set_request_hash(idempotency::RequestHash(
//       {.method = "POST", .target = "/payments?currency=EUR",
//        .content_type = "application/json", .body = body}));
//
// It is SHA-256 over parts, each preceded by its length as 8 bytes, big-endian;
// the first part is kRequestHashVersion. So neither two different lists of
// parts nor two versions have the same bytes under the digest.
// tests/vectors/request_hash.tsv has examples for other languages.
//
// The digest of a version never changes: a record may be claimed again after
// years, by a program in another language. Another way to hash would get a
// version of its own.
//
// Nothing is normalised. Letter case, the order of query parameters and of JSON
// fields, white space, "charset=utf-8" and Unicode forms all count. Hash the
// bytes as the caller sent them, before anything parses and prints them anew:
// a retry sends the same bytes, a new version of a serialiser need not.
//
// Where a retry does differ, in a timestamp, a trace id, a signature or a retry
// counter, that must not be hashed: hash the fields that say what is to be
// done, as a list of parts in a fixed order, absent fields as empty parts
// (where absent and empty ask for different things, with a part that says
// which). When the choice of fields changes, retries of requests from before it
// are answered with Mismatch, until those records expire.
//
// Who the caller is belongs in the hash, or in the scope or key, if different
// callers may send the same key.
#ifndef IDEMPOTENCY_CLIENT_REQUEST_HASH_H_
#define IDEMPOTENCY_CLIENT_REQUEST_HASH_H_

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX.

namespace idempotency {

inline constexpr char kRequestHashVersion[] = "idempotency.request.v1";

// A request as HTTP has it, or any other with these four.
struct HttpRequestParts {
  std::string_view method;        // "POST"
  std::string_view target;        // path and query, as in the request line
  std::string_view content_type;  // the whole header; empty if there is none
  std::string_view body;
};

// 32 raw bytes: the hash of the list method, target, content type, body. Empty,
// which the service refuses, if OpenSSL is set up without SHA-256. Thread-safe.
std::string RequestHash(const HttpRequestParts& request);

// The same for any list of parts, the empty list included.
std::string RequestHashOfParts(std::span<const std::string_view> parts);
std::string RequestHashOfParts(std::initializer_list<std::string_view> parts);

// The same for parts that are not in memory at once:
//
//   RequestHasher hasher;
//   for (const auto part : {method, target, content_type}) hasher.Add(part);
//   hasher.Begin(content_length);
//   while (ReadSome(buffer)) hasher.Append(buffer);
//   absl::StatusOr<std::string> hash = std::move(hasher).Finish();
//
// Not thread-safe.
class RequestHasher {
 public:
  RequestHasher();
  RequestHasher(RequestHasher&&) noexcept;
  RequestHasher& operator=(RequestHasher&&) noexcept;
  ~RequestHasher();

  // One part.
  void Add(std::string_view part);

  // A part of `size` bytes, which Append gives in pieces of any length. The
  // next Begin, Add or Finish ends it.
  void Begin(std::uint64_t size);
  void Append(std::string_view piece);

  // 32 raw bytes; the object is of no use afterwards. INVALID_ARGUMENT if the
  // pieces of a part were not as long together as Begin was told (a body that
  // broke off): what was read is not the request. INTERNAL if OpenSSL failed.
  absl::StatusOr<std::string> Finish() &&;

 private:
  struct FreeContext {
    void operator()(evp_md_ctx_st* context) const;
  };

  void Update(std::string_view bytes);

  std::unique_ptr<evp_md_ctx_st, FreeContext> context_;  // Null: it failed.
  std::uint64_t missing_ = 0;  // of the part that was begun
  bool lengths_agree_ = true;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_REQUEST_HASH_H_
