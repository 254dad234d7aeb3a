#include "client/request_hash.h"

#include <openssl/evp.h>

#include <array>
#include <utility>

#include "absl/status/status.h"

namespace idempotency {
namespace {

// As server/core/digest.cc frames, which the client must not see; the test
// vectors hold both to the same bytes.
std::array<char, 8> Frame(std::uint64_t size) {
  std::array<char, 8> frame{};
  for (std::size_t i = 0; i < frame.size(); ++i) {
    frame[i] = static_cast<char>(size >> (8 * (frame.size() - 1 - i)));
  }
  return frame;
}

}  // namespace

void RequestHasher::FreeContext::operator()(evp_md_ctx_st* context) const {
  EVP_MD_CTX_free(context);
}

RequestHasher::RequestHasher() : context_(EVP_MD_CTX_new()) {
  if (context_ != nullptr &&
      EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) != 1) {
    context_ = nullptr;
  }
  Add(kRequestHashVersion);
}

RequestHasher::RequestHasher(RequestHasher&&) noexcept = default;
RequestHasher& RequestHasher::operator=(RequestHasher&&) noexcept = default;
RequestHasher::~RequestHasher() = default;

void RequestHasher::Add(std::string_view part) {
  Begin(part.size());
  Append(part);
}

void RequestHasher::Begin(std::uint64_t size) {
  lengths_agree_ = lengths_agree_ && missing_ == 0;
  missing_ = size;
  const std::array<char, 8> frame = Frame(size);
  Update({frame.data(), frame.size()});
}

void RequestHasher::Append(std::string_view piece) {
  if (piece.size() > missing_) {
    lengths_agree_ = false;
    return;
  }
  missing_ -= piece.size();
  Update(piece);
}

void RequestHasher::Update(std::string_view bytes) {
  if (context_ != nullptr &&
      EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) != 1) {
    context_ = nullptr;
  }
}

absl::StatusOr<std::string> RequestHasher::Finish() && {
  if (!lengths_agree_ || missing_ != 0) {
    return absl::InvalidArgumentError(
        "a part of the request is not as long as was announced");
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  if (context_ == nullptr ||
      EVP_DigestFinal_ex(context_.get(), digest.data(), &size) != 1) {
    return absl::InternalError("OpenSSL makes no SHA-256");
  }
  context_ = nullptr;
  return std::string(digest.begin(), digest.begin() + size);
}

std::string RequestHashOfParts(std::span<const std::string_view> parts) {
  RequestHasher hasher;
  for (const std::string_view part : parts) hasher.Add(part);
  return std::move(hasher).Finish().value_or("");
}

std::string RequestHashOfParts(std::initializer_list<std::string_view> parts) {
  return RequestHashOfParts(
      std::span<const std::string_view>(parts.begin(), parts.size()));
}

std::string RequestHash(const HttpRequestParts& request) {
  return RequestHashOfParts(
      {request.method, request.target, request.content_type, request.body});
}

}  // namespace idempotency
