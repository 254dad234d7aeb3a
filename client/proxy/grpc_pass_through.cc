#include "client/proxy/grpc_pass_through.h"

#include <utility>

namespace idempotency::internal {

class GrpcPassThrough::CallerSide final
    : public grpc::ServerGenericBidiReactor {
 public:
  explicit CallerSide(GrpcPassThrough& pass) : pass_(pass) {}

  void OnSendInitialMetadataDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override { pass_.service_context_.TryCancel(); }
  void OnDone() override { pass_.SideDone(); }

 private:
  GrpcPassThrough& pass_;
};

class GrpcPassThrough::ServiceSide final
    : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit ServiceSide(GrpcPassThrough& pass) : pass_(pass) {}

  void Start();
  // The caller's next message, in up_, or its end.
  void SendUp(bool is_message);
  void ReadNext() { StartRead(&pass_.down_); }

  void OnReadInitialMetadataDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnWritesDoneDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  static constexpr int kDirections = 2;

  // After each change of what is guarded: whether the upward hold is to go now.
  bool TakeUpwardHold() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UpwardDone();

  GrpcPassThrough& pass_;

  Mutex mutex_;
  bool sending_up_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  // the service's messages
  bool upward_hold_ ABSL_GUARDED_BY(mutex_) = true;
};

// ----------------------------------------------------------- the caller's side

void GrpcPassThrough::CallerSide::OnSendInitialMetadataDone(bool) {
  pass_.service_->ReadNext();
}

void GrpcPassThrough::CallerSide::OnReadDone(bool ok) {
  // A stream that broke off must not look to the service like one that ended.
  if (!ok && pass_.caller_context_.IsCancelled()) {
    return pass_.service_context_.TryCancel();
  }
  pass_.service_->SendUp(ok);
}

void GrpcPassThrough::CallerSide::OnWriteDone(bool ok) {
  if (!ok) pass_.service_context_.TryCancel();
  pass_.service_->ReadNext();
}

// ---------------------------------------------------------- the service's side

void GrpcPassThrough::ServiceSide::Start() {
  pass_.upstream_->stub().PrepareBidiStreamingCall(
      &pass_.service_context_, pass_.caller_context_.method(), {}, this);
  AddMultipleHolds(kDirections);
  StartCall();
}

void GrpcPassThrough::ServiceSide::SendUp(bool is_message) {
  {
    MutexLock lock(mutex_);
    // The service wants no more, and gRPC may be done with its call.
    if (ended_) return;
    sending_up_ = true;
  }
  if (is_message) {
    StartWrite(&pass_.up_);
  } else {
    StartWritesDone();
  }
}

bool GrpcPassThrough::ServiceSide::TakeUpwardHold() {
  return ended_ && !sending_up_ && std::exchange(upward_hold_, false);
}

void GrpcPassThrough::ServiceSide::UpwardDone() {
  bool take_hold;
  {
    MutexLock lock(mutex_);
    sending_up_ = false;
    take_hold = TakeUpwardHold();
  }
  if (take_hold) RemoveHold();
}

void GrpcPassThrough::ServiceSide::OnReadInitialMetadataDone(bool ok) {
  if (!ok) return ReadNext();
  for (auto& [name, value] :
       HandedOn(pass_.service_context_.GetServerInitialMetadata())) {
    pass_.caller_context_.AddInitialMetadata(name, value);
  }
  pass_.caller_->StartSendInitialMetadata();
}

void GrpcPassThrough::ServiceSide::OnReadDone(bool ok) {
  if (ok) return pass_.caller_->StartWrite(&pass_.down_);
  bool take_hold;
  {
    MutexLock lock(mutex_);
    ended_ = true;
    take_hold = TakeUpwardHold();
  }
  if (take_hold) RemoveHold();
  RemoveHold();
}

void GrpcPassThrough::ServiceSide::OnWriteDone(bool ok) {
  // First: what is read next may be on its way up before this returns.
  UpwardDone();
  if (ok) pass_.caller_->StartRead(&pass_.up_);
}

void GrpcPassThrough::ServiceSide::OnWritesDoneDone(bool) { UpwardDone(); }

void GrpcPassThrough::ServiceSide::OnDone(const grpc::Status& status) {
  for (auto& [name, value] :
       HandedOn(pass_.service_context_.GetServerTrailingMetadata())) {
    pass_.caller_context_.AddTrailingMetadata(name, value);
  }
  pass_.caller_->Finish(status);
  pass_.SideDone();
}

// ------------------------------------------------------------------------ both

grpc::ServerGenericBidiReactor* GrpcPassThrough::Start(
    std::shared_ptr<GrpcUpstream> upstream, std::shared_ptr<void> slot,
    grpc::GenericCallbackServerContext& context) {
  auto* const pass =
      new GrpcPassThrough(std::move(upstream), std::move(slot), context);
  grpc::ServerGenericBidiReactor* const caller = pass->caller_.get();
  // gRPC keeps what is asked of the caller's side until that is returned.
  caller->StartRead(&pass->up_);
  pass->service_->Start();
  return caller;
}

GrpcPassThrough::GrpcPassThrough(std::shared_ptr<GrpcUpstream> upstream,
                                 std::shared_ptr<void> slot,
                                 grpc::GenericCallbackServerContext& context)
    : upstream_(std::move(upstream)),
      slot_(std::move(slot)),
      caller_context_(context),
      caller_(std::make_unique<CallerSide>(*this)),
      service_(std::make_unique<ServiceSide>(*this)) {
  for (const auto& [name, value] : HandedOn(context.client_metadata())) {
    service_context_.AddMetadata(name, value);
  }
  service_context_.set_deadline(context.deadline());
}

GrpcPassThrough::~GrpcPassThrough() = default;

void GrpcPassThrough::SideDone() {
  bool both;
  {
    MutexLock lock(mutex_);
    both = --sides_ == 0;
  }
  if (both) delete this;
}

}  // namespace idempotency::internal
