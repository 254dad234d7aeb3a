// Executes an operation once for its key: claims it, runs the caller's function
// if nobody has, records what it answers, and gives everybody else that answer.
//
//   auto once = idempotency::RunOnce::Connect("127.0.0.1:50051");
//   const idempotency::RunResult result = once->Run(
//       {.scope = "payments",
//        .key = key_of_the_caller,
//        .request_hash = idempotency::RequestHash(
//            {"POST", "/payments", "application/json", body})},
//       [&](idempotency::Execution& execution) {
//         return idempotency::Respond(
//             201, wallet.Charge(amount, execution.downstream_key()));
//       });
//   if (result.has_response()) return result.response;
//
// While the function runs its lease is renewed. A function that throws leaves
// its outcome unknown: the next one is told. Nothing is executed upon any
// error.
#ifndef IDEMPOTENCY_CLIENT_RUN_ONCE_H_
#define IDEMPOTENCY_CLIENT_RUN_ONCE_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "client/client.h"
#include "client/coordinator.h"
#include "client/execution.h"
#include "client/executor.h"
#include "client/operation.h"
#include "client/request_hash.h"  // For filling an Operation.

namespace idempotency {

class OnceRuns;

struct RunOnceOptions {
  // Of the calls, and of the connection that Connect() makes.
  ClientOptions client = {};
  // Runs what is handed to Start(): functions, resolvers, results. Null: a
  // pool of `threads`.
  std::shared_ptr<Executor> executor = nullptr;
  int threads = 4;  // 1 to 256
  // Operations that may be under way at a time, those included that still
  // settle after their result was delivered; more are refused. Each may hold a
  // response.
  std::size_t operations_max = 20'000;
  // How long ~RunOnce waits for what is under way before it cancels calls.
  std::chrono::milliseconds finish_timeout{10'000};
};

// Thread-safe. A function, a resolver and a callback must not destroy the
// object that runs them; callbacks must not throw. A process that forks makes
// its own in the child.
class RunOnce {
 public:
  static std::unique_ptr<RunOnce> Connect(const std::string& target,
                                          const RunOnceOptions& options = {});

  // Over calls of another kind: a test's, a simulation's. `options.client`
  // counts only for its environment.
  explicit RunOnce(std::shared_ptr<Coordinator> coordinator,
                   const RunOnceOptions& options = {});

  // Hangs every operation up, sends what is to be settled once more, and waits
  // until all have ended: a function for as long as it runs. After
  // `finish_timeout` the calls under way are cancelled, if Connect() made the
  // connection; what each of them was to settle is then sent for a last
  // `finalize_timeout`. In an executor of the caller's own the last results may
  // still be queued then.
  ~RunOnce();
  RunOnce(const RunOnce&) = delete;
  RunOnce& operator=(const RunOnce&) = delete;

  // Blocks until the operation has a result. `function` and `resolve` run in
  // the calling thread, at most once each and never beside each other.
  // `resolve` may be null: an operation that is in doubt and held is then not
  // touched, and one that is not held is executed with
  // Execution::abandoned() set.
  RunResult Run(const Operation& operation,
                const std::function<FunctionResult(Execution&)>& function,
                const std::function<Resolution(Execution&)>& resolve = nullptr);

  // The same without a thread for each operation. `function` and `resolve` are
  // called in the executor, return soon, and answer through their Completion,
  // from any thread. `done` is called once, in the executor, also when the
  // caller has hung up.
  std::unique_ptr<Running> Start(const Operation& operation,
                                 AsyncFunction function,
                                 std::function<void(const RunResult&)> done,
                                 AsyncResolver resolve = nullptr);

  // Operations under way.
  std::size_t operations() const;

 private:
  // In the order of their use: what is below uses what is above.
  std::shared_ptr<Executor> executor_;
  std::shared_ptr<Coordinator> coordinator_;
  // Null: the calls are not only this object's.
  std::function<void()> cancel_calls_;
  const std::chrono::milliseconds finish_timeout_;
  const std::shared_ptr<OnceRuns> runs_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_RUN_ONCE_H_
