// What the tests of the sidecar's HTTP half share: the built sidecar as a
// process, before a plain Python service, with a real coordinator; and HTTP
// spoken byte by byte.
#ifndef IDEMPOTENCY_TESTS_INTEGRATION_PROXY_FIXTURE_H_
#define IDEMPOTENCY_TESTS_INTEGRATION_PROXY_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/integration/wire_fixture.h"
#include "tests/support/server_process.h"
#include "tests/support/temp_folder.h"

namespace idempotency {

using Json = nlohmann::json;

// A TCP connection to 127.0.0.1. Its waits are bounded.
class TestConnection {
 public:
  explicit TestConnection(int port);
  ~TestConnection();
  TestConnection(const TestConnection&) = delete;
  TestConnection& operator=(const TestConnection&) = delete;

  // False if the other side has had enough before all was sent.
  bool Send(std::string_view bytes) const;
  // Until the other side ends, or has sent this. All that came since the last.
  std::string Read(const std::string& until = "") const;

 private:
  const int socket_;
};

struct HttpAnswer {
  int status = 0;
  std::multimap<std::string, std::string> headers;  // names in lower case
  std::string body;
  bool whole = false;  // not cut off

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

// For messages of failed tests.
inline void PrintTo(const HttpAnswer& answer, std::ostream* out) {
  *out << answer.status << " " << answer.body.substr(0, 500)
       << (answer.whole ? "" : " (cut off)");
}

// The answers, one after the other, in what a server sent until it closed.
std::vector<HttpAnswer> AnswersIn(const std::string& bytes,
                                  bool to_head = false);

struct TestRequest {
  std::string method = "POST";
  std::string target = "/payments";
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::string body = "{\"amount\":200}";

  // With a length, and asking for the connection's end.
  std::string Bytes() const;
};

// 0 without one.
HttpAnswer Ask(int port, const TestRequest& request);

// Python's service, see plain_service.py.
class PlainService {
 public:
  // At that port, or at a free one.
  explicit PlainService(int port = 0);

  int port() const { return port_; }
  ServerProcess& process() const { return *process_; }

  void Next(const std::vector<Json>& plans) const;
  void Release() const;
  // What it was asked since the last call.
  std::vector<Json> Seen() const;

 private:
  const int port_;
  std::unique_ptr<ServerProcess> process_;
};

// Of a request that the service saw: the value of that header, in any case.
std::string HeaderOf(const Json& seen, const std::string& name);

class TestSidecar {
 public:
  // With what it needs to listen for HTTP beside `flags`. Waits until it does.
  TestSidecar(const std::string& config_file, std::vector<std::string> flags);

  int port() const { return port_; }
  int admin_port() const { return admin_port_; }
  ServerProcess& process() const { return *process_; }

 private:
  std::unique_ptr<ServerProcess> process_;
  int port_ = 0;
  int admin_port_ = 0;
};

class ProxyTest : public WireTest {
 protected:
  static void SetUpTestSuite();
  static void TearDownTestSuite();
  ProxyTest();

  static PlainService& service() { return *service_; }

  // A sidecar before the service, with one route of "POST,PUT /payments" and
  // these further fields. It stays until the test ends.
  void StartProxy(const Json& fields = {}, std::vector<std::string> flags = {});
  void WriteRules(const std::string& text) const;
  static Json RuleOf(const Json& fields);
  std::string config_file() const { return folder_->path() + "/rules.json"; }

  int port() const { return sidecar_->port(); }
  TestSidecar& sidecar() const { return *sidecar_; }
  void StopProxy() { sidecar_ = nullptr; }

  HttpAnswer Pay(const std::string& key,
                 const std::string& body = "{\"amount\":200}") const {
    return Ask(port(),
               {.headers = {{"Idempotency-Key", Quoted(key)}}, .body = body});
  }
  static std::string Quoted(const std::string& key) {
    return "\"" + key + "\"";
  }
  v1::Record RecordAt(const std::string& key) const {
    v1::ClaimRequest claim = ClaimFor(key);
    return RecordOf(claim);
  }

 private:
  static std::unique_ptr<PlainService> service_;
  std::unique_ptr<TempFolder> folder_;
  std::unique_ptr<TestSidecar> sidecar_;
};

// The answer is that problem, and no replay.
MATCHER_P2(IsProblem, status, name, "") {
  const Json body = Json::parse(arg.body, nullptr, false);
  return arg.status == status && arg.whole &&
         arg.header("content-type") == "application/problem+json" &&
         arg.header("idempotent-replayed").empty() && body.is_object() &&
         body.value("type", "") == std::string("urn:idempotency:") + name;
}

// The answer is that, of the service; or that, recorded earlier.
MATCHER_P2(IsAnswer, status, body, "") {
  return arg.status == status && arg.body == body && arg.whole &&
         arg.header("idempotent-replayed").empty();
}
MATCHER_P2(IsReplay, status, body, "") {
  return arg.status == status && arg.body == body && arg.whole &&
         arg.header("idempotent-replayed") == "true";
}

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_INTEGRATION_PROXY_FIXTURE_H_
