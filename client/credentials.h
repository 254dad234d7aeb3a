// TLS towards the coordinator, with certificates that change under way.
#ifndef IDEMPOTENCY_CLIENT_CREDENTIALS_H_
#define IDEMPOTENCY_CLIENT_CREDENTIALS_H_

#include <chrono>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/security/credentials.h"

namespace idempotency {

// Paths of PEM files.
struct TlsOptions {
  // Who may have signed the server's certificate. Empty: whom the system
  // trusts.
  std::string server_ca_file = {};
  // What the server is shown, when it asks for certificates of its clients:
  // the certificate, then what leads to its CA. Both or neither.
  std::string certificate_file = {};
  std::string key_file = {};  // without passphrase
};

// Credentials made of files that may be replaced at any time: put it into
// ClientOptions::tls. The server's certificate must lead to the CA and hold the
// host of the target, as a name or an IP address. TLS 1.2 or newer.
//
// Thread-safe.
class TlsFiles {
 public:
  // INVALID_ARGUMENT, naming the file, when one can't be read or parsed, or
  // when key and certificate don't belong together. Dates are not looked at.
  static absl::StatusOr<std::shared_ptr<TlsFiles>> Load(TlsOptions options);

  ~TlsFiles();
  TlsFiles(const TlsFiles&) = delete;
  TlsFiles& operator=(const TlsFiles&) = delete;

  // The credentials of the files, which are read at most once a second. While
  // they don't fit together, because only one has been replaced for example,
  // those of the last ones that did. The same pointer until they change.
  std::shared_ptr<grpc::ChannelCredentials> Current();

  // Why the newest files are not in use, or OK.
  absl::Status problem() const;

 private:
  struct Pems;

  explicit TlsFiles(TlsOptions options);

  // Reads and checks the files.
  absl::StatusOr<Pems> Read() const;
  void Use(absl::StatusOr<Pems> read) ABSL_LOCKS_EXCLUDED(mutex_);

  const TlsOptions options_;

  mutable absl::Mutex mutex_;
  std::chrono::steady_clock::time_point next_look_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<const Pems> pems_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<grpc::ChannelCredentials> current_ ABSL_GUARDED_BY(mutex_);
  absl::Status problem_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_CREDENTIALS_H_
