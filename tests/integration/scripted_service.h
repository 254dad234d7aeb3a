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

using BulkWire = grpc::ServerReaderWriter<v1::BulkResponse, v1::BulkRequest>;
// What becomes of one stream.
using StreamScript =
    std::function<grpc::Status(grpc::ServerContext*, BulkWire*)>;

// Answers every call with the next of its script, and the last for ever; and
// commands likewise, unless the stream has a script of its own.
class ScriptedService final : public v1::IdempotencyService::Service {
 public:
  ScriptedService(std::deque<Answer> script, std::deque<StreamScript> streams)
      : script_(std::move(script)), stream_scripts_(std::move(streams)) {}

  grpc::Status Claim(grpc::ServerContext* context,
                     const v1::ClaimRequest* request,
                     v1::ClaimResponse* response) override {
    return Decide(Called(context), *request, response);
  }
  grpc::Status Finalize(grpc::ServerContext* context,
                        const v1::FinalizeRequest* request,
                        v1::FinalizeResponse* response) override {
    return Decide(Called(context), *request, response);
  }
  grpc::Status Lookup(grpc::ServerContext* context,
                      const v1::LookupRequest* request,
                      v1::LookupResponse* response) override {
    return Decide(Called(context), *request, response);
  }
  grpc::Status Release(grpc::ServerContext* context,
                       const v1::ReleaseRequest* request,
                       v1::ReleaseResponse* response) override {
    return Decide(Called(context), *request, response);
  }

  grpc::Status Bulk(grpc::ServerContext* context, BulkWire* wire) override {
    StreamScript script;
    {
      const std::lock_guard lock(mutex_);
      ++streams_;
      if (!stream_scripts_.empty()) script = stream_scripts_.front();
      if (stream_scripts_.size() > 1) stream_scripts_.pop_front();
    }
    return script ? script(context, wire) : AnswerCommands(context, wire);
  }

  // Each by the script of calls, until the caller closes its side.
  grpc::Status AnswerCommands(grpc::ServerContext* context, BulkWire* wire) {
    v1::BulkRequest request;
    while (wire->Read(&request)) {
      {
        const std::lock_guard lock(mutex_);
        message_sizes_.push_back(request.commands_size());
      }
      v1::BulkResponse response;
      for (const v1::Command& command : request.commands()) {
        *response.add_results() = AnswerTo(context, command);
      }
      wire->Write(response);
    }
    return grpc::Status::OK;
  }

  v1::Result AnswerTo(grpc::ServerContext* context,
                      const v1::Command& command) {
    const Come come{context,
                    std::chrono::seconds(command.timeout().seconds()) +
                        std::chrono::nanoseconds(command.timeout().nanos())};
    v1::Result result;
    grpc::Status status;
    if (command.has_claim()) {
      status = Decide(come, command.claim(), result.mutable_claim());
    } else if (command.has_finalize()) {
      status = Decide(come, command.finalize(), result.mutable_finalize());
    } else if (command.has_lookup()) {
      status = Decide(come, command.lookup(), result.mutable_lookup());
    } else {
      status = Decide(come, command.release(), result.mutable_release());
    }
    if (!status.ok()) {
      result.clear_result();
      result.mutable_error()->ParseFromString(status.error_details());
      result.mutable_error()->set_code(status.error_code());
      result.mutable_error()->set_message(status.error_message());
    }
    result.set_id(command.id());
    return result;
  }

  // By streams with a script too.
  int streams() const {
    const std::lock_guard lock(mutex_);
    return streams_;
  }
  // What came as a call, and not as a command.
  int calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  std::vector<int> message_sizes() { return Copy(message_sizes_); }

  std::vector<v1::ClaimRequest> claims() { return Copy(claims_); }
  std::vector<v1::FinalizeRequest> finalizes() { return Copy(finalizes_); }
  std::vector<v1::LookupRequest> lookups() { return Copy(lookups_); }
  std::vector<v1::ReleaseRequest> releases() { return Copy(releases_); }
  // What was left until the deadline when each call came in.
  std::vector<std::chrono::nanoseconds> time_left() { return Copy(time_left_); }

 private:
  // How a request came.
  struct Come {
    grpc::ServerContext* context;
    std::chrono::nanoseconds time_left;
  };

  Come Called(grpc::ServerContext* context) {
    const std::lock_guard lock(mutex_);
    ++calls_;
    return {context, context->deadline() - std::chrono::system_clock::now()};
  }

  grpc::Status Decide(const Come& come, const v1::ClaimRequest& request,
                      v1::ClaimResponse* response) {
    const Answer answer = Next(come, claims_, request);
    *response = answer.claim;
    return answer.status;
  }
  grpc::Status Decide(const Come& come, const v1::FinalizeRequest& request,
                      v1::FinalizeResponse* response) {
    response->set_result(v1::FinalizeResponse::RESULT_RECORDED);
    return Next(come, finalizes_, request).status;
  }
  grpc::Status Decide(const Come& come, const v1::LookupRequest& request,
                      v1::LookupResponse* response) {
    response->mutable_record()->set_key(request.key());
    return Next(come, lookups_, request).status;
  }
  grpc::Status Decide(const Come& come, const v1::ReleaseRequest& request,
                      v1::ReleaseResponse* response) {
    response->set_released(true);
    return Next(come, releases_, request).status;
  }

  template <typename Request>
  Answer Next(const Come& come, std::vector<Request>& requests,
              const Request& request) {
    Answer answer;
    {
      const std::lock_guard lock(mutex_);
      requests.push_back(request);
      time_left_.push_back(come.time_left);
      answer = script_.front();
      if (script_.size() > 1) script_.pop_front();
    }
    if (answer.before) answer.before(come.context);
    if (!answer.pushback.empty()) {
      come.context->AddTrailingMetadata("grpc-retry-pushback-ms",
                                        answer.pushback);
    }
    return answer;
  }

  template <typename T>
  std::vector<T> Copy(const std::vector<T>& of) {
    const std::lock_guard lock(mutex_);
    return of;
  }

  mutable std::mutex mutex_;
  std::deque<Answer> script_;
  std::deque<StreamScript> stream_scripts_;
  int streams_ = 0;
  int calls_ = 0;
  std::vector<int> message_sizes_;
  std::vector<v1::ClaimRequest> claims_;
  std::vector<v1::FinalizeRequest> finalizes_;
  std::vector<v1::LookupRequest> lookups_;
  std::vector<v1::ReleaseRequest> releases_;
  std::vector<std::chrono::nanoseconds> time_left_;
};

class ScriptedServer {
 public:
  // Port 0: any free one.
  explicit ScriptedServer(std::deque<Answer> script, int port = 0,
                          std::deque<StreamScript> streams = {})
      : service_(std::move(script), std::move(streams)) {
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
