#include "server/rpc/tls_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "server/core/mutex.h"

namespace idempotency {
namespace {

// gRPC's own file watcher takes over whatever the files hold: while key and
// certificate do not match it has nothing to serve, and handshakes fail. gRPC
// can also ask for the certificates at each connection, but only in C.
class TlsServerCredentials final : public grpc::ServerCredentials {
 public:
  TlsServerCredentials(const CertificateWatch& watch,
                       bool require_client_certificate)
      : watch_(watch),
        credentials_(grpc_ssl_server_credentials_create_with_options(
            grpc_ssl_server_credentials_create_options_using_config_fetcher(
                require_client_certificate
                    ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                    : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
                Fetch, this))) {}
  ~TlsServerCredentials() override {
    grpc_server_credentials_release(credentials_);
  }
  TlsServerCredentials(const TlsServerCredentials&) = delete;
  TlsServerCredentials& operator=(const TlsServerCredentials&) = delete;

  // The service looks at no call's metadata.
  void SetAuthMetadataProcessor(
      const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address,
                      grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  static grpc_ssl_certificate_config_reload_status Fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    return static_cast<TlsServerCredentials*>(self)->Fetch(config);
  }

  grpc_ssl_certificate_config_reload_status Fetch(
      grpc_ssl_server_certificate_config** config) {
    MutexLock lock(mutex_);
    std::shared_ptr<const Certificates> current = watch_.current();
    if (current == served_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    served_ = std::move(current);
    const CertificatePems& pems = served_->pems;
    const grpc_ssl_pem_key_cert_pair pair = {pems.key.c_str(),
                                             pems.certificate.c_str()};
    // Without any CA gRPC 1.51 aborts, though none is used where clients are
    // asked for no certificate.
    const std::string& ca =
        pems.client_ca.empty() ? pems.certificate : pems.client_ca;
    *config = grpc_ssl_server_certificate_config_create(ca.c_str(), &pair, 1);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const CertificateWatch& watch_;
  grpc_server_credentials* const credentials_;

  Mutex mutex_;
  // What gRPC was given last.
  std::shared_ptr<const Certificates> served_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MakeTlsCredentials(
    const CertificateWatch& watch, bool require_client_certificate) {
  return std::make_shared<TlsServerCredentials>(watch,
                                                require_client_certificate);
}

}  // namespace idempotency
