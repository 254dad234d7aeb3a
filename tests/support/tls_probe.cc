#include "tests/support/tls_probe.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace idempotency {
namespace {

constexpr timeval kPatience{.tv_sec = 10, .tv_usec = 0};
// The names of protocols, each after its length.
constexpr unsigned char kProtocols[] = "\x02h2\x08http/1.1";

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;
using Context = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;
using Session = std::unique_ptr<SSL, decltype(&SSL_free)>;

class Socket {
 public:
  explicit Socket(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<const sockaddr*>(&address),
                         sizeof(address)) == 0;
  }
  ~Socket() { close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  int fd() const { return fd_; }
  bool connected() const { return connected_; }

 private:
  const int fd_;
  bool connected_ = false;
};

Bio BioOf(const std::string& pem) {
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())),
             &BIO_free);
}

void Trust(const std::string& pem, SSL_CTX* context) {
  const Bio bio = BioOf(pem);
  while (X509* const ca =
             PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    X509_STORE_add_cert(SSL_CTX_get_cert_store(context), ca);
    X509_free(ca);
  }
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
}

void Show(const IssuedCertificate& shown, SSL_CTX* context) {
  if (shown.certificate.empty()) return;
  X509* const certificate = PEM_read_bio_X509(BioOf(shown.certificate).get(),
                                              nullptr, nullptr, nullptr);
  EVP_PKEY* const key = PEM_read_bio_PrivateKey(BioOf(shown.key).get(), nullptr,
                                                nullptr, nullptr);
  SSL_CTX_use_certificate(context, certificate);
  SSL_CTX_use_PrivateKey(context, key);
  X509_free(certificate);
  EVP_PKEY_free(key);
}

std::string SerialOf(SSL* session) {
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(
      SSL_get1_peer_certificate(session), &X509_free);
  if (certificate == nullptr) return "";
  BIGNUM* const number =
      ASN1_INTEGER_to_BN(X509_get_serialNumber(certificate.get()), nullptr);
  char* const digits = BN_bn2hex(number);
  std::string serial(digits);
  OPENSSL_free(digits);
  BN_free(number);
  return serial;
}

std::string LastError() {
  char text[256] = "closed by the server";
  if (const unsigned long code = ERR_peek_last_error(); code != 0) {
    ERR_error_string_n(code, text, sizeof(text));
  }
  ERR_clear_error();
  return text;
}

}  // namespace

TlsAnswer Probe(const TlsProbe& probe) {
  const Context context(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free);
  // Old versions must be refused by the server and not by this client.
  SSL_CTX_set_security_level(context.get(), 0);
  SSL_CTX_set_min_proto_version(context.get(), TLS1_VERSION);
  SSL_CTX_set_max_proto_version(context.get(), probe.version_max);
  SSL_CTX_set_alpn_protos(context.get(), kProtocols, sizeof(kProtocols) - 1);
  Trust(probe.ca, context.get());
  Show(probe.shown, context.get());

  TlsAnswer answer;
  const Socket socket(probe.port);
  if (!socket.connected()) {
    answer.error = std::strerror(errno);
    return answer;
  }
  const Session session(SSL_new(context.get()), &SSL_free);
  SSL_set_fd(session.get(), socket.fd());
  const bool shaken = SSL_connect(session.get()) == 1;
  answer.serial = SerialOf(session.get());
  // With TLS 1.3 the server's view of the client's certificate comes after the
  // handshake. A server of HTTP/2 speaks first.
  char byte = 0;
  answer.accepted = shaken && SSL_read(session.get(), &byte, 1) == 1;
  if (!answer.accepted) {
    answer.error = LastError();
    return answer;
  }
  answer.version = SSL_get_version(session.get());
  const unsigned char* alpn = nullptr;
  unsigned alpn_size = 0;
  SSL_get0_alpn_selected(session.get(), &alpn, &alpn_size);
  answer.alpn.assign(reinterpret_cast<const char*>(alpn), alpn_size);
  answer.chain_length = sk_X509_num(SSL_get_peer_cert_chain(session.get()));
  return answer;
}

}  // namespace idempotency
