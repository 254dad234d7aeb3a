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
//
// `port_lost` is called, if given, when gRPC has given up a listening port, as
// it does when the process may open no more files: it takes no connection there
// ever again, and goes on with those it has. On a thread of gRPC's, which it
// must not block, and maybe again for another port.
void SendLibraryLogsTo(Log* log, void (*port_lost)() = nullptr);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_RPC_LIBRARY_LOG_H_
