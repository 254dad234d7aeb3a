#include "client/left_out.h"

#include "client/bulk_command.h"

namespace idempotency::internal {
namespace {

constexpr std::size_t kMessageBytesMax = std::size_t{4} << 20;

}  // namespace

void LeaveOutWhatIsRefused(std::size_t body_bytes_max,
                           v1::FinalizeRequest* request) {
  if (!request->has_response()) return;
  v1::Response* const response = request->mutable_response();
  // Work that was done is recorded, whatever its response looks like.
  if (response->body_omitted()) response->clear_body();
  if (response->headers_omitted() || !NamesAreText(*response)) {
    response->clear_headers();
    response->set_headers_omitted(true);
  }
  if (response->body().size() > body_bytes_max ||
      (!response->body().empty() &&
       request->ByteSizeLong() > kMessageBytesMax)) {
    response->clear_body();
    response->set_body_omitted(true);
  }
  if (request->ByteSizeLong() > kMessageBytesMax) {
    response->clear_headers();
    response->set_headers_omitted(true);
  }
}

}  // namespace idempotency::internal
