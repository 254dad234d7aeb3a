// The four calls on the wire: their messages, how each is validated, and what
// has to be kept of the request until it is answered.
#ifndef IDEMPOTENCY_SERVER_RPC_WIRE_CALLS_H_
#define IDEMPOTENCY_SERVER_RPC_WIRE_CALLS_H_

#include <chrono>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "idempotency/v1/idempotency.pb.h"
#include "server/core/metrics.h"
#include "server/core/types.h"
#include "server/rpc/options.h"
#include "server/rpc/validation.h"

namespace idempotency {

struct ClaimWire {
  static constexpr CallKind kKind = CallKind::kClaim;
  using Request = v1::ClaimRequest;
  using Response = v1::ClaimResponse;
  using Outcome = ClaimOutcome;

  static auto Validate(const Request& request, const ServiceOptions&) {
    return ValidateClaim(request);
  }
  // REQUIRES: Validate() accepted `request`.
  static std::chrono::nanoseconds Wait(const Request& request) {
    return absl::ToChronoNanoseconds(WaitOf(request));
  }
  static bool Waits(const Request& request) { return request.has_wait(); }
  static RecordId Shown(const Request& request) {
    return {.scope = request.scope(), .key = request.key()};
  }
  static Response& In(v1::Result& result) { return *result.mutable_claim(); }
};

// What the others have in common.
struct NeverWaits {
  template <typename Request>
  static std::chrono::nanoseconds Wait(const Request&) {
    return {};
  }
  template <typename Request>
  static bool Waits(const Request&) {
    return false;
  }
};

struct FinalizeWire : NeverWaits {
  static constexpr CallKind kKind = CallKind::kFinalize;
  using Request = v1::FinalizeRequest;
  using Response = v1::FinalizeResponse;
  using Outcome = FinalizeOutcome;

  static auto Validate(const Request& request, const ServiceOptions& options) {
    return ValidateFinalize(request, options.body_bytes_max);
  }
  static RecordId Shown(const Request&) { return {}; }
  static Response& In(v1::Result& result) { return *result.mutable_finalize(); }
};

struct LookupWire : NeverWaits {
  static constexpr CallKind kKind = CallKind::kLookup;
  using Request = v1::LookupRequest;
  using Response = v1::LookupResponse;
  using Outcome = LookupOutcome;

  static auto Validate(const Request& request, const ServiceOptions&) {
    return ValidateLookup(request);
  }
  static RecordId Shown(const Request& request) {
    return {.scope = request.scope(), .key = request.key()};
  }
  static Response& In(v1::Result& result) { return *result.mutable_lookup(); }
};

struct ReleaseWire : NeverWaits {
  static constexpr CallKind kKind = CallKind::kRelease;
  using Request = v1::ReleaseRequest;
  using Response = v1::ReleaseResponse;
  using Outcome = ReleaseOutcome;

  static auto Validate(const Request& request, const ServiceOptions&) {
    return ValidateRelease(request);
  }
  static RecordId Shown(const Request&) { return {}; }
  static Response& In(v1::Result& result) { return *result.mutable_release(); }
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_RPC_WIRE_CALLS_H_
