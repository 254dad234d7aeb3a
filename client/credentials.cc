#include "client/credentials.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace idempotency {
namespace {

constexpr std::chrono::seconds kLookPause{1};
constexpr std::uintmax_t kFileBytesMax = std::uintmax_t{1} << 20;

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using Context = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

absl::Status FileError(const std::string& file, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", what));
}

absl::Status ReadFile(const std::string& file, std::string& content) {
  if (file.empty()) return absl::OkStatus();
  // Not for folders, pipes and the like.
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(file, error);
  if (error || size == 0 || size > kFileBytesMax) {
    return FileError(file, "is no file of 1 byte to 1 MiB that can be read");
  }
  std::ifstream stream(file, std::ios::binary);
  if (!stream.is_open()) return FileError(file, "can't be read");
  content.resize(size);
  stream.read(content.data(), static_cast<std::streamsize>(size));
  content.resize(static_cast<std::size_t>(stream.gcount()));
  return absl::OkStatus();
}

Bio BioOf(const std::string& pem) {
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())),
             &BIO_free);
}

// The first of them, once all were parsed; null when one can't be, or when
// there is none.
Certificate ParseCertificates(const std::string& pem) {
  ERR_clear_error();
  const Bio bio = BioOf(pem);
  Certificate first(nullptr, &X509_free);
  while (X509* const next =
             PEM_read_bio_X509_AUX(bio.get(), nullptr, nullptr, nullptr)) {
    Certificate certificate(next, &X509_free);
    if (first == nullptr) first = std::move(certificate);
  }
  const bool at_end =
      ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (!at_end) first.reset();
  return first;
}

// Nobody is there to type one.
int NoPassphrase(char*, int, int, void*) { return -1; }

// As gRPC will set its own contexts up.
bool CanBeShown(const Certificate& certificate, const std::string& key_pem) {
  const Bio bio = BioOf(key_pem);
  const Key key(
      PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassphrase, nullptr),
      &EVP_PKEY_free);
  const Context context(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free);
  const bool can =
      key != nullptr && context != nullptr &&
      SSL_CTX_use_certificate(context.get(), certificate.get()) == 1 &&
      SSL_CTX_use_PrivateKey(context.get(), key.get()) == 1 &&
      SSL_CTX_check_private_key(context.get()) == 1;
  ERR_clear_error();
  return can;
}

}  // namespace

struct TlsFiles::Pems {
  std::string server_ca;
  std::string certificate;
  std::string key;

  friend bool operator==(const Pems&, const Pems&) = default;
};

TlsFiles::TlsFiles(TlsOptions options) : options_(std::move(options)) {}

TlsFiles::~TlsFiles() = default;

absl::StatusOr<std::shared_ptr<TlsFiles>> TlsFiles::Load(TlsOptions options) {
  if (options.certificate_file.empty() != options.key_file.empty()) {
    return absl::InvalidArgumentError("certificate and key go together");
  }
  std::shared_ptr<TlsFiles> files(new TlsFiles(std::move(options)));
  files->Use(files->Read());
  const absl::Status problem = files->problem();
  if (!problem.ok()) return problem;
  return files;
}

std::shared_ptr<grpc::ChannelCredentials> TlsFiles::Current() {
  {
    absl::MutexLock lock(&mutex_);
    const auto now = std::chrono::steady_clock::now();
    if (now < next_look_) return current_;
    next_look_ = now + kLookPause;
  }
  // Other callers go on with what there is.
  Use(Read());
  absl::MutexLock lock(&mutex_);
  return current_;
}

absl::Status TlsFiles::problem() const {
  absl::MutexLock lock(&mutex_);
  return problem_;
}

absl::StatusOr<TlsFiles::Pems> TlsFiles::Read() const {
  Pems pems;
  absl::Status status = ReadFile(options_.server_ca_file, pems.server_ca);
  if (status.ok()) {
    status = ReadFile(options_.certificate_file, pems.certificate);
  }
  if (status.ok()) status = ReadFile(options_.key_file, pems.key);
  if (!status.ok()) return status;
  if (!options_.server_ca_file.empty() &&
      ParseCertificates(pems.server_ca) == nullptr) {
    return FileError(options_.server_ca_file, "holds no certificates in PEM");
  }
  if (options_.certificate_file.empty()) return pems;
  const Certificate certificate = ParseCertificates(pems.certificate);
  if (certificate == nullptr) {
    return FileError(options_.certificate_file, "holds no certificates in PEM");
  }
  if (!CanBeShown(certificate, pems.key)) {
    return FileError(
        options_.key_file,
        absl::StrCat("is not the key, without passphrase, that OpenSSL "
                     "would use with ",
                     options_.certificate_file));
  }
  return pems;
}

void TlsFiles::Use(absl::StatusOr<Pems> read) {
  absl::MutexLock lock(&mutex_);
  problem_ = read.status();
  if (!read.ok() || (pems_ != nullptr && *pems_ == *read)) return;
  pems_ = std::make_unique<const Pems>(*std::move(read));
  current_ = grpc::SslCredentials({.pem_root_certs = pems_->server_ca,
                                   .pem_private_key = pems_->key,
                                   .pem_cert_chain = pems_->certificate});
}

}  // namespace idempotency
