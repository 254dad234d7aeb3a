#include "server/rpc/server.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "server/core/limits.h"
#include "server/rpc/certificate_watch.h"
#include "server/rpc/health.h"
#include "server/rpc/reflection.h"
#include "server/rpc/service.h"
#include "server/rpc/tls_credentials.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Clients may ping every 30 s, a little early at times, also without calls.
constexpr milliseconds kClientPingMin = seconds(25);
// A connection whose other end has vanished is noticed after both.
constexpr milliseconds kKeepalive = seconds(60);
constexpr milliseconds kKeepaliveTimeout = seconds(20);
// More wait at the client. A hot key's whole crowd fits on one connection.
constexpr int kStreamsPerConnectionMax = 16 * 1024;

// Calls on a connection that has come of age end by then, and streams, which
// answer their last commands when they have come of age themselves.
milliseconds ConnectionAgeGrace(const ServiceOptions& options) {
  const double spread = 1 + BulkStreams::kAgeSpread;
  return std::chrono::duration_cast<milliseconds>(spread *
                                                  options.bulk_age_max) +
         options.deadline_max + limits::kWaitMax;
}

void SetLimits(const ServerOptions& options,
               const ServiceOptions& service_options,
               grpc::ServerBuilder& builder) {
  const auto set = [&builder](const char* name, milliseconds value) {
    builder.AddChannelArgument(name, static_cast<int>(value.count()));
  };
  builder.SetMaxReceiveMessageSize(static_cast<int>(limits::kMessageBytesMax));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                             kStreamsPerConnectionMax);
  set(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kClientPingMin);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  set(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepalive);
  set(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeout);
  if (options.connection_age_max > milliseconds(0)) {
    set(GRPC_ARG_MAX_CONNECTION_AGE_MS, options.connection_age_max);
    set(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS,
        ConnectionAgeGrace(service_options));
  }
  // A second server on the same port must fail and not share it unnoticed.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Nobody can ask for its counts, and keeping them costs every call.
  builder.AddChannelArgument(GRPC_ARG_ENABLE_CHANNELZ, 0);
}

// gRPC tells streams nothing of their connection's age.
ServiceOptions WithBulkAge(ServiceOptions options, milliseconds age_max) {
  options.bulk_age_max = std::min<milliseconds>(age_max, limits::kBulkAgeMax);
  return options;
}

std::set<std::string> OwnServices() {
  return {v1::IdempotencyService::service_full_name()};
}

std::set<std::string> ListedServices() {
  std::set<std::string> services = OwnServices();
  services.insert(grpc::health::v1::Health::service_full_name());
  return services;
}

}  // namespace

struct RpcServer::Impl {
  Impl(const ServiceOptions& options, const ServiceParts& parts)
      : service(options, parts),
        health(OwnServices()),
        reflection(ListedServices()) {}

  absl::Status MakeCredentials(const CertificateFiles& files, Log& log);

  Service service;
  Health health;
  Reflection reflection;
  std::atomic<bool> shut_down{false};
  int port = 0;
  std::unique_ptr<CertificateWatch> certificates;  // null without TLS
  std::shared_ptr<grpc::ServerCredentials> credentials;
  // Last, so that it ends before what it calls.
  std::unique_ptr<grpc::Server> server;
};

absl::Status RpcServer::Impl::MakeCredentials(const CertificateFiles& files,
                                              Log& log) {
  if (!files.given()) {
    credentials = grpc::InsecureServerCredentials();
    return absl::OkStatus();
  }
  auto started = CertificateWatch::Start(files, log);
  if (!started.ok()) return started.status();
  certificates = *std::move(started);
  credentials = MakeTlsCredentials(*certificates, !files.tls_client_ca.empty());
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(
    const ServerOptions& options, const ServiceOptions& service_options,
    const ServiceParts& parts) {
  const ServiceOptions aged =
      WithBulkAge(service_options, options.connection_age_max);
  auto impl = std::make_unique<Impl>(aged, parts);
  const absl::Status secured = impl->MakeCredentials(options.tls, parts.log);
  if (!secured.ok()) return secured;
  grpc::ServerBuilder builder;
  SetLimits(options, aged, builder);
  builder.AddListeningPort(options.listen, impl->credentials, &impl->port);
  builder.RegisterService(&impl->service);
  builder.RegisterService(&impl->health);
  if (options.reflection) {
    builder.RegisterService(&impl->reflection.v1());
    builder.RegisterService(&impl->reflection.v1alpha());
  }
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr || impl->port == 0) {
    return absl::UnavailableError("can't listen on " + options.listen +
                                  ": the address is in use or not this "
                                  "machine's");
  }
  return std::unique_ptr<RpcServer>(new RpcServer(std::move(impl)));
}

RpcServer::RpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

RpcServer::~RpcServer() { Shutdown(milliseconds(0)); }

int RpcServer::port() const { return impl_->port; }

void RpcServer::SetServing(bool serving) { impl_->health.SetServing(serving); }

bool RpcServer::serving() const { return impl_->health.serving(); }

void RpcServer::StopServing() { impl_->health.Shutdown(); }

void RpcServer::DrainStreams() { impl_->service.streams().Drain(); }

void RpcServer::LookAtStreams(SteadyTime now) {
  impl_->service.streams().Look(now);
}

void RpcServer::LookAtCertificates(absl::Time now) {
  if (impl_->certificates != nullptr) impl_->certificates->Look(now);
}

std::optional<absl::Time> RpcServer::certificate_not_after() const {
  if (impl_->certificates == nullptr) return std::nullopt;
  return impl_->certificates->current()->not_after;
}

void RpcServer::Shutdown(milliseconds grace) {
  if (impl_->shut_down.exchange(true)) return;
  impl_->health.Shutdown();
  impl_->health.EndWatches();
  impl_->reflection.EndStreams();
  DrainStreams();
  impl_->server->Shutdown(std::chrono::system_clock::now() + grace);
}

}  // namespace idempotency
