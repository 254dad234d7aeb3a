// TLS for the gRPC server, with certificates that change under way.
#ifndef IDEMPOTENCY_SERVER_RPC_TLS_CREDENTIALS_H_
#define IDEMPOTENCY_SERVER_RPC_TLS_CREDENTIALS_H_

#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "server/rpc/certificate_watch.h"

namespace idempotency {

// TLS 1.2 or 1.3, HTTP/2 by ALPN. Every handshake uses what `watch` holds when
// the connection is accepted; open connections keep what they began with. With
// a client CA, clients must show a certificate that leads to it.
//
// For one address only. The caller keeps the credentials, and `watch`, until
// the server that listens with them was shut down: gRPC does not.
std::shared_ptr<grpc::ServerCredentials> MakeTlsCredentials(
    const CertificateWatch& watch, bool require_client_certificate);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_RPC_TLS_CREDENTIALS_H_
