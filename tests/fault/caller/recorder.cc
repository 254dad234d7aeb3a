#include "tests/fault/caller/recorder.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/status.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/client_interceptor.h"
#include "idempotency/v1/idempotency.pb.h"
#include "tests/fault/caller/events.h"

namespace idempotency::fault {
namespace {

using grpc::experimental::ClientRpcInfo;
using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;
using std::chrono::system_clock;

// Counts of keys are forgotten beyond so many: keys are used for seconds only.
constexpr std::size_t kKeysCountedMax = 100'000;

std::int64_t MicrosUntil(system_clock::time_point deadline) {
  if (deadline == system_clock::time_point::max()) return 0;
  return std::chrono::duration_cast<std::chrono::microseconds>(
             deadline - system_clock::now())
      .count();
}

// Of a call or a command.
template <typename Request>
std::string BeginCall(Recorder& recorder, Path path, std::int64_t deadline_us,
                      const Request& request) {
  CallEvent call = CallOf(request);
  call.path = path;
  call.deadline_us = std::max<std::int64_t>(deadline_us, 0);
  return recorder.Begin(std::move(call));
}

template <typename Request, typename Response>
class UnaryInterceptor final : public Interceptor {
 public:
  UnaryInterceptor(Recorder& recorder, Path path, ClientRpcInfo& info)
      : recorder_(recorder), path_(path), info_(info) {}

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            InterceptionHookPoints::PRE_SEND_MESSAGE)) {
      op_ = BeginCall(recorder_, path_,
                      MicrosUntil(info_.client_context()->deadline()),
                      *static_cast<const Request*>(methods->GetSendMessage()));
    }
    if (methods->QueryInterceptionHookPoint(
            InterceptionHookPoints::POST_RECV_MESSAGE)) {
      const void* const message = methods->GetRecvMessage();
      if (message != nullptr) {
        answer_ = AnswerOf(*static_cast<const Response*>(message));
      }
    }
    if (methods->QueryInterceptionHookPoint(
            InterceptionHookPoints::POST_RECV_STATUS)) {
      const absl::Status status = ToAbslStatus(*methods->GetRecvStatus());
      recorder_.End(op_, status.ok() && answer_.has_value()
                             ? *std::move(answer_)
                             : AnswerOf(status));
    }
    methods->Proceed();
  }

 private:
  Recorder& recorder_;
  const Path path_;
  ClientRpcInfo& info_;
  std::string op_;
  std::optional<AnswerEvent> answer_;
};

// Commands that the stream's end leaves without a result have no answer.
class BulkInterceptor final : public Interceptor {
 public:
  explicit BulkInterceptor(Recorder& recorder) : recorder_(recorder) {}

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            InterceptionHookPoints::PRE_SEND_MESSAGE)) {
      Sends(*static_cast<const v1::BulkRequest*>(methods->GetSendMessage()));
    }
    if (methods->QueryInterceptionHookPoint(
            InterceptionHookPoints::POST_RECV_MESSAGE)) {
      const void* const message = methods->GetRecvMessage();
      if (message != nullptr) {
        Received(*static_cast<const v1::BulkResponse*>(message));
      }
    }
    methods->Proceed();
  }

 private:
  std::string Begin(const v1::Command& command) {
    const std::int64_t deadline_us = command.timeout().seconds() * 1'000'000 +
                                     command.timeout().nanos() / 1000;
    switch (command.command_case()) {
      case v1::Command::kClaim:
        return BeginCall(recorder_, Path::kBulk, deadline_us, command.claim());
      case v1::Command::kFinalize:
        return BeginCall(recorder_, Path::kBulk, deadline_us,
                         command.finalize());
      case v1::Command::kLookup:
        return BeginCall(recorder_, Path::kBulk, deadline_us, command.lookup());
      case v1::Command::kRelease:
        return BeginCall(recorder_, Path::kBulk, deadline_us,
                         command.release());
      case v1::Command::COMMAND_NOT_SET:
        break;
    }
    return "";
  }

  static AnswerEvent AnswerIn(const v1::Result& result) {
    switch (result.result_case()) {
      case v1::Result::kClaim:
        return AnswerOf(result.claim());
      case v1::Result::kFinalize:
        return AnswerOf(result.finalize());
      case v1::Result::kLookup:
        return AnswerOf(result.lookup());
      case v1::Result::kRelease:
        return AnswerOf(result.release());
      case v1::Result::RESULT_NOT_SET:
        break;
    }
    return AnswerOf(ToAbslStatus(result.error()));
  }

  void Sends(const v1::BulkRequest& request) {
    MutexLock lock(mutex_);
    for (const v1::Command& command : request.commands()) {
      ops_[command.id()] = Begin(command);
    }
  }

  void Received(const v1::BulkResponse& response) {
    MutexLock lock(mutex_);
    for (const v1::Result& result : response.results()) {
      const auto op = ops_.find(result.id());
      if (op == ops_.end()) continue;
      recorder_.End(op->second, AnswerIn(result));
      ops_.erase(op);
    }
  }

  Recorder& recorder_;
  // Reading and writing go on beside each other.
  Mutex mutex_;
  absl::flat_hash_map<std::uint64_t, std::string> ops_ ABSL_GUARDED_BY(mutex_);
};

