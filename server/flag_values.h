// Flags that are also environment variables (--listen, IDEMPOTENCY_LISTEN), and
// the manual made of them.
#ifndef IDEMPOTENCY_SERVER_FLAG_VALUES_H_
#define IDEMPOTENCY_SERVER_FLAG_VALUES_H_

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace idempotency {

// Of flags defined with ABSL_FLAG, in the order of the manual.
using FlagNames = absl::Span<const char* const>;

// Each sets the flags that it finds. INVALID_ARGUMENT names the one that is
// unknown or has a bad value; those before it are set. Not thread-safe.
absl::Status ReadEnvironment(FlagNames names);
absl::Status ReadArguments(FlagNames names, int argc, char** argv);

// To standard output, at most 80 columns wide.
void PrintManual(FlagNames names);

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_FLAG_VALUES_H_
