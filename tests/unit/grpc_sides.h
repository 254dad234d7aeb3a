// gRPC's side of one call and of one stream, for tests without a server: what
// the service asks of gRPC is kept, and the test says how it goes on.
#ifndef IDEMPOTENCY_TESTS_UNIT_GRPC_SIDES_H_
#define IDEMPOTENCY_TESTS_UNIT_GRPC_SIDES_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "idempotency/v1/idempotency.grpc.pb.h"
#include "idempotency/v1/idempotency.pb.h"

namespace idempotency {

// Thread-safe as gRPC is: Finish() may come while the reactor is being bound.
class UnarySide final : public grpc::ServerCallbackUnary {
 public:
  void Bind(grpc::ServerUnaryReactor* reactor) {
    reactor_ = reactor;
    BindReactor(reactor);
    EndOne();
  }

  void Finish(grpc::Status status) override {
    status_ = std::move(status);
    finished_ = true;
    EndOne();
  }
  void SendInitialMetadata() override {}

  // The answer is not sent before Send(), as for a caller that does not read.
  void HoldBack() { ++open_; }
  void Send() { EndOne(); }

  // Has the service answered, and has it been told that gRPC is done?
  bool finished() const { return finished_; }
  bool done() const { return done_; }
  // REQUIRES: finished().
  const grpc::Status& status() const { return status_; }

 private:
  grpc::internal::ServerReactor* reactor() override { return reactor_; }
  void CallOnDone() override {}

  void EndOne() {
    if (--open_ > 0) return;
    reactor_->OnDone();
    done_ = true;
  }

  grpc::ServerUnaryReactor* reactor_ = nullptr;
  grpc::Status status_;
  std::atomic<int> open_{2};  // the handler, and the answer
  std::atomic<bool> finished_{false};
  std::atomic<bool> done_{false};
};

// Of one thread, but for what the service asks, which may come from any.
class BulkSide final
    : public grpc::ServerCallbackReaderWriter<grpc::ByteBuffer,
                                              grpc::ByteBuffer> {
 public:
  using Reactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

  void Bind(Reactor* reactor) {
    reactor_ = reactor;
    BindReactor(reactor);
  }

  // The caller sends a message, or bytes that are none, or closes its side.
  // REQUIRES: reading().
  void Send(const v1::BulkRequest& message) {
    SendBytes(message.SerializeAsString());
  }
  void SendBytes(const std::string& bytes) {
    const grpc::Slice slice(bytes);
    grpc::ByteBuffer message(&slice, 1);
    read_.exchange(nullptr)->Swap(&message);
    reactor_->OnReadDone(true);
  }
  void HalfClose() {
    read_ = nullptr;
    reactor_->OnReadDone(false);
  }
  // The message under way has been sent. REQUIRES: writing().
  void FinishWrite(bool ok = true) {
    writing_ = false;
    reactor_->OnWriteDone(ok);
  }
  void Cancel() { reactor_->OnCancel(); }
  // Nothing of the stream is there afterwards. REQUIRES: end() has a value.
  void Done() {
    if (read_.exchange(nullptr) != nullptr) reactor_->OnReadDone(false);
    reactor_->OnDone();
  }

  bool reading() const { return read_ != nullptr; }
  bool writing() const { return writing_; }
  bool ended() const { return ended_; }
  const std::optional<grpc::Status>& end() const { return end_; }
  // What was written, message by message. Not while something is written.
  const std::vector<v1::BulkResponse>& messages() const { return messages_; }

  void Read(grpc::ByteBuffer* message) override { read_ = message; }
  void Write(const grpc::ByteBuffer* message, grpc::WriteOptions) override {
    grpc::ByteBuffer copy(*message);
    grpc::SerializationTraits<v1::BulkResponse>::Deserialize(
        &copy, &messages_.emplace_back());
    writing_ = true;
  }
  void WriteAndFinish(const grpc::ByteBuffer* message, grpc::WriteOptions how,
                      grpc::Status status) override {
    Write(message, how);
    Finish(std::move(status));
  }
  void Finish(grpc::Status status) override {
    end_ = std::move(status);
    ended_ = true;
  }
  void SendInitialMetadata() override {}

 private:
  grpc::internal::ServerReactor* reactor() override { return reactor_; }
  void CallOnDone() override {}

  Reactor* reactor_ = nullptr;
  std::atomic<grpc::ByteBuffer*> read_{nullptr};
  std::atomic<bool> writing_{false};
  std::atomic<bool> ended_{false};
  std::vector<v1::BulkResponse> messages_;
  std::optional<grpc::Status> end_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_UNIT_GRPC_SIDES_H_
