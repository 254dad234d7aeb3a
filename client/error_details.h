// Under which address a status keeps a detail. Not installed.
#ifndef IDEMPOTENCY_CLIENT_ERROR_DETAILS_H_
#define IDEMPOTENCY_CLIENT_ERROR_DETAILS_H_

namespace idempotency::internal {

inline constexpr char kRetryInfoUrl[] =
    "type.googleapis.com/google.rpc.RetryInfo";

}  // namespace idempotency::internal

#endif  // IDEMPOTENCY_CLIENT_ERROR_DETAILS_H_
