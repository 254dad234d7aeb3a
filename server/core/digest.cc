#include "server/core/digest.h"

#include <openssl/evp.h>

#include <array>
#include <memory>

namespace idempotency {
namespace {

std::array<char, 8> Frame(std::size_t size) {
  std::array<char, 8> frame{};
  for (std::size_t i = 0; i < frame.size(); ++i) {
    frame[i] = static_cast<char>(static_cast<std::uint64_t>(size) >>
                                 (8 * (frame.size() - 1 - i)));
  }
  return frame;
}

// Hashes as it goes, so that a long body is not copied to be framed.
class FramedSha256 {
 public:
  FramedSha256() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    // Looked up once: OpenSSL 3 takes locks to look it up.
    static const EVP_MD* const sha256 =
        EVP_MD_fetch(nullptr, "SHA256", nullptr);
    EVP_DigestInit_ex(context_.get(), sha256, nullptr);
  }

  void Add(std::string_view part) {
    const std::array<char, 8> frame = Frame(part.size());
    EVP_DigestUpdate(context_.get(), frame.data(), frame.size());
    EVP_DigestUpdate(context_.get(), part.data(), part.size());
  }

  std::string Finish() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned int size = 0;
    EVP_DigestFinal_ex(context_.get(), digest.data(), &size);
    return {reinterpret_cast<const char*>(digest.data()), size};
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

}  // namespace

void AppendFramed(std::string_view part, std::string& out) {
  const std::array<char, 8> frame = Frame(part.size());
  out.append(frame.data(), frame.size());
  out.append(part);
}

std::string ResponseDigest(const Response& response_as_sent) {
  FramedSha256 sha;
  sha.Add(std::to_string(response_as_sent.status_code));
  const char flags[] = {response_as_sent.body_omitted ? '1' : '0',
                        response_as_sent.headers_omitted ? '1' : '0'};
  sha.Add(std::string_view(flags, sizeof(flags)));
  sha.Add(response_as_sent.headers);
  sha.Add(response_as_sent.body);
  return sha.Finish();
}

std::string DownstreamKey(const Uuid& name_space, const RecordId& id,
                          std::int32_t freed_count) {
  std::string name;
  AppendFramed(id.scope, name);
  AppendFramed(id.key, name);
  AppendFramed(std::to_string(freed_count), name);
  return FormatUuid(NameBasedUuid(name_space, name));
}

}  // namespace idempotency
