// What gRPC and Protobuf have to say, as lines of the program's own log.
#ifndef IDEMPOTENCY_SERVER_RPC_LIBRARY_LOG_H_
#define IDEMPOTENCY_SERVER_RPC_LIBRARY_LOG_H_

#include <functional>

#include "server/core/log.h"

namespace idempotency {

// From now on, for the whole process, errors of gRPC go to `log` instead of
// standard error, at most ten lines a minute. Protobuf's complaints about
// messages that can't be parsed are dropped: the caller is told, and nobody may
// fill the log from outside. `log` must outlive every gRPC thread; null: all of
// it is dropped.
//
// gRPC tells nobody but its log that a port is accepted from no more, for want
// of file descriptors: it never tries again. Then `listener_lost` is called, in
// a thread of gRPC's; it must not block.
void SendLibraryLogsTo(Log* log, std::function<void()> listener_lost = nullptr);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_RPC_LIBRARY_LOG_H_
