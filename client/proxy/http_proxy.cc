#include "client/proxy/http_proxy.h"

#include <atomic>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/http/problem.h"
#include "client/mutex.h"
#include "client/proxy/http_connection.h"
#include "client/proxy/listener.h"
#include "client/proxy/socket.h"

namespace idempotency {
namespace {

// What somebody is told for whom there is no thread, whatever they ask.
std::string FullAnswer() {
  constexpr char kPrefix[] = "urn:idempotency:";
  const v1::Response problem =
      MakeProblem(kUnavailable, kPrefix, "too many connections at a time");
  return absl::StrCat(
      "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n"
      "Content-Type: application/problem+json\r\nRetry-After: 1\r\n"
      "Content-Length: ",
      problem.body().size(), "\r\n\r\n", problem.body());
}

// The rules, with leases that are renewed for as long as a request may take.
std::shared_ptr<const ProxyRules> Renewing(
    std::shared_ptr<const ProxyRules> rules,
    std::chrono::milliseconds connect_timeout) {
  auto renewing = std::make_shared<ProxyRules>(*rules);
  for (std::shared_ptr<const HttpProxyRoute>& route : renewing->http) {
    auto longer = std::make_shared<HttpProxyRoute>(*route);
    longer->rule.max_run_time = route->timeout + connect_timeout;
    route = std::move(longer);
  }
  return renewing;
}

}  // namespace

struct HttpProxy::Impl {
  Impl(HttpProxyOptions given, internal::HostAndPort upstream,
       std::shared_ptr<const ProxyRules> rules, std::shared_ptr<RunOnce> runs)
      : once(std::move(runs)),
        middleware(*once, HttpMiddlewareOptions{.notice = given.notice}),
        context{.options = std::move(given),
                .upstream = std::move(upstream),
                .middleware = middleware,
                .rules = internal::CurrentRules(std::move(rules))} {}

  const std::shared_ptr<RunOnce> once;
  HttpMiddleware middleware;
  internal::HttpContext context;
  std::atomic<bool> drained{false};
  // Last: its threads use all of it.
  std::unique_ptr<internal::Listener> listener;
};

HttpProxy::HttpProxy(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpProxy::~HttpProxy() { Drain(std::chrono::milliseconds(0)); }

absl::StatusOr<std::unique_ptr<HttpProxy>> HttpProxy::Start(
    HttpProxyOptions options, std::shared_ptr<const ProxyRules> rules,
    std::shared_ptr<RunOnce> once) {
  auto upstream = internal::ParseHostAndPort(options.upstream);
  if (!upstream.ok()) return upstream.status();
  internal::ListenerOptions listening{
      .listen = options.listen,
      .connections_max = options.connections_max,
      .full = FullAnswer()};
  rules = Renewing(std::move(rules), options.connect_timeout);
  auto impl = std::make_unique<Impl>(std::move(options), *std::move(upstream),
                                     std::move(rules), std::move(once));
  internal::HttpContext& context = impl->context;
  auto listener = internal::Listener::Start(
      std::move(listening), context.stop, context.cut,
      [&context](internal::Socket socket) {
        internal::HttpConnection(std::move(socket), context).Serve();
      });
  if (!listener.ok()) return listener.status();
  impl->listener = *std::move(listener);
  return std::unique_ptr<HttpProxy>(new HttpProxy(std::move(impl)));
}

int HttpProxy::port() const { return impl_->listener->port(); }

std::size_t HttpProxy::connections() const {
  return impl_->listener->connections();
}

void HttpProxy::SetRules(std::shared_ptr<const ProxyRules> rules) {
  impl_->context.rules.Set(
      Renewing(std::move(rules), impl_->context.options.connect_timeout));
}

void HttpProxy::Drain(std::chrono::milliseconds grace) {
  if (impl_->drained.exchange(true)) return;
  impl_->context.stop.Ring();
  impl_->listener->AwaitNone(grace);
  impl_->context.cut.Ring();
  impl_->listener->AwaitNone();
}

}  // namespace idempotency
