// What the tests of the HTTP middleware share: a server of cpp-httplib with
// guarded routes, in front of a real coordinator, and a client of bytes.
#ifndef IDEMPOTENCY_TESTS_INTEGRATION_HTTP_FIXTURE_H_
#define IDEMPOTENCY_TESTS_INTEGRATION_HTTP_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/http/httplib_adapter.h"
#include "client/http/middleware.h"
#include "client/run_once.h"
#include "tests/integration/wire_fixture.h"
#include "tests/support/port.h"
#include "tests/support/tcp_gate.h"

namespace idempotency {

// One TCP connection to a server on loopback.
class RawConnection {
 public:
  explicit RawConnection(int port) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_, reinterpret_cast<const sockaddr*>(&address),
                      sizeof address),
              0);
  }
  ~RawConnection() { close(socket_); }
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;

  // False if the server has had enough before all was sent.
  bool Send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent =
          send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  // All that comes until the server closes.
  std::string ReadToEnd() const { return ReadUntil(""); }
  // Or, unless it is empty, until these bytes are the last.
  std::string ReadUntil(std::string_view end) const {
    std::string bytes;
    char buffer[65536];
    while (end.empty() || !bytes.ends_with(end)) {
      const ssize_t size = recv(socket_, buffer, sizeof buffer, 0);
      if (size <= 0) return bytes;
      bytes.append(buffer, static_cast<std::size_t>(size));
    }
    return bytes;
  }

 private:
  const int socket_;
};

// "HTTP/1.1 201 Created" at the beginning of each answer in it.
inline std::vector<int> StatusesIn(const std::string& bytes) {
  std::vector<int> statuses;
  const std::string version = "HTTP/1.1 ";
  for (std::size_t at = bytes.find(version); at != std::string::npos;
       at = bytes.find(version, at + 1)) {
    statuses.push_back(std::stoi(bytes.substr(at + version.size(), 3)));
  }
  return statuses;
}

class HttpTest : public WireTest {
 protected:
  static void SetUpTestSuite() {
    const absl::StatusOr<std::string> database = TempPostgres::SharedDatabase();
    ASSERT_TRUE(database.ok()) << database.status();
    StartReplica(*database, {"--admin_listen=127.0.0.1:0"});
  }

  HttpTest() { ConnectTo(replica().target()); }
  ~HttpTest() override { StopServer(); }

  // Before the routes are given.
  void ConnectTo(const std::string& target) {
    guard_ = nullptr;
    middleware_ = nullptr;
    once_ = RunOnce::Connect(target);
    middleware_ = std::make_unique<HttpMiddleware>(
        *once_,
        HttpMiddlewareOptions{.notice = [this](const HttpNotice& notice) {
          const std::lock_guard lock(mutex_);
          notices_.push_back(notice.kind);
        }});
    guard_ = std::make_unique<HttplibGuard>(*middleware_);
  }

  // Likewise; the coordinator can then be out of reach.
  TcpGate& ConnectThroughAGate() {
    gate_ = *TcpGate::Make(replica().port());
    ConnectTo("127.0.0.1:" + std::to_string(gate_->port()));
    return *gate_;
  }

  static HttpRoute ARoute(const std::string& policy = "default") {
    return {.scope = kScope, .policy = policy, .required = true};
  }

  // POST, PUT and GET of /payments.
  void Serve(const HttpRoute& route, HttplibGuard::Handler handler,
             HttplibGuard::Resolver resolve = nullptr) {
    const HttplibGuard::Handler counted = Counted(std::move(handler));
    server_.Post("/payments", guard_->Wrap(route, counted, resolve));
    server_.Put("/payments", guard_->Wrap(route, counted, resolve));
    server_.Get("/payments", guard_->Wrap(route, counted, resolve));
    Listen();
  }
  // POST of /payments.
  void ServeBounded(std::size_t request_bytes_max, const HttpRoute& route,
                    HttplibGuard::Handler handler) {
    server_.Post("/payments", guard_->WrapBounded(request_bytes_max, route,
                                                  Counted(std::move(handler))));
    Listen();
  }
  // A handler that answers 201 with this.
  static HttplibGuard::Handler Answering(const std::string& body) {
    return [body](const httplib::Request&, httplib::Response& response,
                  Execution*) {
      response.status = 201;
      response.set_content(body, "application/json");
      return HttpEffect::kExecuted;
    };
  }
  void StopServer() {
    if (!listening_.joinable()) return;
    server_.stop();
    listening_.join();
  }

  httplib::Result Post(const httplib::Headers& headers,
                       const std::string& body = "{\"amount\":200}") const {
    httplib::Client client("127.0.0.1", port_);
    client.set_read_timeout(kPatience);
    return client.Post("/payments", headers, body, "application/json");
  }
  // As RFC 8941 has it.
  httplib::Result Pay(const std::string& key,
                      const std::string& body = "{\"amount\":200}") const {
    return Post({{"Idempotency-Key", "\"" + key + "\""}}, body);
  }

