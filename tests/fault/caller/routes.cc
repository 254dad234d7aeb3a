#include "tests/fault/caller/routes.h"

#include <array>
#include <functional>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/async_client.h"
#include "client/status.h"
#include "grpcpp/client_context.h"
#include "idempotency/v1/idempotency.grpc.pb.h"
#include "server/core/mutex.h"
#include "tests/integration/fault_calls.h"

namespace idempotency::fault {
namespace {

using std::chrono::milliseconds;

constexpr char kRetryPolicy[] = R"({"methodConfig": [{
  "name": [{"service": "idempotency.v1.IdempotencyService"}],
  "retryPolicy": {"maxAttempts": 4, "initialBackoff": "0.02s",
                  "maxBackoff": "0.2s", "backoffMultiplier": 2,
                  "retryableStatusCodes": ["UNAVAILABLE"]}}]})";

// Hands the four calls to one template of `Way`'s.
template <typename Way>
class RouteOf : public Route {
 public:
  absl::StatusOr<v1::ClaimResponse> Send(const v1::ClaimRequest& request,
                                         milliseconds timeout) override {
    return way().template Call<v1::ClaimResponse>(request, timeout);
  }
  absl::StatusOr<v1::FinalizeResponse> Send(const v1::FinalizeRequest& request,
                                            milliseconds timeout) override {
    return way().template Call<v1::FinalizeResponse>(request, timeout);
  }
  absl::StatusOr<v1::LookupResponse> Send(const v1::LookupRequest& request,
                                          milliseconds timeout) override {
    return way().template Call<v1::LookupResponse>(request, timeout);
  }
  absl::StatusOr<v1::ReleaseResponse> Send(const v1::ReleaseRequest& request,
                                           milliseconds timeout) override {
    return way().template Call<v1::ReleaseResponse>(request, timeout);
  }

 private:
  Way& way() { return static_cast<Way&>(*this); }
};

class StubRoute final : public RouteOf<StubRoute> {
 public:
  StubRoute(const std::shared_ptr<grpc::Channel>& channel, bool sends_once,
            std::string name)
      : stub_(v1::IdempotencyService::NewStub(channel)),
        sends_once_(sends_once),
        name_(std::move(name)) {}

  template <typename Response, typename Request>
  absl::StatusOr<Response> Call(const Request& request, milliseconds timeout) {
    return idempotency::Send(*stub_, request, timeout);
  }
  bool sends_once() const override { return sends_once_; }
  std::string name() const override { return name_; }

 private:
  const std::unique_ptr<v1::IdempotencyService::Stub> stub_;
  const bool sends_once_;
  const std::string name_;
};

class ClientRoute final : public RouteOf<ClientRoute> {
 public:
  ClientRoute(std::shared_ptr<grpc::Channel> channel, BulkUse bulk,
              std::string name)
      : client_(std::move(channel), OptionsOf(bulk)), name_(std::move(name)) {}

  template <typename Response, typename Request>
  absl::StatusOr<Response> Call(const Request& request, milliseconds timeout) {
    std::promise<absl::StatusOr<Response>> promise;
    CallOptions options;
    options.timeout = timeout;
    Start(request, options, [&promise](absl::StatusOr<Response> answer) {
      promise.set_value(std::move(answer));
    });
    return promise.get_future().get();
  }
  bool sends_once() const override { return false; }
  std::string name() const override { return name_; }

 private:
  static ClientOptions OptionsOf(BulkUse bulk) {
    ClientOptions options;
    options.bulk = bulk;
    return options;
  }

  void Start(const v1::ClaimRequest& request, const CallOptions& options,
             Answered<v1::ClaimResponse> answered) {
    client_.Claim(request, options, std::move(answered));
  }
  void Start(const v1::FinalizeRequest& request, const CallOptions& options,
             Answered<v1::FinalizeResponse> answered) {
    client_.Finalize(request, options, std::move(answered));
  }
  void Start(const v1::LookupRequest& request, const CallOptions& options,
             Answered<v1::LookupResponse> answered) {
    client_.Lookup(request, options, std::move(answered));
  }
  void Start(const v1::ReleaseRequest& request, const CallOptions& options,
             Answered<v1::ReleaseResponse> answered) {
    client_.Release(request, options, std::move(answered));
  }

  AsyncClient client_;
  const std::string name_;
};

