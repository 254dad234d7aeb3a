// Follows the server's certificate files and keeps the newest that can be
// served.
#ifndef IDEMPOTENCY_SERVER_RPC_CERTIFICATE_WATCH_H_
#define IDEMPOTENCY_SERVER_RPC_CERTIFICATE_WATCH_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/log.h"
#include "server/core/mutex.h"
#include "server/rpc/certificate_files.h"

namespace idempotency {

class CertificateWatch {
 public:
  // `log` must outlive the watch. Errors are those of LoadCertificates(): a
  // certificate that is not valid by this machine's clock is none, since
  // clocks differ; Look() tells of it.
  static absl::StatusOr<std::unique_ptr<CertificateWatch>> Start(
      CertificateFiles files, Log& log);

  // Reads the files anew; all of them are taken over at once, or none. Files
  // count once two looks in a row have found the same, so that one that is
  // being written is not taken for whole. What does not fit together, and what
  // is not valid by `now` while the certificate in use is, is not taken; the
  // log is told once. It is also told once a day when the certificate in use
  // ends within 14 days or is not valid. By one thread at a time.
  void Look(absl::Time now);

  // What is served to new connections. Thread-safe.
  std::shared_ptr<const Certificates> current() const;

 private:
  CertificateWatch(CertificateFiles files, Certificates current, Log& log);

  void LookAtFiles(absl::Time now);
  absl::StatusOr<Certificates> Replacement(
      const absl::StatusOr<CertificatePems>& read, absl::Time now) const;
  void TellOfExpiry(absl::Time now);

  const CertificateFiles files_;
  Log& log_;

  // Only touched by Look().
  absl::StatusOr<CertificatePems> last_read_;
  std::string told_;  // why the newest files are not in use
  absl::Time expiry_told_ = absl::InfinitePast();

  mutable Mutex mutex_;
  std::shared_ptr<const Certificates> current_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_RPC_CERTIFICATE_WATCH_H_