  // The bytes of a POST with these lines after the usual ones.
  static std::string PostBytes(const std::vector<std::string>& lines,
                               const std::string& body = "") {
    std::string bytes = "POST /payments HTTP/1.1\r\nHost: test\r\n";
    for (const std::string& line : lines) bytes += line + "\r\n";
    return bytes + "Content-Length: " + std::to_string(body.size()) +
           "\r\n\r\n" + body;
  }
  // The answer of a server that closes after it.
  std::string AnswerTo(const std::string& bytes) const {
    const RawConnection connection(port_);
    connection.Send(bytes);
    return connection.ReadToEnd();
  }

  // What Pay() is hashed to, for calls beside the middleware.
  static v1::ClaimRequest ClaimAsPaid(const std::string& key) {
    v1::ClaimRequest claim = ClaimFor(key);
    claim.set_request_hash(RequestHash({.method = "POST",
                                        .target = "/payments",
                                        .content_type = "application/json",
                                        .body = "{\"amount\":200}"}));
    return claim;
  }

  // One attempt of what Pay() asks for, whose outcome nobody knows.
  static void Abandon(const std::string& key) {
    v1::ClaimRequest claim = ClaimAsPaid(key);
    claim.set_policy("payment");
    Granted(claim);
    EXPECT_TRUE(
        Send(ReleaseOf(claim, v1::ReleaseRequest::DISPOSITION_OUTCOME_UNKNOWN))
            .status.ok());
  }
  // Ends the lease of the one that runs, and lets somebody else take it over.
  static v1::ClaimRequest TakeOver(const std::string& key) {
    Sql("UPDATE idempotency_records SET lease_expires_at = claimed_at + "
        "interval '1 microsecond', version = version + 1 WHERE key = '" +
        key + "'");
    const v1::ClaimRequest another = ClaimAsPaid(key);
    EXPECT_EQ(Granted(another).attempt(), 2);
    return another;
  }

  int runs() const { return runs_; }
  std::vector<HttpNotice::Kind> notices() const {
    const std::lock_guard lock(mutex_);
    return notices_;
  }
  RunOnce& once() { return *once_; }
  HttpMiddleware& middleware() { return *middleware_; }
  httplib::Server& server() { return server_; }
  int port() const { return port_; }

 private:
  HttplibGuard::Handler Counted(HttplibGuard::Handler handler) {
    return [this, handler = std::move(handler)](const httplib::Request& request,
                                                httplib::Response& response,
                                                Execution* execution) {
      ++runs_;
      return handler(request, response, execution);
    };
  }
  void Listen() {
    // A connection that has no more to say is closed soon.
    server_.set_keep_alive_timeout(1);
    port_ = server_.bind_to_any_port("127.0.0.1");
    ASSERT_GT(port_, 0);
    listening_ = std::thread([this] { server_.listen_after_bind(); });
    WaitUntil([this] { return server_.is_running(); });
  }

  mutable std::mutex mutex_;
  std::vector<HttpNotice::Kind> notices_;
  std::atomic<int> runs_{0};
  std::unique_ptr<TcpGate> gate_;
  std::unique_ptr<RunOnce> once_;
  std::unique_ptr<HttpMiddleware> middleware_;
  std::unique_ptr<HttplibGuard> guard_;
  httplib::Server server_;
  int port_ = 0;
  std::thread listening_;
};

inline bool IsMarked(const httplib::Result& result) {
  return result && result->get_header_value("Idempotent-Replayed") == "true";
}

// The answer is that problem, and no replay.
MATCHER_P2(IsProblem, status, name, "") {
  if (!arg) {
    *result_listener << "no answer: " << httplib::to_string(arg.error());
    return false;
  }
  *result_listener << arg->status << " " << arg->body;
  const auto body = nlohmann::json::parse(arg->body, nullptr, false);
  return arg->status == status &&
         arg->get_header_value("Content-Type") == "application/problem+json" &&
         !IsMarked(arg) && body.is_object() &&
         body.value("type", "") == std::string("urn:idempotency:") + name &&
         body.value("status", 0) == status;
}

// The answer is that, run now.
MATCHER_P2(Is, status, body, "") {
  if (!arg) {
    *result_listener << "no answer: " << httplib::to_string(arg.error());
    return false;
  }
  *result_listener << arg->status << " " << arg->body
                   << (IsMarked(arg) ? " (replayed)" : "");
  return arg->status == status && arg->body == body && !IsMarked(arg);
}

// The answer is that, recorded earlier.
MATCHER_P2(IsReplay, status, body, "") {
  if (!arg) {
    *result_listener << "no answer: " << httplib::to_string(arg.error());
    return false;
  }
  *result_listener << arg->status << " " << arg->body
                   << (IsMarked(arg) ? " (replayed)" : "");
  return arg->status == status && arg->body == body && IsMarked(arg);
}

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_INTEGRATION_HTTP_FIXTURE_H_
