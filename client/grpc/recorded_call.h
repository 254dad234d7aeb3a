// A gRPC answer as the coordinator records it, and back.
//
//   status_code  the HTTP mapping of the code (google/rpc/code.proto), so that
//                a policy's rule for 500 and above holds for gRPC too
//   headers      grpc-status (decimal); grpc-message and
//                grpc-status-details-bin unless they are empty; then the
//                trailers. Values are those of gRPC's API: text is not
//                percent-encoded, the bytes of "-bin" are not base64
//   body         the serialised message of an OK; empty otherwise
//
// Initial metadata is not recorded. Nor are trailers that belong to one
// transfer ("grpc-...", "content-type") or that gRPC would not send.
#ifndef IDEMPOTENCY_CLIENT_GRPC_RECORDED_CALL_H_
#define IDEMPOTENCY_CLIENT_GRPC_RECORDED_CALL_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grpcpp/support/status.h"
#include "idempotency/v1/idempotency.pb.h"

namespace idempotency {

// Names in lower case, in the order in which they are sent.
using GrpcMetadata = std::vector<std::pair<std::string, std::string>>;

struct GrpcAnswer {
  grpc::Status status;
  GrpcMetadata trailers = {};
  std::string message = {};  // serialised; of an OK
};

// Trailers of answers that did not come from the handler just now: they are
// "true". The second marks one whose trailers, or whose details, were too large
// to keep.
inline constexpr char kReplayedTrailer[] = "idempotent-replayed";
inline constexpr char kHeadersOmittedTrailer[] = "idempotent-headers-omitted";

// As google/rpc/code.proto has it. 500 for what is no code.
int HttpStatusOf(grpc::StatusCode code);

// Metadata that gRPC can send, under none of the names that each transfer makes
// anew.
bool IsHandedOn(std::string_view name, std::string_view value);

// Where the headers are longer than a record keeps (64, or 16 KiB), it holds
// the code and as much of message and details as fits, and says so: unlike
// `headers_omitted` that leaves the code known.
v1::Response ToResponse(const GrpcAnswer& answer);

// What is replayed: without the marks, but for kHeadersOmittedTrailer.
// DATA_LOSS for an OK whose message was not kept; FAILED_PRECONDITION where the
// response is not one of gRPC. Without its headers the code is the one nearest
// to the HTTP status.
GrpcAnswer ToAnswer(const v1::Response& response);

// CANCELLED: it tells nobody how far a handler came, and most say it because
// their caller hung up, who would be given it for ever.
bool LeavesUnknown(const grpc::Status& status);

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_GRPC_RECORDED_CALL_H_
