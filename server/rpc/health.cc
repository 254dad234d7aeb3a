#include "server/rpc/health.h"

#include <memory>
#include <optional>
#include <utility>

namespace idempotency {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// One Watch call. Whoever has something for it to do calls Advance(), from any
// thread; one operation at a time is in gRPC's hands. The status is read when
// it is written, so that the last one told is always the latest.
class Health::Watcher final
    : public grpc::ServerWriteReactor<HealthCheckResponse> {
 public:
  Watcher(Health& health, std::string service)
      : health_(health), service_(std::move(service)) {}

  void Advance() {
    std::optional<grpc::Status> end;
    {
      MutexLock lock(mutex_);
      if (busy_) return;
      const Status status = health_.StatusOf(service_);
      const bool told_latest = told_ == status;
      // Whoever was told anything is told the latest before the end.
      if (end_.has_value() && (told_latest || !told_.has_value())) {
        end = std::move(end_);
      } else if (told_latest) {
        return;
      } else {
        told_ = status;
        message_.set_status(status);
      }
      busy_ = true;
    }
    if (end.has_value()) return Finish(*end);
    StartWrite(&message_);
  }

  void End(const grpc::Status& status) {
    {
      MutexLock lock(mutex_);
      if (!end_.has_value()) end_ = status;
    }
    Advance();
  }

  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(mutex_);
      busy_ = false;
    }
    if (!ok) return End(grpc::Status::CANCELLED);
    Advance();
  }

  void OnCancel() override { End(grpc::Status::CANCELLED); }

  void OnDone() override { health_.watchers_.Remove(this); }

 private:
  Health& health_;
  const std::string service_;

  Mutex mutex_;
  // An operation was handed to gRPC, or is about to be; after Finish() it
  // stays so.
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<Status> told_ ABSL_GUARDED_BY(mutex_);
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);

  // Belongs to gRPC while `busy_`.
  HealthCheckResponse message_;
};

Health::Health(std::set<std::string> services, std::size_t watchers_max)
    : services_(std::move(services)), watchers_(watchers_max) {}

Health::~Health() = default;

bool Health::serving() const {
  MutexLock lock(mutex_);
  return serving_ && !shut_down_;
}

void Health::SetServing(bool serving) {
  {
    MutexLock lock(mutex_);
    if (shut_down_) return;
    serving_ = serving;
  }
  TellWatchers();
}

void Health::Shutdown() {
  {
    MutexLock lock(mutex_);
    shut_down_ = true;
    serving_ = false;
  }
  TellWatchers();
}

void Health::EndWatches() {
  watchers_.Close();
  for (const auto& watcher : watchers_.All()) {
    watcher->End({grpc::StatusCode::UNAVAILABLE, "the server is going away"});
  }
}

grpc::ServerUnaryReactor* Health::Check(grpc::CallbackServerContext* context,
                                        const HealthCheckRequest* request,
                                        HealthCheckResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const Status status = StatusOf(request->service());
  if (status == HealthCheckResponse::SERVICE_UNKNOWN) {
    reactor->Finish({grpc::StatusCode::NOT_FOUND, "unknown service"});
    return reactor;
  }
  response->set_status(status);
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<HealthCheckResponse>* Health::Watch(
    grpc::CallbackServerContext*, const HealthCheckRequest* request) {
  auto watcher = std::make_shared<Watcher>(*this, request->service());
  switch (watchers_.Add(watcher)) {
    case StreamSet<Watcher>::Admission::kAdmitted:
      watcher->Advance();
      break;
    case StreamSet<Watcher>::Admission::kFull:
      watcher->End({grpc::StatusCode::RESOURCE_EXHAUSTED,
                    "too many calls watch this server's health"});
      break;
    case StreamSet<Watcher>::Admission::kClosed:
      watcher->End({grpc::StatusCode::UNAVAILABLE, "the server is going away"});
      break;
  }
  return watcher.get();
}

Health::Status Health::StatusOf(const std::string& service) const {
  if (!service.empty() && services_.count(service) == 0) {
    return HealthCheckResponse::SERVICE_UNKNOWN;
  }
  MutexLock lock(mutex_);
  return serving_ ? HealthCheckResponse::SERVING
                  : HealthCheckResponse::NOT_SERVING;
}

void Health::TellWatchers() {
  for (const auto& watcher : watchers_.All()) watcher->Advance();
}

}  // namespace idempotency
