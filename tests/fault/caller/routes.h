// Ways on which a caller sends the four calls, and waits for their answers.
#ifndef IDEMPOTENCY_TESTS_FAULT_CALLER_ROUTES_H_
#define IDEMPOTENCY_TESTS_FAULT_CALLER_ROUTES_H_

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "idempotency/v1/idempotency.pb.h"
#include "tests/fault/caller/recorder.h"

namespace idempotency::fault {

// Thread-safe.
class Route {
 public:
  virtual ~Route() = default;

  virtual absl::StatusOr<v1::ClaimResponse> Send(
      const v1::ClaimRequest& request, std::chrono::milliseconds timeout) = 0;
  virtual absl::StatusOr<v1::FinalizeResponse> Send(
      const v1::FinalizeRequest& request,
      std::chrono::milliseconds timeout) = 0;
  virtual absl::StatusOr<v1::LookupResponse> Send(
      const v1::LookupRequest& request, std::chrono::milliseconds timeout) = 0;
  virtual absl::StatusOr<v1::ReleaseResponse> Send(
      const v1::ReleaseRequest& request, std::chrono::milliseconds timeout) = 0;

  // Whether an answered request is sent no more.
  virtual bool sends_once() const = 0;
  // In a word, for the owner's name.
  virtual std::string name() const = 0;
};

struct Routes {
  std::vector<std::unique_ptr<Route>> plain;  // one a server; each sends once
  std::unique_ptr<Route> hedge;   // to two servers at once, the first answer
  std::unique_ptr<Route> retry;   // gRPC's retryPolicy upon UNAVAILABLE
  std::unique_ptr<Route> client;  // the C++ client, Bulk as it sees fit
  std::unique_ptr<Route> bulk;    // likewise, always Bulk
};

// "127.0.0.1:1,127.0.0.1:2" as one target of gRPC's.
std::string TargetOf(const std::vector<std::string>& servers);

// `recorder` must outlive them.
Routes MakeRoutes(Recorder& recorder, const std::vector<std::string>& servers);

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CALLER_ROUTES_H_
