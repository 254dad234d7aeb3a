#include "server/rpc/certificate_files.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace idempotency {
namespace {

template <auto kFree>
struct Freer {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using Bio = std::unique_ptr<BIO, Freer<BIO_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;
using X509Certificate = std::unique_ptr<X509, Freer<X509_free>>;
using Context = std::unique_ptr<SSL_CTX, Freer<SSL_CTX_free>>;

constexpr std::uintmax_t kFileBytesMax = std::uintmax_t{1} << 20;

// A flag and the file it names, for messages.
struct Place {
  const char* flag;
  const std::string& path;

  absl::Status Error(const std::string& what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, ": ", path, " ", what));
  }
};

// The newest error of OpenSSL's queue, which is emptied.
std::string OpensslReason() {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  const char* const reason = ERR_reason_error_string(code);
  return reason == nullptr ? "no reason given" : reason;
}

// A regular file of bounded size: anything else may never end, and this is done
// every second.
absl::Status ReadFile(const Place& place, std::string& content) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(place.path, error);
  if (!error && size > kFileBytesMax) {
    return place.Error("is longer than 1 MiB; name a PEM file");
  }
  std::ifstream file;
  if (!error) file.open(place.path, std::ios::binary);
  if (error || !file.is_open() || size == 0) {
    return place.Error(
        absl::StrCat("can't be read (",
                     error             ? error.message()
                     : !file.is_open() ? std::strerror(errno)
                                       : "is it empty?",
                     "); name a PEM file that the server's user may read"));
  }
  content.resize(size);
  file.read(content.data(), static_cast<std::streamsize>(size));
  content.resize(static_cast<std::size_t>(file.gcount()));
  return absl::OkStatus();
}

Bio BioOf(const std::string& pem) {
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

// All of them, so that a broken one at the end is not left out silently.
absl::StatusOr<std::vector<X509Certificate>> ParseCertificates(
    const Place& place, const std::string& pem) {
  ERR_clear_error();
  const Bio bio = BioOf(pem);
  std::vector<X509Certificate> certificates;
  while (X509* const next =
             PEM_read_bio_X509_AUX(bio.get(), nullptr, nullptr, nullptr)) {
    certificates.emplace_back(next);
  }
  const bool at_end =
      ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  const std::string reason = OpensslReason();
  if (!at_end) {
    return place.Error(
        absl::StrCat("has a certificate that can't be parsed: ", reason));
  }
  if (certificates.empty()) {
    return place.Error("holds no certificate; name a file in PEM form");
  }
  return certificates;
}

// Without a passphrase: nobody is there to type it.
int NoPassphrase(char*, int, int, void*) { return -1; }

absl::StatusOr<Key> ParseKey(const Place& place, const std::string& pem) {
  ERR_clear_error();
  const Bio bio = BioOf(pem);
  Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassphrase, nullptr));
  if (key == nullptr) {
    return place.Error(
        absl::StrCat("holds no private key that can be used (", OpensslReason(),
                     "); name a file in PEM form without a passphrase"));
  }
  return key;
}

absl::Time TimeOf(const ASN1_TIME* asn1) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(asn1, &parts) != 1) return absl::InfinitePast();
  return absl::FromTimeT(timegm(&parts));
}

// As gRPC will set its own contexts up.
absl::Status CheckServable(const Place& certificate_place,
                           const Place& key_place, X509& certificate,
                           EVP_PKEY& key) {
  const Context context(SSL_CTX_new(TLS_server_method()));
  if (context == nullptr) return absl::InternalError(OpensslReason());
  if (SSL_CTX_use_certificate(context.get(), &certificate) != 1) {
    return certificate_place.Error(
        absl::StrCat("is refused by OpenSSL: ", OpensslReason()));
  }
  if (SSL_CTX_use_PrivateKey(context.get(), &key) != 1 ||
      SSL_CTX_check_private_key(context.get()) != 1) {
    ERR_clear_error();
    return key_place.Error(absl::StrCat(
        "is not the key of the certificate in ", certificate_place.path,
        "; name two files that belong "
        "together, the server's own certificate first"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CertificatePems> ReadFiles(const CertificateFiles& files) {
  CertificatePems pems;
  absl::Status status =
      ReadFile({"tls_certificate", files.tls_certificate}, pems.certificate);
  if (status.ok()) status = ReadFile({"tls_key", files.tls_key}, pems.key);
  if (status.ok() && !files.tls_client_ca.empty()) {
    status = ReadFile({"tls_client_ca", files.tls_client_ca}, pems.client_ca);
  }
  if (!status.ok()) return status;
  return pems;
}

absl::StatusOr<Certificates> CheckFit(const CertificateFiles& files,
                                      CertificatePems pems) {
  const Place certificate_place{"tls_certificate", files.tls_certificate};
  const Place key_place{"tls_key", files.tls_key};
  const auto chain = ParseCertificates(certificate_place, pems.certificate);
  if (!chain.ok()) return chain.status();
  const auto key = ParseKey(key_place, pems.key);
  if (!key.ok()) return key.status();
  const absl::Status servable =
      CheckServable(certificate_place, key_place, *chain->front(), **key);
  if (!servable.ok()) return servable;
  if (!files.tls_client_ca.empty()) {
    const auto client_ca = ParseCertificates(
        {"tls_client_ca", files.tls_client_ca}, pems.client_ca);
    if (!client_ca.ok()) return client_ca.status();
  }
  Certificates certificates{.pems = std::move(pems),
                            .not_before = absl::InfinitePast(),
                            .not_after = absl::InfiniteFuture()};
  for (const X509Certificate& certificate : *chain) {
    certificates.not_before =
        std::max(certificates.not_before,
                 TimeOf(X509_get0_notBefore(certificate.get())));
    certificates.not_after = std::min(
        certificates.not_after, TimeOf(X509_get0_notAfter(certificate.get())));
  }
  return certificates;
}

absl::StatusOr<Certificates> LoadCertificates(const CertificateFiles& files) {
  absl::StatusOr<CertificatePems> pems = ReadFiles(files);
  if (!pems.ok()) return pems.status();
  return CheckFit(files, *std::move(pems));
}

}  // namespace idempotency