// The slower call goes on by itself.
class HedgeRoute final : public RouteOf<HedgeRoute> {
 public:
  HedgeRoute(const std::shared_ptr<grpc::Channel>& first,
             const std::shared_ptr<grpc::Channel>& second)
      : stubs_{v1::IdempotencyService::NewStub(first),
               v1::IdempotencyService::NewStub(second)} {}
  ~HedgeRoute() override ABSL_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<Mutex> lock(mutex_);
    changed_.wait(lock, [this] { return under_way_ == 0; });
  }

  template <typename Response, typename Request>
  absl::StatusOr<Response> Call(const Request& request, milliseconds timeout) {
    const auto race = std::make_shared<Race<Request, Response>>(request);
    {
      MutexLock lock(mutex_);
      under_way_ += static_cast<int>(race->legs.size());
    }
    for (std::size_t i = 0; i < race->legs.size(); ++i) {
      auto& leg = race->legs[i];
      leg.context.set_deadline(std::chrono::system_clock::now() + timeout);
      Start(*stubs_[i], leg.context, race->request, leg.response,
            [this, race, &leg](const grpc::Status& status) {
              race->Ended(leg.response, status);
              LegEnded();
            });
    }
    return race->answer.get_future().get();
  }
  bool sends_once() const override { return false; }
  std::string name() const override { return "hedge"; }

 private:
  template <typename Request, typename Response>
  struct Race {
    explicit Race(const Request& sent) : request(sent) {}

    // The first answer counts, of errors the last.
    void Ended(Response& response, const grpc::Status& status) {
      MutexLock lock(mutex);
      ++ended;
      if (answered || (!status.ok() && ended < legs.size())) return;
      answered = true;
      answer.set_value(status.ok() ? absl::StatusOr<Response>(response)
                                   : ToAbslStatus(status));
    }

    struct Leg {
      grpc::ClientContext context;
      Response response;
    };
    const Request request;
    std::array<Leg, 2> legs;
    std::promise<absl::StatusOr<Response>> answer;
    Mutex mutex;
    std::size_t ended ABSL_GUARDED_BY(mutex) = 0;
    bool answered ABSL_GUARDED_BY(mutex) = false;
  };
  using Done = std::function<void(grpc::Status)>;
  using Stub = v1::IdempotencyService::Stub;

  void LegEnded() {
    MutexLock lock(mutex_);
    if (--under_way_ == 0) changed_.notify_all();
  }

  static void Start(Stub& stub, grpc::ClientContext& context,
                    const v1::ClaimRequest& request,
                    v1::ClaimResponse& response, Done done) {
    stub.async()->Claim(&context, &request, &response, std::move(done));
  }
  static void Start(Stub& stub, grpc::ClientContext& context,
                    const v1::FinalizeRequest& request,
                    v1::FinalizeResponse& response, Done done) {
    stub.async()->Finalize(&context, &request, &response, std::move(done));
  }
  static void Start(Stub& stub, grpc::ClientContext& context,
                    const v1::LookupRequest& request,
                    v1::LookupResponse& response, Done done) {
    stub.async()->Lookup(&context, &request, &response, std::move(done));
  }
  static void Start(Stub& stub, grpc::ClientContext& context,
                    const v1::ReleaseRequest& request,
                    v1::ReleaseResponse& response, Done done) {
    stub.async()->Release(&context, &request, &response, std::move(done));
  }

  const std::array<std::unique_ptr<Stub>, 2> stubs_;
  Mutex mutex_;
  ConditionVariable changed_;
  int under_way_ = 0;
};

grpc::ChannelArguments RoundRobin() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetLoadBalancingPolicyName("round_robin");
  return arguments;
}

grpc::ChannelArguments WithRetries() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 1);
  arguments.SetServiceConfigJSON(kRetryPolicy);
  arguments.SetLoadBalancingPolicyName("round_robin");
  return arguments;
}

}  // namespace

std::string TargetOf(const std::vector<std::string>& servers) {
  return absl::StrCat("ipv4:", absl::StrJoin(servers, ","));
}

Routes MakeRoutes(Recorder& recorder, const std::vector<std::string>& servers) {
  const std::string all = TargetOf(servers);
  Routes routes;
  for (const std::string& server : servers) {
    routes.plain.push_back(std::make_unique<StubRoute>(
        recorder.Connect(absl::StrCat("ipv4:", server), {}), true, "plain"));
  }
  routes.hedge = std::make_unique<HedgeRoute>(
      recorder.Connect(absl::StrCat("ipv4:", servers.front()), {}),
      recorder.Connect(absl::StrCat("ipv4:", servers.back()), {}));
  routes.retry = std::make_unique<StubRoute>(
      recorder.Connect(all, WithRetries(), Path::kClient), false, "retry");
  routes.client = std::make_unique<ClientRoute>(
      recorder.Connect(all, RoundRobin()), BulkUse::kAuto, "client");
  routes.bulk = std::make_unique<ClientRoute>(
      recorder.Connect(all, RoundRobin()), BulkUse::kAlways, "bulk");
  return routes;
}

}  // namespace idempotency::fault
