#ifndef IDEMPOTENCY_TESTS_SUPPORT_PORT_H_
#define IDEMPOTENCY_TESTS_SUPPORT_PORT_H_

namespace idempotency {

// A TCP port that nobody listens on at 127.0.0.1 and that no other test
// process gets from here while this one lives. Outside the range from which
// the system picks ports for outgoing connections. Aborts the test program if
// there is none. Thread-safe.
int FreePort();

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SUPPORT_PORT_H_
