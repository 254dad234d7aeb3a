#include "client/proxy/sidecar.h"

#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/credentials.h"
#include "client/grpc/call_status.h"

namespace idempotency {
namespace {

std::string Text(const absl::Status& status) {
  return std::string(status.message());
}

// What somebody has to know of a gRPC call, as of a request.
std::optional<HttpNotice::Kind> KindOf(const RunResult& result,
                                       bool fail_open) {
  switch (result.outcome) {
    case RunOutcome::kUnavailable:
      return fail_open && HasNoCoordinator(result)
                 ? HttpNotice::Kind::kRanUnguarded
                 : HttpNotice::Kind::kUnavailable;
    case RunOutcome::kInvalid:
      return HttpNotice::Kind::kMisconfigured;
    case RunOutcome::kUnknown:
      return HttpNotice::Kind::kOutcomeUnknown;
    case RunOutcome::kWinner:
    case RunOutcome::kConflict:
      return HttpNotice::Kind::kSuperseded;
    case RunOutcome::kExecuted:
    case RunOutcome::kResolved:
      // A status of 500 and above may not be recorded by policy.
      if (result.recorded || result.response.status_code() >= 500) {
        return std::nullopt;
      }
      return HttpNotice::Kind::kNotRecorded;
    default:
      return std::nullopt;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Sidecar>> Sidecar::Start(
    ProxySettings settings) {
  std::unique_ptr<Sidecar> sidecar(new Sidecar(std::move(settings)));
  absl::StatusOr<std::optional<ProxyRules>> rules = sidecar->ReadRules();
  if (!rules.ok()) return rules.status();
  const auto shared = std::make_shared<const ProxyRules>(*std::move(*rules));

  absl::Status started = sidecar->StartCoordinator();
  if (started.ok()) started = sidecar->StartHttp(shared);
  if (started.ok()) started = sidecar->StartGrpc(*shared);
  if (started.ok()) started = sidecar->StartAdminPage();
  if (!started.ok()) return started;
  sidecar->metrics_.CountRules(true);
  return sidecar;
}

Sidecar::~Sidecar() = default;

absl::Status Sidecar::StartCoordinator() {
  RunOnceOptions options;
  // What is too long for a record, the routes and the coordinator say.
  options.client.body_bytes_max = kRecordBytesMax;
  const TlsOptions& tls = settings_.tls;
  if (settings_.coordinator_tls || !tls.server_ca_file.empty() ||
      !tls.certificate_file.empty()) {
    auto files = TlsFiles::Load(tls);
    if (!files.ok()) return files.status();
    options.client.tls = *std::move(files);
  }
  once_ = RunOnce::Connect(settings_.coordinator, options);
  return absl::OkStatus();
}

absl::Status Sidecar::StartHttp(std::shared_ptr<const ProxyRules> rules) {
  if (!settings_.has_http()) return absl::OkStatus();
  auto proxy = HttpProxy::Start(
      {.listen = settings_.listen,
       .upstream = settings_.upstream,
       .connect_timeout = settings_.connect_timeout,
       .request_timeout = settings_.request_timeout,
       .idle_timeout = settings_.idle_timeout,
       .stream_timeout = settings_.stream_timeout,
       .request_bytes_max = settings_.request_bytes_max,
       .connections_max = settings_.connections_max,
       .answered =
           [this](ProxyAnswer answer, const std::string& scope) {
             metrics_.Count(answer, scope);
           },
       .notice = [this](const HttpNotice& notice) { Notice(notice); }},
      std::move(rules), once_);
  if (!proxy.ok()) return proxy.status();
  http_ = *std::move(proxy);
  WriteLog(LogSeverity::kInfo, "listening for HTTP",
           {{"address", settings_.listen},
            {"port", absl::StrCat(http_->port())},
            {"upstream", settings_.upstream}});
  return absl::OkStatus();
}

absl::Status Sidecar::StartGrpc(const ProxyRules& rules) {
  if (!settings_.has_grpc()) return absl::OkStatus();
  auto proxy = GrpcProxy::Start({.listen = settings_.grpc_listen,
                                 .upstream = settings_.grpc_upstream,
                                 .connect_timeout = settings_.connect_timeout},
                                WithNotice(rules.grpc), once_);
  if (!proxy.ok()) return proxy.status();
  grpc_ = *std::move(proxy);
  WriteLog(LogSeverity::kInfo, "listening for gRPC",
           {{"address", settings_.grpc_listen},
            {"port", absl::StrCat(grpc_->port())},
            {"upstream", settings_.grpc_upstream}});
  return absl::OkStatus();
}

absl::Status Sidecar::StartAdminPage() {
  if (settings_.admin_listen.empty()) return absl::OkStatus();
  auto page = AdminPage::Start(
      settings_.admin_listen,
      {.draining = [this] { return draining_.load(); },
       .metrics =
           [this] {
             return metrics_.Page(http_ == nullptr ? 0 : http_->connections(),
                                  once_->operations());
           }});
  if (!page.ok()) return page.status();
  admin_ = *std::move(page);
  WriteLog(LogSeverity::kInfo, "serving /healthz and /metrics",
           {{"address", settings_.admin_listen},
            {"port", absl::StrCat(admin_->port())}});
  return absl::OkStatus();
}

absl::StatusOr<std::optional<ProxyRules>> Sidecar::ReadRules() {
  auto rules = file_.ReadIfChanged();
  if (!rules.ok() || !rules->has_value()) return rules;
  // Nobody would see that they do not hold.
  if (!settings_.has_http() && !(*rules)->http.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(settings_.config, ": http: there is no --listen"));
  }
  if (!settings_.has_grpc() && !(*rules)->grpc.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(settings_.config, ": grpc: there is no --grpc_listen"));
  }
  return rules;
}

absl::Status Sidecar::Use(ProxyRules rules) {
  // First the half that may refuse them, so that both have the same file's.
  if (grpc_ != nullptr) {
    absl::Status set = grpc_->SetRoutes(WithNotice(rules.grpc));
    if (!set.ok()) return set;
  }
  if (http_ != nullptr) {
    http_->SetRules(std::make_shared<const ProxyRules>(std::move(rules)));
  }
  return absl::OkStatus();
}

void Sidecar::Reread() {
  absl::StatusOr<std::optional<ProxyRules>> rules = ReadRules();
  if (rules.ok() && !rules->has_value()) return;
  const absl::Status used =
      rules.ok() ? Use(*std::move(*rules)) : rules.status();
  metrics_.CountRules(used.ok());
  if (used.ok()) {
    WriteLog(LogSeverity::kInfo, "new rules", {{"file", settings_.config}});
  } else {
    WriteLog(LogSeverity::kError, "bad rules, the old ones stay",
             {{"file", settings_.config}, {"error", Text(used)}});
  }
}

void Sidecar::Drain() {
  draining_ = true;
  WriteLog(LogSeverity::kInfo, "draining");
  std::this_thread::sleep_for(settings_.drain_delay);
  std::thread grpc([this] {
    if (grpc_ != nullptr) grpc_->Drain(settings_.drain_timeout);
  });
  if (http_ != nullptr) http_->Drain(settings_.drain_timeout);
  grpc.join();
  // Last, what was cut is settled.
  admin_ = nullptr;
  grpc_ = nullptr;
  http_ = nullptr;
  once_ = nullptr;
  WriteLog(LogSeverity::kInfo, "drained");
}

void Sidecar::Notice(const HttpNotice& notice) {
  metrics_.Count(notice.kind);
  notices_.Write(LogSeverity::kWarning,
                 absl::StrCat("notice: ", NameOf(notice.kind)),
                 {{"scope", notice.scope}, {"why", Text(notice.why)}});
}

std::vector<GrpcRoute> Sidecar::WithNotice(std::vector<GrpcRoute> routes) {
  for (GrpcRoute& route : routes) {
    route.rule.notice = [this, scope = route.rule.scope,
                         fail_open = route.rule.fail_open](
                            std::string_view, const RunResult& result) {
      const auto kind = KindOf(result, fail_open);
      if (kind.has_value()) Notice({*kind, scope, result.status});
    };
  }
  return routes;
}

}  // namespace idempotency
