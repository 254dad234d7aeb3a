// What gRPC and Protobuf have to say, as lines of the program's own log.
#ifndef IDEMPOTENCY_SERVER_RPC_LIBRARY_LOG_H_
#define IDEMPOTENCY_SERVER_RPC_LIBRARY_LOG_H_

#include "server/core/log.h"

namespace idempotency {

// From now on, for the whole process, errors of gRPC go to `log` instead of
// standard error, at most ten lines a minute. Protobuf's complaints about
// messages that can't be parsed are dropped: the caller is told, and nobody may
// fill the log from outside. `log` must outlive every gRPC thread; null: all of
// it is dropped.
void SendLibraryLogsTo(Log* log);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_RPC_LIBRARY_LOG_H_
