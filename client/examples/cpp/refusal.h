// Why the coordinator refused, for the problem that the user is answered with.
#ifndef IDEMPOTENCY_CLIENT_EXAMPLES_CPP_REFUSAL_H_
#define IDEMPOTENCY_CLIENT_EXAMPLES_CPP_REFUSAL_H_

#include <httplib.h>

#include "client/http/middleware.h"

namespace idempotency::payments {

// For HttpMiddlewareOptions::notice: keeps the error until the same thread has
// answered.
void KeepRefusal(const HttpNotice& notice);

// `guarded`, whose problems then have the members `reason` (google.rpc
// .ErrorInfo) and `field` (google.rpc.BadRequest) of the error behind them.
httplib::Server::Handler ExplainRefusals(httplib::Server::Handler guarded);

}  // namespace idempotency::payments

#endif  // IDEMPOTENCY_CLIENT_EXAMPLES_CPP_REFUSAL_H_
