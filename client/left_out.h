// What a Finalize leaves out. For async_client.cc; not installed.
#ifndef IDEMPOTENCY_CLIENT_LEFT_OUT_H_
#define IDEMPOTENCY_CLIENT_LEFT_OUT_H_

#include <cstddef>

#include "idempotency/v1/idempotency.pb.h"

namespace idempotency::internal {

// Leaves out of the response what the server would refuse, so that the record
// becomes final all the same.
void LeaveOutWhatIsRefused(std::size_t body_bytes_max,
                           v1::FinalizeRequest* request);

}  // namespace idempotency::internal

#endif  // IDEMPOTENCY_CLIENT_LEFT_OUT_H_
