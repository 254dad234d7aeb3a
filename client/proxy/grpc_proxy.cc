#include "client/proxy/grpc_proxy.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/grpc/call_status.h"
#include "client/mutex.h"
#include "client/proxy/grpc_pass_through.h"
#include "client/proxy/grpc_upstream.h"
#include "client/proxy/keyed_call.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"

namespace idempotency {
namespace {

using internal::GrpcUpstream;
using internal::Mutex;
using internal::MutexLock;
using std::chrono::milliseconds;

constexpr milliseconds kTimeoutMax = std::chrono::hours(24);
// A caller whose machine is gone is found out, and its calls end.
constexpr int kKeepaliveMs = 60'000;
constexpr int kKeepaliveTimeoutMs = 20'000;

// Routes by what they name.
class RouteTable {
 public:
  static absl::StatusOr<std::shared_ptr<const RouteTable>> Make(
      std::vector<GrpcRoute> routes, milliseconds connect_timeout) {
    auto table = std::make_shared<RouteTable>();
    for (GrpcRoute& route : routes) {
      if (absl::Status valid = Check(route); !valid.ok()) return valid;
      if (!route.rule.max_run_time.has_value()) {
        route.rule.max_run_time = route.timeout + connect_timeout;
      }
      std::string methods = route.methods;
      const auto [at, added] = table->routes_.emplace(
          std::move(methods),
          std::make_shared<const GrpcRoute>(std::move(route)));
      if (!added) {
        return absl::InvalidArgumentError(
            absl::StrCat(at->first, ": two routes name it"));
      }
    }
    return table;
  }

  // Null: none.
  std::shared_ptr<const GrpcRoute> Find(const std::string& method) const {
    const std::string service = method.substr(0, method.rfind('/') + 1);
    for (const std::string& name : {method, service + "*", std::string("/*")}) {
      const auto found = routes_.find(name);
      if (found != routes_.end()) return found->second;
    }
    return nullptr;
  }

 private:
  static absl::Status Check(const GrpcRoute& route) {
    const std::string& name = route.methods;
    const auto wrong = [&](const char* what) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": ", what));
    };
    const auto slashes = std::count(name.begin(), name.end(), '/');
    const std::size_t star = name.find('*');
    const bool star_fits =
        star == std::string::npos ||
        (star + 1 == name.size() && star > 0 && name[star - 1] == '/');
    if (name.empty() || name[0] != '/' || name.back() == '/' || !star_fits ||
        (slashes != 2 && name != "/*")) {
      return wrong(
          "methods are /package.Service/Method, /package.Service/* "
          "or /*");
    }
    if (route.rule.scope.empty()) return wrong("the scope is missing");
    if (route.timeout <= milliseconds(0) || route.timeout > kTimeoutMax) {
      return wrong("the timeout is above 0 and at most a day");
    }
    return absl::OkStatus();
  }

  std::map<std::string, std::shared_ptr<const GrpcRoute>> routes_;
};

