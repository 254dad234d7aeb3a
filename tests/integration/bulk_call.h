// A call sent as the one command of a Bulk stream of its own.
#ifndef IDEMPOTENCY_TESTS_INTEGRATION_BULK_CALL_H_
#define IDEMPOTENCY_TESTS_INTEGRATION_BULK_CALL_H_

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"
#include "grpcpp/support/sync_stream.h"
#include "idempotency/v1/idempotency.grpc.pb.h"

namespace idempotency {

inline void SetCall(const v1::ClaimRequest& request, v1::Command& command) {
  *command.mutable_claim() = request;
}
inline void SetCall(const v1::FinalizeRequest& request, v1::Command& command) {
  *command.mutable_finalize() = request;
}
inline void SetCall(const v1::LookupRequest& request, v1::Command& command) {
  *command.mutable_lookup() = request;
}
inline void SetCall(const v1::ReleaseRequest& request, v1::Command& command) {
  *command.mutable_release() = request;
}

// What the result says, as a unary call would.
inline grpc::Status StatusOf(const v1::Result& result) {
  if (!result.has_error()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(result.error().code()),
          result.error().message(), result.error().SerializeAsString()};
}
inline void ReadAnswer(const v1::Result& result, v1::ClaimResponse& response) {
  if (result.has_claim()) response = result.claim();
}
inline void ReadAnswer(const v1::Result& result,
                       v1::FinalizeResponse& response) {
  if (result.has_finalize()) response = result.finalize();
}
inline void ReadAnswer(const v1::Result& result, v1::LookupResponse& response) {
  if (result.has_lookup()) response = result.lookup();
}
inline void ReadAnswer(const v1::Result& result,
                       v1::ReleaseResponse& response) {
  if (result.has_release()) response = result.release();
}

// Ends with the stream's status, and with the result's where the stream's is
// OK. Fails the test unless an OK stream has exactly one result, of this
// command, with either an error or an answer.
template <typename Request, typename Response>
grpc::Status CallThroughBulk(v1::IdempotencyService::Stub& stub,
                             grpc::ClientContext& context,
                             const Request& request, Response& response) {
  constexpr std::uint64_t kId = 7;
  v1::BulkRequest message;
  v1::Command& command = *message.add_commands();
  command.set_id(kId);
  SetCall(request, command);
  const auto stream = stub.Bulk(&context);
  stream->Write(message);
  stream->WritesDone();
  v1::BulkResponse results;
  v1::BulkResponse more;
  if (stream->Read(&results) && stream->Read(&more)) {
    ADD_FAILURE() << "more than one message of results";
  }
  const grpc::Status status = stream->Finish();
  if (!status.ok()) return status;
  if (results.results_size() != 1 || results.results(0).id() != kId ||
      results.results(0).has_error() ==
          (results.results(0).result_case() != v1::Result::RESULT_NOT_SET)) {
    ADD_FAILURE() << results.ShortDebugString();
    return {grpc::StatusCode::INTERNAL, "no result"};
  }
  ReadAnswer(results.results(0), response);
  return StatusOf(results.results(0));
}

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_INTEGRATION_BULK_CALL_H_
