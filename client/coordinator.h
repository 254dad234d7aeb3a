// The coordinator's four calls as something that answers later.
#ifndef IDEMPOTENCY_CLIENT_COORDINATOR_H_
#define IDEMPOTENCY_CLIENT_COORDINATOR_H_

#include <chrono>
#include <functional>
#include <optional>

#include "absl/status/statusor.h"
#include "idempotency/v1/idempotency.pb.h"

namespace idempotency {

struct CallOptions {
  // Instead of the client's timeout and of what Claim adds to it. Zero or
  // negative: the call ends without being sent.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
  // Sent before what else waits to be sent: for a Claim that renews. Finalize
  // and Release always are.
  bool urgent = false;
};

// Called once, in a thread that it must not block.
template <typename Response>
using Answered = std::function<void(absl::StatusOr<Response>)>;

// Thread-safe, and so must every implementation be. A call is answered within
// its timeout, and is safe to make again with the same arguments.
class Coordinator {
 public:
  virtual ~Coordinator() = default;

  // `claim_token` must be set, see NewClaimToken().
  virtual void Claim(const v1::ClaimRequest& request,
                     const CallOptions& options,
                     Answered<v1::ClaimResponse> answered) = 0;
  virtual void Finalize(const v1::FinalizeRequest& request,
                        const CallOptions& options,
                        Answered<v1::FinalizeResponse> answered) = 0;
  virtual void Lookup(const v1::LookupRequest& request,
                      const CallOptions& options,
                      Answered<v1::LookupResponse> answered) = 0;
  virtual void Release(const v1::ReleaseRequest& request,
                       const CallOptions& options,
                       Answered<v1::ReleaseResponse> answered) = 0;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_COORDINATOR_H_