// Ends the call with that status.
class Refusal final : public grpc::ServerGenericBidiReactor {
 public:
  explicit Refusal(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

// How many calls there are.
class CallCount {
 public:
  // Counts until it is destroyed, and all its copies; null: there are too many.
  static std::shared_ptr<void> Take(const std::shared_ptr<CallCount>& count,
                                    std::size_t calls_max) {
    if (count->calls_.fetch_add(1) >= calls_max) {
      count->calls_.fetch_sub(1);
      return nullptr;
    }
    return std::shared_ptr<void>(
        count.get(), [count](void*) { count->calls_.fetch_sub(1); });
  }

 private:
  std::atomic<std::size_t> calls_{0};
};

class Service final : public grpc::CallbackGenericService {
 public:
  Service(std::shared_ptr<RunOnce> once, std::shared_ptr<GrpcUpstream> upstream,
          std::size_t calls_max)
      : once_(std::move(once)),
        upstream_(std::move(upstream)),
        calls_max_(calls_max) {}

  void SetRoutes(std::shared_ptr<const RouteTable> routes) {
    MutexLock lock(mutex_);
    routes_.swap(routes);
  }

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    std::shared_ptr<void> slot = CallCount::Take(calls_, calls_max_);
    if (slot == nullptr) {
      return new Refusal(CallStatus(grpc::StatusCode::UNAVAILABLE, "OVERLOADED",
                                    "too many calls at a time"));
    }
    const std::shared_ptr<const GrpcRoute> route =
        Routes()->Find(context->method());
    CallKey key;
    if (route != nullptr) {
      key = KeyOf(context->client_metadata(), route->rule.required);
    }
    if (!key.refusal.ok()) return new Refusal(key.refusal);
    if (!key.key.has_value()) {
      return internal::GrpcPassThrough::Start(upstream_, std::move(slot),
                                              *context);
    }
    const auto call = std::make_shared<internal::KeyedCall>(
        *once_, upstream_, route, *std::move(key.key), std::move(slot),
        *context);
    call->Start();
    return call.get();
  }

 private:
  std::shared_ptr<const RouteTable> Routes() {
    MutexLock lock(mutex_);
    return routes_;
  }

  const std::shared_ptr<RunOnce> once_;
  const std::shared_ptr<GrpcUpstream> upstream_;
  const std::size_t calls_max_;
  const std::shared_ptr<CallCount> calls_ = std::make_shared<CallCount>();
  Mutex mutex_;
  std::shared_ptr<const RouteTable> routes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

struct GrpcProxy::Impl {
  Impl(const GrpcProxyOptions& options, std::shared_ptr<RunOnce> once)
      : connect_timeout(options.connect_timeout),
        upstream(std::make_shared<GrpcUpstream>(GrpcUpstream::Options{
            .target = options.upstream,
            .credentials = options.upstream_credentials,
            .response_bytes_max = options.response_bytes_max,
            .connect_timeout = options.connect_timeout})),
        service(std::move(once), upstream, options.calls_max) {}

  const milliseconds connect_timeout;
  const std::shared_ptr<GrpcUpstream> upstream;
  Service service;
  int port = 0;
  std::atomic<bool> drained{false};
  // Last: it calls the service until it is gone.
  std::unique_ptr<grpc::Server> server;
};

GrpcProxy::GrpcProxy(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

GrpcProxy::~GrpcProxy() { Drain(milliseconds(0)); }

absl::StatusOr<std::unique_ptr<GrpcProxy>> GrpcProxy::Start(
    const GrpcProxyOptions& options, std::vector<GrpcRoute> routes,
    std::shared_ptr<RunOnce> once) {
  auto proxy = std::unique_ptr<GrpcProxy>(
      new GrpcProxy(std::make_unique<Impl>(options, std::move(once))));
  Impl& impl = *proxy->impl_;
  if (absl::Status set = proxy->SetRoutes(std::move(routes)); !set.ok()) {
    return set;
  }
  grpc::ServerBuilder builder;
  // An address that another process has is refused, not shared.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.SetMaxReceiveMessageSize(options.request_bytes_max);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             kKeepaliveTimeoutMs);
  // However long neither side has anything to say.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddListeningPort(options.listen,
                           options.credentials
                               ? options.credentials
                               : grpc::InsecureServerCredentials(),
                           &impl.port);
  builder.RegisterCallbackGenericService(&impl.service);
  impl.server = builder.BuildAndStart();
  if (impl.server == nullptr || impl.port == 0) {
    return absl::UnavailableError(
        absl::StrCat(options.listen, " cannot be listened on"));
  }
  return proxy;
}

int GrpcProxy::port() const { return impl_->port; }

absl::Status GrpcProxy::SetRoutes(std::vector<GrpcRoute> routes) {
  auto table = RouteTable::Make(std::move(routes), impl_->connect_timeout);
  if (!table.ok()) return table.status();
  impl_->service.SetRoutes(*std::move(table));
  return absl::OkStatus();
}

void GrpcProxy::Drain(milliseconds grace) {
  if (impl_->drained.exchange(true)) return;
  if (impl_->server != nullptr) {
    impl_->server->Shutdown(std::chrono::system_clock::now() +
                            std::clamp(grace, milliseconds(0), kTimeoutMax));
  }
  impl_->upstream->Close();
}

}  // namespace idempotency
