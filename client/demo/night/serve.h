#ifndef IDEMPOTENCY_CLIENT_DEMO_NIGHT_SERVE_H_
#define IDEMPOTENCY_CLIENT_DEMO_NIGHT_SERVE_H_

#include <string>

#include "absl/status/status.h"
#include "client/demo/night/timeline.h"
#include "grpcpp/impl/service_type.h"

namespace idempotency::night {

// Blocks SIGINT and SIGTERM, so that Serve() can wait for them. To be called
// before any thread is made.
void BlockEndSignals();

// Serves at a free port of 127.0.0.1 until SIGINT or SIGTERM. HOST:PORT is in
// `address_file` once it does. Calls under way are cancelled at the end.
absl::Status Serve(grpc::Service& service, const std::string& address_file,
                   const Timeline& timeline);

}  // namespace idempotency::night

#endif  // IDEMPOTENCY_CLIENT_DEMO_NIGHT_SERVE_H_
