// The results of a Bulk stream that have not been handed to gRPC yet.
#ifndef IDEMPOTENCY_SERVER_RPC_BULK_OUTBOX_H_
#define IDEMPOTENCY_SERVER_RPC_BULK_OUTBOX_H_

#include <cstddef>
#include <deque>
#include <string>

#include "idempotency/v1/idempotency.pb.h"

namespace idempotency {

// `result` as the wire has it within a BulkResponse. Put one behind another,
// such pieces are a whole BulkResponse.
std::string SerializeResult(const v1::Result& result);

// Gathers what SerializeResult() gave into messages of about
// kBulkMessageBytes, with kBulkCommandsMax results at most. None exceeds
// kMessageBytesMax unless one result does. Not thread-safe.
class BulkOutbox {
 public:
  void Add(std::string result);

  bool empty() const { return messages_.empty(); }
  std::size_t bytes() const { return bytes_; }

  // The oldest message, which is then no longer here. REQUIRES: !empty().
  std::string Take();

 private:
  struct Message {
    std::string bytes;
    std::size_t results = 0;
  };

  std::deque<Message> messages_;
  std::size_t bytes_ = 0;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_RPC_BULK_OUTBOX_H_
