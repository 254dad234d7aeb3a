#include "server/rpc/certificate_watch.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace idempotency {
namespace {

constexpr absl::Duration kExpiryNotice = absl::Hours(14 * 24);
constexpr absl::Duration kExpiryPause = absl::Hours(24);

std::string Shown(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", time, absl::UTCTimeZone());
}

LogFields ValidityFields(const Certificates& certificates) {
  return {{"not_before", Shown(certificates.not_before)},
          {"not_after", Shown(certificates.not_after)}};
}

}  // namespace

absl::StatusOr<std::unique_ptr<CertificateWatch>> CertificateWatch::Start(
    CertificateFiles files, Log& log) {
  absl::StatusOr<Certificates> loaded = LoadCertificates(files);
  if (!loaded.ok()) return loaded.status();
  return std::unique_ptr<CertificateWatch>(
      new CertificateWatch(std::move(files), *std::move(loaded), log));
}

CertificateWatch::CertificateWatch(CertificateFiles files, Certificates current,
                                   Log& log)
    : files_(std::move(files)),
      log_(log),
      last_read_(current.pems),
      current_(std::make_shared<const Certificates>(std::move(current))) {}

std::shared_ptr<const Certificates> CertificateWatch::current() const {
  MutexLock lock(mutex_);
  return current_;
}

void CertificateWatch::Look(absl::Time now) {
  LookAtFiles(now);
  TellOfExpiry(now);
}

void CertificateWatch::LookAtFiles(absl::Time now) {
  absl::StatusOr<CertificatePems> read = ReadFiles(files_);
  const bool settled = read == last_read_;
  last_read_ = read;
  if (!settled) return;
  if (read.ok() && *read == current()->pems) {
    told_.clear();
    return;
  }
  absl::StatusOr<Certificates> replacement = Replacement(read, now);
  if (!replacement.ok()) {
    std::string error(replacement.status().message());
    if (error != told_) {
      log_.Write(Severity::kWarning,
                 "the new certificate files can't be used; new connections "
                 "still get the last good ones",
                 ErrorField(replacement.status()));
    }
    told_ = std::move(error);
    return;
  }
  told_.clear();
  expiry_told_ = absl::InfinitePast();
  {
    MutexLock lock(mutex_);
    current_ = std::make_shared<const Certificates>(*std::move(replacement));
  }
  log_.Write(Severity::kInfo, "new certificate files are in use",
             ValidityFields(*current()));
}

absl::StatusOr<Certificates> CertificateWatch::Replacement(
    const absl::StatusOr<CertificatePems>& read, absl::Time now) const {
  if (!read.ok()) return read.status();
  absl::StatusOr<Certificates> fitting = CheckFit(files_, *read);
  if (fitting.ok() && !fitting->ValidAt(now) && current()->ValidAt(now)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--tls_certificate: ", files_.tls_certificate, " is valid from ",
        Shown(fitting->not_before), " to ", Shown(fitting->not_after),
        ", and the one in use still is"));
  }
  return fitting;
}

void CertificateWatch::TellOfExpiry(absl::Time now) {
  const std::shared_ptr<const Certificates> in_use = current();
  if (now - expiry_told_ < kExpiryPause) return;
  if (in_use->ValidAt(now) && in_use->not_after - now > kExpiryNotice) return;
  expiry_told_ = now;
  if (in_use->ValidAt(now)) {
    log_.Write(Severity::kWarning,
               "the server's certificate expires soon; replace the files, no "
               "restart is needed",
               ValidityFields(*in_use));
  } else {
    log_.Write(Severity::kError,
               "the server's certificate is not valid by this machine's clock; "
               "clients will refuse it",
               ValidityFields(*in_use));
  }
}

}  // namespace idempotency
