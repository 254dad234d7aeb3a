// A TLS client that is not gRPC's, to see what a server's port does.
#ifndef IDEMPOTENCY_TESTS_SUPPORT_TLS_PROBE_H_
#define IDEMPOTENCY_TESTS_SUPPORT_TLS_PROBE_H_

#include <string>

#include "tests/support/test_certificates.h"

namespace idempotency {

struct TlsProbe {
  int port = 0;         // of 127.0.0.1
  std::string ca = {};  // PEM; the server's certificate must lead to it
  IssuedCertificate shown = {};  // empty: none
  // The newest version that is offered, as TLS1_1_VERSION; 0: any.
  int version_max = 0;
};

struct TlsAnswer {
  // The handshake held, and the server went on to speak.
  bool accepted = false;
  std::string error;    // else
  std::string version;  // such as TLSv1.3
  std::string alpn;     // out of h2 and http/1.1, which are offered
  std::string serial;   // of the server's certificate, hexadecimal digits
  int chain_length = 0;
};

// Connects once; gives up after ten seconds. Thread-safe.
TlsAnswer Probe(const TlsProbe& probe);

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SUPPORT_TLS_PROBE_H_
