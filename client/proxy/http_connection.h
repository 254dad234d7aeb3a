// One caller's connection to the sidecar's HTTP half. For http_proxy.cc.
#ifndef IDEMPOTENCY_CLIENT_PROXY_HTTP_CONNECTION_H_
#define IDEMPOTENCY_CLIENT_PROXY_HTTP_CONNECTION_H_

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "client/http/middleware.h"
#include "client/http/problem.h"
#include "client/mutex.h"
#include "client/proxy/guarded_request.h"
#include "client/proxy/http_proxy.h"
#include "client/proxy/http_wire.h"
#include "client/proxy/rules.h"
#include "client/proxy/socket.h"

namespace idempotency::internal {

// The rules that hold now. Thread-safe.
class CurrentRules {
 public:
  explicit CurrentRules(std::shared_ptr<const ProxyRules> rules)
      : rules_(std::move(rules)) {}

  std::shared_ptr<const ProxyRules> Get() {
    MutexLock lock(mutex_);
    return rules_;
  }
  void Set(std::shared_ptr<const ProxyRules> rules) {
    MutexLock lock(mutex_);
    rules_.swap(rules);
  }

 private:
  Mutex mutex_;
  std::shared_ptr<const ProxyRules> rules_ ABSL_GUARDED_BY(mutex_);
};

// What the connections share.
struct HttpContext {
  const HttpProxyOptions options;
  const HostAndPort upstream;
  HttpMiddleware& middleware;
  CurrentRules rules;
  // No more requests; and no more of anything.
  Alarm stop = {};
  Alarm cut = {};
};

// Of one thread.
class HttpConnection {
 public:
  HttpConnection(Socket socket, HttpContext& context)
      : context_(context), caller_(std::move(socket)) {}

  // Until the caller has no more requests, or is not to send any.
  void Serve();

 private:
  // These return whether a further request may follow.
  bool ServeOne();
  bool Take(const RequestHead& head);
  bool PassThrough(const RequestHead& head);
  bool Guard(const RequestHead& head, const HttpProxyRoute& route);
  // Answers instead of the service. The rest of the request is not read.
  bool Refuse(const Problem& problem, ProxyAnswer answer,
              std::string_view detail = "");
  bool RefuseFor(const absl::Status& error);

  // Whether the request is one that can be served at all; answers if not.
  bool IsServed(const RequestHead& head);
  // Asks for a body that is held back. Whether the caller is there.
  bool AskForBody(const RequestHead& head);
  // False: it was answered, or the caller is gone.
  bool ReadBody(const RequestHead& head, std::string& body);
  // Whether the caller is still there. `whole`: the service took all of it.
  bool RelayRequest(const RequestHead& head, UpstreamStream& upstream,
                    bool& whole);
  // Whether it came to its end.
  bool RelayResponse(UpstreamStream& upstream);
  bool WriteResponse(const v1::Response& response, bool keep_alive);
  // Of a guarded request, whose answer is longer than is recorded.
  bool WriteLong(GuardedRequest& guarded, const ResponseHead& head,
                 bool keep_alive);

  void Answered(ProxyAnswer answer, const std::string& scope = "") const;
  bool KeepsAlive(const RequestHead& head) const;
  Socket::TimePoint Within(std::chrono::milliseconds timeout) const {
    return std::chrono::steady_clock::now() + timeout;
  }

  HttpContext& context_;
  CallerStream caller_;
  // Something of the caller's may be unread.
  bool close_gently_ = false;
};

}  // namespace idempotency::internal

#endif  // IDEMPOTENCY_CLIENT_PROXY_HTTP_CONNECTION_H_
