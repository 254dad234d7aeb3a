#include "client/grpc/recorded_call.h"

#include <grpc/grpc.h>
#include <grpc/slice.h>

#include <charconv>
#include <cstddef>
#include <optional>

#include "client/grpc/call_status.h"

namespace idempotency {
namespace {

using grpc::StatusCode;

constexpr char kStatus[] = "grpc-status";
constexpr char kMessage[] = "grpc-message";
constexpr char kDetails[] = "grpc-status-details-bin";
constexpr char kTrue[] = "true";
// What a record keeps of headers.
constexpr int kHeadersMax = 64;
constexpr std::size_t kHeaderBytesMax = std::size_t{16} << 10;

grpc_slice SliceOf(std::string_view text) {
  return grpc_slice_from_static_buffer(text.data(), text.size());
}

// gRPC ends the process over others.
bool IsSendable(std::string_view name, std::string_view value) {
  const grpc_slice key = SliceOf(name);
  return grpc_header_key_is_legal(key) != 0 &&
         (grpc_is_binary_header(key) != 0 ||
          grpc_header_nonbin_value_is_legal(SliceOf(value)) != 0);
}

void AddHeader(std::string_view name, std::string_view value,
               v1::Response& response) {
  v1::Header* const header = response.add_headers();
  header->set_name(name.data(), name.size());
  header->set_value(value.data(), value.size());
}

// Adds it where there is room for it and for the mark.
bool AddIfItFits(std::string_view name, std::string_view value,
                 v1::Response& response) {
  constexpr std::size_t kMarkBytes =
      sizeof(kHeadersOmittedTrailer) + sizeof(kTrue);
  std::size_t bytes = kMarkBytes + name.size() + value.size();
  for (const v1::Header& header : response.headers()) {
    bytes += header.name().size() + header.value().size();
  }
  if (bytes > kHeaderBytesMax || response.headers_size() + 1 >= kHeadersMax) {
    return false;
  }
  AddHeader(name, value, response);
  return true;
}

std::optional<StatusCode> ParseCode(std::string_view text) {
  int code = -1;
  const char* const end = text.data() + text.size();
  const auto [parsed, error] = std::from_chars(text.data(), end, code);
  if (error != std::errc() || parsed != end || code < 0 ||
      code > StatusCode::UNAUTHENTICATED) {
    return std::nullopt;
  }
  return static_cast<StatusCode>(code);
}

StatusCode NearestCode(int http_status) {
  switch (http_status) {
    case 401:
      return StatusCode::UNAUTHENTICATED;
    case 403:
      return StatusCode::PERMISSION_DENIED;
    case 404:
      return StatusCode::NOT_FOUND;
    case 409:
      return StatusCode::ABORTED;
    case 429:
      return StatusCode::RESOURCE_EXHAUSTED;
    case 499:
      return StatusCode::CANCELLED;
    case 501:
      return StatusCode::UNIMPLEMENTED;
    case 503:
      return StatusCode::UNAVAILABLE;
    case 504:
      return StatusCode::DEADLINE_EXCEEDED;
    default:
      break;
  }
  if (http_status == 200) return StatusCode::OK;
  return http_status >= 400 && http_status < 500 ? StatusCode::INVALID_ARGUMENT
                                                 : StatusCode::UNKNOWN;
}

GrpcAnswer NotKept() {
  return {.status = CallStatus(
              StatusCode::DATA_LOSS, "RESPONSE_NOT_KEPT",
              "the operation was executed; its response was too long to keep")};
}

GrpcAnswer NotOfGrpc() {
  return {.status = CallStatus(StatusCode::FAILED_PRECONDITION, "KEY_REUSED",
                               "the response recorded under this key is not "
                               "one of gRPC")};
}

}  // namespace

int HttpStatusOf(StatusCode code) {
  switch (code) {
    case StatusCode::OK:
      return 200;
    case StatusCode::INVALID_ARGUMENT:
    case StatusCode::FAILED_PRECONDITION:
    case StatusCode::OUT_OF_RANGE:
      return 400;
    case StatusCode::UNAUTHENTICATED:
      return 401;
    case StatusCode::PERMISSION_DENIED:
      return 403;
    case StatusCode::NOT_FOUND:
      return 404;
    case StatusCode::ALREADY_EXISTS:
    case StatusCode::ABORTED:
      return 409;
    case StatusCode::RESOURCE_EXHAUSTED:
      return 429;
    case StatusCode::CANCELLED:
      return 499;
    case StatusCode::UNIMPLEMENTED:
      return 501;
    case StatusCode::UNAVAILABLE:
      return 503;
    case StatusCode::DEADLINE_EXCEEDED:
      return 504;
    default:
      return 500;
  }
}

bool IsHandedOn(std::string_view name, std::string_view value) {
  return !name.starts_with("grpc-") && name != "content-type" &&
         name != "user-agent" && name != "te" && IsSendable(name, value);
}

v1::Response ToResponse(const GrpcAnswer& answer) {
  const grpc::Status& status = answer.status;
  v1::Response response;
  response.set_status_code(HttpStatusOf(status.error_code()));
  AddHeader(kStatus, std::to_string(status.error_code()), response);
  bool whole = true;
  const auto add = [&](std::string_view name, std::string_view value) {
    whole = AddIfItFits(name, value, response) && whole;
  };
  if (!status.error_message().empty()) add(kMessage, status.error_message());
  if (!status.error_details().empty()) add(kDetails, status.error_details());
  const int without_trailers = response.headers_size();
  for (const auto& [name, value] : answer.trailers) {
    if (IsHandedOn(name, value) && name != kReplayedTrailer) add(name, value);
  }
  if (!whole) {
    // Some of the trailers would be taken for all of them.
    while (response.headers_size() > without_trailers) {
      response.mutable_headers()->RemoveLast();
    }
    AddHeader(kHeadersOmittedTrailer, kTrue, response);
  }
  if (status.ok()) response.set_body(answer.message);
  return response;
}

GrpcAnswer ToAnswer(const v1::Response& response) {
  std::optional<StatusCode> code;
  std::string message;
  std::string details;
  GrpcAnswer answer;
  for (const v1::Header& header : response.headers()) {
    if (header.name() == kStatus) {
      code = ParseCode(header.value());
    } else if (header.name() == kMessage) {
      message = header.value();
    } else if (header.name() == kDetails) {
      details = header.value();
    } else if (header.name() != kReplayedTrailer &&
               IsHandedOn(header.name(), header.value())) {
      answer.trailers.emplace_back(header.name(), header.value());
    }
  }
  if (response.headers_omitted()) {
    code = NearestCode(response.status_code());
    answer.trailers = {{kHeadersOmittedTrailer, kTrue}};
  }
  if (!code.has_value()) return NotOfGrpc();
  if (*code != StatusCode::OK) {
    answer.status = grpc::Status(*code, message, details);
    return answer;
  }
  if (response.body_omitted()) return NotKept();
  answer.message = response.body();
  return answer;
}

bool LeavesUnknown(const grpc::Status& status) {
  return status.error_code() == StatusCode::CANCELLED;
}

}  // namespace idempotency
