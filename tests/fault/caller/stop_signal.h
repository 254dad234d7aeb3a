// When a program of the fault run is to end: upon SIGTERM or SIGINT and, where
// its standard input is a pipe or a socket, upon the line `stop` on it or its
// end, with which the harness is gone.
#ifndef IDEMPOTENCY_TESTS_FAULT_CALLER_STOP_SIGNAL_H_
#define IDEMPOTENCY_TESTS_FAULT_CALLER_STOP_SIGNAL_H_

#include <chrono>
#include <string>

namespace idempotency::fault {

// One a program, made before the first thread, which inherits what is blocked.
// Not thread-safe.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // False: not within `timeout`. Other lines are passed over.
  bool WaitFor(std::chrono::milliseconds timeout);
  void Wait();

 private:
  bool ReadInput();

  int signals_ = -1;
  int input_fd_ = -1;
  bool stopped_ = false;
  std::string input_;
};

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CALLER_STOP_SIGNAL_H_
