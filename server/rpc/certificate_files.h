// The PEM files that make the server speak TLS: read, and checked to fit
// together before anything is done with them.
#ifndef IDEMPOTENCY_SERVER_RPC_CERTIFICATE_FILES_H_
#define IDEMPOTENCY_SERVER_RPC_CERTIFICATE_FILES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace idempotency {

// Paths, named as the flags that give them.
struct CertificateFiles {
  std::string tls_certificate = {};  // the server's, then what leads to its CA
  std::string tls_key = {};
  // Those who may sign clients' certificates. Empty: clients show none.
  std::string tls_client_ca = {};

  // Whether the server is to speak TLS.
  bool given() const { return !tls_certificate.empty() || !tls_key.empty(); }
};

// What the files hold.
struct CertificatePems {
  std::string certificate;
  std::string key;
  std::string client_ca;

  friend bool operator==(const CertificatePems&,
                         const CertificatePems&) = default;
};

// Files that were found to fit together.
struct Certificates {
  CertificatePems pems;
  // When all certificates of the server's chain hold.
  absl::Time not_before;
  absl::Time not_after;

  bool ValidAt(absl::Time now) const {
    return not_before <= now && now < not_after;
  }
};

// An error names the flag, the file and what to do, and holds nothing of what
// the file does.
absl::StatusOr<CertificatePems> ReadFiles(const CertificateFiles& files);

// Checks that every part parses, that OpenSSL would serve the certificate, and
// that the key belongs to it; not whether it is valid by now. Errors as those
// of ReadFiles(); the paths are only used for them.
absl::StatusOr<Certificates> CheckFit(const CertificateFiles& files,
                                      CertificatePems pems);

// Both.
absl::StatusOr<Certificates> LoadCertificates(const CertificateFiles& files);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_RPC_CERTIFICATE_FILES_H_
