#include "tests/integration/proxy_fixture.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <sstream>

#include "tests/support/port.h"

namespace idempotency {
namespace {

// What is left of some bytes.
class Rest {
 public:
  explicit Rest(std::string_view bytes) : bytes_(bytes) {}

  std::string Line() {
    const std::size_t end = std::min(bytes_.find("\r\n"), bytes_.size());
    const std::string line(bytes_.substr(0, end));
    Take(end + 2);
    return line;
  }
  std::string_view Take(std::size_t size) {
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(taken.size());
    return taken;
  }
  bool StartsWith(std::string_view text) const {
    return bytes_.starts_with(text);
  }
  std::size_t size() const { return bytes_.size(); }

 private:
  std::string_view bytes_;
};

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return text;
}

void TakeChunks(Rest& rest, HttpAnswer& answer) {
  while (rest.size() > 0) {
    const std::size_t size = std::stoul("0" + rest.Line(), nullptr, 16);
    answer.whole = size == 0 && rest.StartsWith("\r\n");
    answer.body += rest.Take(size);
    rest.Take(2);
    if (size == 0) return;
  }
}

void TakeBody(Rest& rest, HttpAnswer& answer) {
  if (answer.header("transfer-encoding") == "chunked") {
    return TakeChunks(rest, answer);
  }
  const std::string length = answer.header("content-length");
  const std::size_t size = length.empty() ? rest.size() : std::stoul(length);
  answer.body = rest.Take(size);
  answer.whole = answer.body.size() == size;
}

}  // namespace

TestConnection::TestConnection(int port)
    : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const timeval patience{.tv_sec = 30, .tv_usec = 0};
  setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  // Whoever is refused sends into nothing and reads nothing.
  connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address);
}

TestConnection::~TestConnection() { close(socket_); }

bool TestConnection::Send(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t sent =
        send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

std::string TestConnection::Read(const std::string& until) const {
  std::string bytes;
  char buffer[65536];
  while (until.empty() || bytes.find(until) == std::string::npos) {
    const ssize_t size = recv(socket_, buffer, sizeof buffer, 0);
    if (size <= 0) break;
    bytes.append(buffer, static_cast<std::size_t>(size));
  }
  return bytes;
}

std::vector<HttpAnswer> AnswersIn(const std::string& bytes, bool to_head) {
  std::vector<HttpAnswer> answers;
  Rest rest(bytes);
  while (rest.StartsWith("HTTP/1.")) {
    HttpAnswer answer;
    answer.status = std::stoi(rest.Line().substr(9));
    for (std::string line = rest.Line(); !line.empty(); line = rest.Line()) {
      const std::size_t colon = line.find(": ");
      answer.headers.emplace(Lower(line.substr(0, colon)),
                             line.substr(colon + 2));
    }
    if (to_head || answer.status < 200 || answer.status == 204 ||
        answer.status == 304) {
      answer.whole = true;
    } else {
      TakeBody(rest, answer);
    }
    answers.push_back(std::move(answer));
  }
  return answers;
}

std::string TestRequest::Bytes() const {
  std::ostringstream bytes;
  bytes << method << " " << target << " HTTP/1.1\r\nHost: shop.test\r\n"
        << "Connection: close\r\n";
  for (const auto& [name, value] : headers) {
    bytes << name << ": " << value << "\r\n";
  }
  if (!body.empty()) bytes << "Content-Length: " << body.size() << "\r\n";
  bytes << "\r\n" << body;
  return bytes.str();
}

HttpAnswer Ask(int port, const TestRequest& request) {
  const TestConnection connection(port);
  connection.Send(request.Bytes());
  const auto answers = AnswersIn(connection.Read(), request.method == "HEAD");
  return answers.empty() ? HttpAnswer() : answers.back();
}

PlainService::PlainService(int port) : port_(port == 0 ? FreePort() : port) {
  auto started = ServerProcess::Start(
      {.program = "/usr/bin/python3",
       .arguments = {PLAIN_SERVICE_SCRIPT, std::to_string(port_)},
       .environment = {},
       .output_file = {}});
  EXPECT_TRUE(started.ok()) << started.status();
  process_ = *std::move(started);
  const absl::Status listens = process_->WaitForPort(port_);
  EXPECT_TRUE(listens.ok()) << listens;
}

void PlainService::Next(const std::vector<Json>& plans) const {
  EXPECT_EQ(
      Ask(port_,
          {.method = "PUT", .target = "/control", .body = Json(plans).dump()})
          .status,
      204);
}

void PlainService::Release() const {
  EXPECT_EQ(
      Ask(port_, {.method = "PUT", .target = "/release", .body = ""}).status,
      204);
}

std::vector<Json> PlainService::Seen() const {
  const HttpAnswer answer =
      Ask(port_, {.method = "GET", .target = "/seen", .body = ""});
  EXPECT_EQ(answer.status, 200);
  return Json::parse(answer.body).get<std::vector<Json>>();
}

std::string HeaderOf(const Json& seen, const std::string& name) {
  for (const Json& header : seen["headers"]) {
    if (Lower(header[0]) == Lower(name)) return header[1];
  }
  return "";
}

TestSidecar::TestSidecar(const std::string& config_file,
                         std::vector<std::string> flags) {
  flags.insert(flags.end(), {"--config=" + config_file, "--listen=127.0.0.1:0",
                             "--admin_listen=127.0.0.1:0"});
  auto started = ServerProcess::Start({.program = SIDECAR_PROGRAM,
                                       .arguments = std::move(flags),
                                       .environment = {},
                                       .output_file = {}});
  EXPECT_TRUE(started.ok()) << started.status();
  process_ = *std::move(started);
  const auto port_in = [&](const char* message) {
    const auto line = process_->WaitForLine(message);
    EXPECT_TRUE(line.ok()) << line.status();
    if (!line.ok()) return 0;
    return std::stoi(Json::parse(*line)["port"].get<std::string>());
  };
  port_ = port_in("listening for HTTP");
  admin_port_ = port_in("serving /healthz");
}

std::unique_ptr<PlainService> ProxyTest::service_;

void ProxyTest::SetUpTestSuite() {
  WireTest::SetUpTestSuite();
  service_ = std::make_unique<PlainService>();
}

void ProxyTest::TearDownTestSuite() {
  service_ = nullptr;
  WireTest::TearDownTestSuite();
}

ProxyTest::ProxyTest() {
  auto folder = TempFolder::Make();
  EXPECT_TRUE(folder.ok()) << folder.status();
  folder_ = *std::move(folder);
  service().Next({});
  service().Seen();
}

Json ProxyTest::RuleOf(const Json& fields) {
  Json route = {{"match", "POST,PUT /payments"}, {"scope", kScope}};
  if (!fields.is_null()) route.update(fields);
  return {{"http", {{"routes", Json::array({route})}}}};
}

void ProxyTest::WriteRules(const std::string& text) const {
  std::ofstream(config_file()) << text;
}

void ProxyTest::StartProxy(const Json& fields, std::vector<std::string> flags) {
  WriteRules(RuleOf(fields).dump());
  // A test's own come later, and count.
  flags.insert(flags.begin(),
               {"--upstream=127.0.0.1:" + std::to_string(service().port()),
                "--coordinator=" + replica().target()});
  sidecar_ = std::make_unique<TestSidecar>(config_file(), std::move(flags));
}

}  // namespace idempotency