class Factory final
    : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  Factory(Recorder& recorder, Path path) : recorder_(recorder), path_(path) {}

  Interceptor* CreateClientInterceptor(ClientRpcInfo* info) override {
    const std::string_view method(std::strrchr(info->method(), '/') + 1);
    if (method == "Claim") {
      return Unary<v1::ClaimRequest, v1::ClaimResponse>(*info);
    }
    if (method == "Finalize") {
      return Unary<v1::FinalizeRequest, v1::FinalizeResponse>(*info);
    }
    if (method == "Lookup") {
      return Unary<v1::LookupRequest, v1::LookupResponse>(*info);
    }
    if (method == "Release") {
      return Unary<v1::ReleaseRequest, v1::ReleaseResponse>(*info);
    }
    return new BulkInterceptor(recorder_);
  }

 private:
  template <typename Request, typename Response>
  Interceptor* Unary(ClientRpcInfo& info) {
    return new UnaryInterceptor<Request, Response>(recorder_, path_, info);
  }

  Recorder& recorder_;
  const Path path_;
};

}  // namespace

Recorder::Recorder(HistoryWriter& history, std::string caller)
    : history_(history), caller_(std::move(caller)) {}

std::shared_ptr<grpc::Channel> Recorder::Connect(
    const std::string& target, grpc::ChannelArguments arguments, Path path) {
  static std::atomic<int> channels{0};
  // Channels of equal arguments would share one connection.
  arguments.SetInt("idempotency.fault_channel", ++channels);
  if (path == Path::kUnary) arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // A server that comes back is found at once, and not after gRPC's minutes.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  std::vector<
      std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>>
      factories;
  factories.push_back(std::make_unique<Factory>(*this, path));
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      target, grpc::InsecureChannelCredentials(), arguments,
      std::move(factories));
}

std::int64_t Recorder::CallsOf(const std::string& key) const {
  MutexLock lock(mutex_);
  const auto found = calls_of_keys_.find(key);
  return found == calls_of_keys_.end() ? 0 : found->second;
}

Recorder::Counts Recorder::answers() const {
  MutexLock lock(mutex_);
  return answers_;
}

std::string Recorder::Begin(CallEvent call) {
  call.op = absl::StrCat(caller_, "-", ++calls_);
  call.t = MonotonicNow();
  {
    MutexLock lock(mutex_);
    if (calls_of_keys_.size() > kKeysCountedMax) calls_of_keys_.clear();
    ++calls_of_keys_[call.key];
  }
  std::string op = call.op;
  Write(std::move(call));
  return op;
}

void Recorder::End(const std::string& op, AnswerEvent answer) {
  answer.op = op;
  answer.t = MonotonicNow();
  {
    MutexLock lock(mutex_);
    ++answers_[WordOf(answer)];
  }
  Write(std::move(answer));
}

void Recorder::Write(const Event& event) {
  const absl::Status written = history_.Append(event);
  if (written.ok()) return;
  std::fprintf(stderr, "%s\n", written.ToString().c_str());
  std::abort();
}

}  // namespace idempotency::fault
