// A service that says what a test's script says, on a real loopback port.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "idempotency/v1/idempotency.grpc.pb.h"

namespace idempotency {

// One scripted answer.
struct Answer {
  grpc::Status status = {};
  std::string pushback = {};  // empty: no trailer
  v1::ClaimResponse claim = {};
  // Runs before the answer is given.
  std::function<void(grpc::ServerContext*)> before = nullptr;
};

// Answers every call with the next of its script, and the last for ever.
class ScriptedService final : public v1::IdempotencyService::Service {
 public:
  explicit ScriptedService(std::deque<Answer> script)
      : script_(std::move(script)) {}

  grpc::Status Claim(grpc::ServerContext* context,
                     const v1::ClaimRequest* request,
                     v1::ClaimResponse* response) override {
    const Answer answer = Next(context, claims_, *request);
    *response = answer.claim;
    return answer.status;
  }
  grpc::Status Finalize(grpc::ServerContext* context,
                        const v1::FinalizeRequest* request,
                        v1::FinalizeResponse* response) override {
    response->set_result(v1::FinalizeResponse::RESULT_RECORDED);
    return Next(context, finalizes_, *request).status;
  }
  grpc::Status Lookup(grpc::ServerContext* context,
                      const v1::LookupRequest* request,
                      v1::LookupResponse* response) override {
    response->mutable_record()->set_key(request->key());
    return Next(context, lookups_, *request).status;
  }
  grpc::Status Release(grpc::ServerContext* context,
                       const v1::ReleaseRequest* request,
                       v1::ReleaseResponse* response) override {
    response->set_released(true);
    return Next(context, releases_, *request).status;
  }

  std::vector<v1::ClaimRequest> claims() { return Copy(claims_); }
  std::vector<v1::FinalizeRequest> finalizes() { return Copy(finalizes_); }
  std::vector<v1::LookupRequest> lookups() { return Copy(lookups_); }
  std::vector<v1::ReleaseRequest> releases() { return Copy(releases_); }
  // What was left until the deadline when each call came in.
  std::vector<std::chrono::nanoseconds> time_left() { return Copy(time_left_); }

 private:
  template <typename Request>
  Answer Next(grpc::ServerContext* context, std::vector<Request>& requests,
              const Request& request) {
    Answer answer;
    {
      const std::lock_guard lock(mutex_);
      requests.push_back(request);
      time_left_.push_back(context->deadline() -
                           std::chrono::system_clock::now());
      answer = script_.front();
      if (script_.size() > 1) script_.pop_front();
    }
    if (answer.before) answer.before(context);
    if (!answer.pushback.empty()) {
      context->AddTrailingMetadata("grpc-retry-pushback-ms", answer.pushback);
    }
    return answer;
  }

  template <typename T>
  std::vector<T> Copy(const std::vector<T>& of) {
    const std::lock_guard lock(mutex_);
    return of;
  }

  std::mutex mutex_;
  std::deque<Answer> script_;
  std::vector<v1::ClaimRequest> claims_;
  std::vector<v1::FinalizeRequest> finalizes_;
  std::vector<v1::LookupRequest> lookups_;
  std::vector<v1::ReleaseRequest> releases_;
  std::vector<std::chrono::nanoseconds> time_left_;
};

class ScriptedServer {
 public:
  // Port 0: any free one.
  explicit ScriptedServer(std::deque<Answer> script, int port = 0)
      : service_(std::move(script)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port),
                             grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
  }
  ~ScriptedServer() { Stop(); }

  void Stop() { server_->Shutdown(std::chrono::system_clock::now()); }
  ScriptedService* operator->() { return &service_; }
  int port() const { return port_; }
  std::string target() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  ScriptedService service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

template <typename... Details>
inline Answer Refused(grpc::StatusCode code, const std::string& reason,
                      const Details&... details) {
  google::rpc::Status status;
  status.set_code(code);
  google::rpc::ErrorInfo info;
  info.set_domain("idempotency.v1");
  info.set_reason(reason);
  status.add_details()->PackFrom(info);
  (status.add_details()->PackFrom(details), ...);
  return {.status = grpc::Status(code, "scripted", status.SerializeAsString())};
}

// As a lost connection looks: no details.
inline Answer Lost() {
  return {.status = grpc::Status(grpc::StatusCode::UNAVAILABLE, "lost")};
}

inline Answer Busy(std::string pushback = "") {
  Answer answer = Refused(grpc::StatusCode::UNAVAILABLE, "OVERLOADED");
  answer.pushback = std::move(pushback);
  return answer;
}

inline Answer Fine() { return {}; }

inline Answer Granted() {
  Answer answer;
  answer.claim.mutable_claimed()->set_fencing_token(7);
  return answer;
}

}  // namespace idempotency
