#include "tests/support/test_certificates.h"

#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace idempotency {
namespace {

constexpr long kVersion3 = 2;

void Require(bool done, const char* what) {
  if (done) return;
  std::fprintf(stderr, "certificates for tests: %s failed\n", what);
  std::abort();
}

template <typename Write>
std::string PemOf(const Write& write) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(BIO_new(BIO_s_mem()),
                                                      &BIO_free);
  Require(write(bio.get()) == 1, "writing PEM");
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<std::size_t>(size));
}

std::string PemOf(X509* certificate) {
  return PemOf([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
}

void AddExtension(X509* certificate, int nid, const std::string& value) {
  X509_EXTENSION* const extension =
      X509V3_EXT_conf_nid(nullptr, nullptr, nid, value.c_str());
  Require(extension != nullptr, value.c_str());
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

void SetCommonName(X509_NAME* name, const std::string& value) {
  X509_NAME_add_entry_by_txt(
      name, "CN", MBSTRING_UTF8,
      reinterpret_cast<const unsigned char*>(value.c_str()), -1, -1, 0);
}

// With a random serial number, unsigned.
X509* NewCertificate(const std::string& name, EVP_PKEY* key,
                     absl::Time not_before, absl::Time not_after) {
  X509* const certificate = X509_new();
  X509_set_version(certificate, kVersion3);
  BIGNUM* const serial = BN_new();
  Require(BN_rand(serial, 64, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) == 1,
          "a serial number");
  BN_to_ASN1_INTEGER(serial, X509_get_serialNumber(certificate));
  BN_free(serial);
  ASN1_TIME_set(X509_getm_notBefore(certificate), absl::ToTimeT(not_before));
  ASN1_TIME_set(X509_getm_notAfter(certificate), absl::ToTimeT(not_after));
  SetCommonName(X509_get_subject_name(certificate), name);
  X509_set_pubkey(certificate, key);
  return certificate;
}

}  // namespace

struct TestAuthority::Impl {
  explicit Impl(const std::string& name)
      : key(EVP_EC_gen("P-256")),
        certificate(NewCertificate(name, key,
                                   absl::Now() - absl::Hours(365 * 24),
                                   absl::Now() + absl::Hours(9 * 365 * 24))) {
    X509_set_issuer_name(certificate, X509_get_subject_name(certificate));
    AddExtension(certificate, NID_basic_constraints, "critical,CA:TRUE");
    AddExtension(certificate, NID_key_usage, "critical,keyCertSign,cRLSign");
    Require(X509_sign(certificate, key, EVP_sha256()) > 0, "signing");
  }
  ~Impl() {
    X509_free(certificate);
    EVP_PKEY_free(key);
  }

  EVP_PKEY* const key;
  X509* const certificate;
};

TestAuthority::TestAuthority(const std::string& name)
    : impl_(std::make_unique<const Impl>(name)),
      certificate_(PemOf(impl_->certificate)) {}

TestAuthority::~TestAuthority() = default;

IssuedCertificate TestAuthority::Issue(
    const CertificateSubject& subject) const {
  EVP_PKEY* const key = EVP_EC_gen("P-256");
  Require(key != nullptr, "making a key");
  X509* const certificate =
      NewCertificate("test", key, subject.not_before, subject.not_after);
  X509_set_issuer_name(certificate, X509_get_subject_name(impl_->certificate));
  AddExtension(certificate, NID_subject_alt_name, subject.names);
  Require(X509_sign(certificate, impl_->key, EVP_sha256()) > 0, "signing");
  BIGNUM* const number =
      ASN1_INTEGER_to_BN(X509_get_serialNumber(certificate), nullptr);
  char* const digits = BN_bn2hex(number);
  IssuedCertificate issued{.certificate = PemOf(certificate),
                           .key = PemOf([&](BIO* bio) {
                             return PEM_write_bio_PrivateKey(bio, key, nullptr,
                                                             nullptr, 0,
                                                             nullptr, nullptr);
                           }),
                           .serial = digits};
  OPENSSL_free(digits);
  BN_free(number);
  X509_free(certificate);
  EVP_PKEY_free(key);
  return issued;
}

void OverwriteFile(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << content;
  Require(static_cast<bool>(file.flush()), path.c_str());
}

void ReplaceFile(const std::string& path, const std::string& content) {
  OverwriteFile(path + ".new", content);
  Require(std::rename((path + ".new").c_str(), path.c_str()) == 0,
          path.c_str());
}

}  // namespace idempotency
