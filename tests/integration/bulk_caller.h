// A caller of Bulk with one stream.
#ifndef IDEMPOTENCY_TESTS_INTEGRATION_BULK_CALLER_H_
#define IDEMPOTENCY_TESTS_INTEGRATION_BULK_CALLER_H_

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "grpcpp/client_context.h"
#include "grpcpp/support/sync_stream.h"
#include "idempotency/v1/idempotency.grpc.pb.h"
#include "tests/integration/bulk_call.h"

namespace idempotency {

template <typename Request>
v1::Command CommandOf(std::uint64_t id, const Request& request) {
  v1::Command command;
  command.set_id(id);
  SetCall(request, command);
  return command;
}

// Reads in a thread of its own from Read() on. One thread sends; the rest is
// thread-safe.
class BulkCaller {
 public:
  static constexpr std::chrono::seconds kPatience{60};

  explicit BulkCaller(v1::IdempotencyService::Stub& stub) {
    context_.set_deadline(std::chrono::system_clock::now() + kPatience);
    stream_ = stub.Bulk(&context_);
  }
  ~BulkCaller() {
    Cancel();
    End();
  }

  // False once the stream has ended. Blocks as flow control says.
  bool Send(const std::vector<v1::Command>& commands) {
    v1::BulkRequest message;
    message.mutable_commands()->Reserve(static_cast<int>(commands.size()));
    for (const v1::Command& command : commands) {
      *message.add_commands() = command;
    }
    return stream_->Write(message);
  }
  void HalfClose() { stream_->WritesDone(); }
  void Cancel() { context_.TryCancel(); }

  void Read() {
    reader_ = std::thread([this] {
      v1::BulkResponse message;
      while (stream_->Read(&message)) {
        std::lock_guard lock(mutex_);
        for (v1::Result& result : *message.mutable_results()) {
          const std::uint64_t id = result.id();
          results_[id].push_back(std::move(result));
          ++count_;
        }
        changed_.notify_all();
      }
      std::lock_guard lock(mutex_);
      over_ = true;
      changed_.notify_all();
    });
  }

  // Waits for `count` results in all; false if the stream ended before.
  bool Await(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return over_ || count_ >= count; });
    return count_ >= count;
  }
  // The results of that command, of which there is one unless `id` was used
  // again.
  std::vector<v1::Result> Of(std::uint64_t id) {
    std::lock_guard lock(mutex_);
    return results_[id];
  }
  // Waits for the first of them; an empty one if there is none.
  v1::Result AwaitResult(std::uint64_t id) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return over_ || !results_[id].empty(); });
    return results_[id].empty() ? v1::Result() : results_[id].front();
  }
  std::size_t count() {
    std::lock_guard lock(mutex_);
    return count_;
  }

  // Reads to the end of the stream, if nobody does, and gives its status.
  const grpc::Status& End() {
    if (ended_) return status_;
    if (!reader_.joinable()) Read();
    reader_.join();
    ended_ = true;
    status_ = stream_->Finish();
    return status_;
  }
  const grpc::ClientContext& context() const { return context_; }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<
      grpc::ClientReaderWriterInterface<v1::BulkRequest, v1::BulkResponse>>
      stream_;
  std::thread reader_;
  bool ended_ = false;
  grpc::Status status_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, std::vector<v1::Result>> results_;
  std::size_t count_ = 0;
  bool over_ = false;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_INTEGRATION_BULK_CALLER_H_
