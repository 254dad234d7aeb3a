// Certificates made for one test, and what it takes to put them in place.
#ifndef IDEMPOTENCY_TESTS_SUPPORT_TEST_CERTIFICATES_H_
#define IDEMPOTENCY_TESTS_SUPPORT_TEST_CERTIFICATES_H_

#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace idempotency {

struct IssuedCertificate {
  std::string certificate;  // PEM
  std::string key;          // PEM
  std::string serial;       // as TlsAnswer has it
};

// What a certificate is to say.
struct CertificateSubject {
  // As OpenSSL writes subject alternative names.
  std::string names = "IP:127.0.0.1,DNS:localhost";
  absl::Time not_before = absl::Now() - absl::Hours(1);
  absl::Time not_after = absl::Now() + absl::Hours(24 * 30);
};

// A certificate authority with a key of its own, valid from a year ago for ten
// years. Thread-compatible. What goes wrong in it aborts the test program.
class TestAuthority {
 public:
  explicit TestAuthority(const std::string& name);
  ~TestAuthority();

  // Its own certificate, PEM.
  const std::string& certificate() const { return certificate_; }

  // For servers and clients alike.
  IssuedCertificate Issue(const CertificateSubject& subject = {}) const;

 private:
  struct Impl;
  const std::unique_ptr<const Impl> impl_;
  const std::string certificate_;
};

// Puts a whole new file in the place of what was there, or writes into it.
void ReplaceFile(const std::string& path, const std::string& content);
void OverwriteFile(const std::string& path, const std::string& content);

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SUPPORT_TEST_CERTIFICATES_H_
