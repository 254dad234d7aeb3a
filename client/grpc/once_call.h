// What a gRPC call that is to be executed once is made of, whatever serves it:
// its key, its rule, its operation, and the answer to its caller.
#ifndef IDEMPOTENCY_CLIENT_GRPC_ONCE_CALL_H_
#define IDEMPOTENCY_CLIENT_GRPC_ONCE_CALL_H_

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "client/grpc/recorded_call.h"
#include "client/operation.h"
#include "grpcpp/support/status.h"
#include "grpcpp/support/string_ref.h"

namespace idempotency {

// What holds for the calls of a method. The fields are those of Operation.
struct OnceRule {
  std::string scope;
  std::string policy = {};
  // A call without a key is refused. Otherwise it runs without a claim.
  bool required = true;
  // While the coordinator is away, calls run without a claim: twice, if they
  // come twice. Otherwise they are answered UNAVAILABLE. It also opens when
  // this process has as many operations under way as RunOnceOptions allows.
  bool fail_open = false;
  std::optional<std::chrono::milliseconds> lease = std::nullopt;
  std::optional<std::chrono::milliseconds> max_run_time = std::nullopt;
  // How long a duplicate waits for the other one's end. This and the next one
  // are less where the call's deadline comes earlier.
  std::chrono::milliseconds wait{0};
  std::chrono::milliseconds claim_timeout{5'000};
  std::chrono::milliseconds finalize_timeout{5'000};
  std::string owner = {};
  // Told, for logs and metrics, of what the caller is told less about, or
  // nothing: results without a response, with one that is not recorded, or
  // with that of another attempt (kWinner). Called in any thread before the
  // caller is answered, does not block, does not throw. Null: nobody is.
  std::function<void(std::string_view method, const RunResult&)> notice =
      nullptr;
};

// The metadata that holds the key: its value, byte for byte.
inline constexpr char kKeyMetadata[] = "idempotency-key";

// A call's key, or none; or why the call is refused, INVALID_ARGUMENT.
struct CallKey {
  std::optional<std::string> key = std::nullopt;
  grpc::Status refusal = grpc::Status::OK;
};
CallKey KeyOf(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata,
              bool required);

// `method` is the path, "/shop.Payments/Charge". The request hash is that of
// POST, the path, "application/grpc" and the serialised message
// (request_hash.h).
Operation OperationOf(const OnceRule& rule, std::string_view method,
                      std::string key, std::string_view message,
                      std::chrono::system_clock::time_point deadline);

// Tells `notice`, if the result is worth it.
void Notify(const OnceRule& rule, std::string_view method,
            const RunResult& result);

// For the caller, with the mark where it is somebody else's response.
GrpcAnswer AnswerOf(const RunResult& result);
// Of a handler that ran without a claim.
GrpcAnswer AnswerOf(const FunctionResult& result);

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_GRPC_ONCE_CALL_H_
