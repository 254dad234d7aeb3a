// A TcpGate steered by lines of text.
#ifndef IDEMPOTENCY_TESTS_FAULT_GATE_GATE_COMMANDS_H_
#define IDEMPOTENCY_TESTS_FAULT_GATE_GATE_COMMANDS_H_

#include <string>

#include "tests/support/tcp_gate.h"

namespace idempotency::fault {

// What is behind the gate, and so what an answer looks like.
enum class Behind { kPostgres, kGrpc };

// The commands; what each does, tcp_gate.h says:
//
//   open  refuse  cut  blackhole
//   stall MS
//   swallow on|off
//   delay REQUEST_MS REPLY_MS
//   throttle BYTES_PER_SECOND
//   cut_after_next_request [TEXT_IN_IT]
//   cut_at_byte request|reply N
//   half_close_at_byte request|reply N
//   half_close request|reply
//   counters
//
// Returns the line that answers: "ok", the counters behind it; or
// "error ...".
std::string RunGateCommand(TcpGate& gate, Behind behind,
                           const std::string& line);

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_GATE_GATE_COMMANDS_H_
