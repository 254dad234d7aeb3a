#include "tests/integration/metrics_page.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <limits>
#include <sstream>
#include <utility>

namespace idempotency {
namespace {

constexpr timeval kPatience{.tv_sec = 10, .tv_usec = 0};
constexpr char kHeadersEnd[] = "\r\n\r\n";

// Sends `request` and reads to the end of the answer; empty if that fails.
std::string Exchange(int port, const std::string& request) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return "";
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<in_port_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) ==
          0 &&
      send(fd, request.data(), request.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(request.size())) {
    char buffer[16 * 1024];
    ssize_t got = 0;
    while ((got = recv(fd, buffer, sizeof(buffer), 0)) > 0) {
      answer.append(buffer, static_cast<std::size_t>(got));
    }
    if (got < 0) answer.clear();
  }
  close(fd);
  return answer;
}

}  // namespace

absl::StatusOr<MetricsPage> MetricsPage::Get(int port,
                                             const std::string& path) {
  const std::string answer =
      Exchange(port, "GET " + path +
                         " HTTP/1.1\r\nHost: localhost\r\n"
                         "Connection: close\r\n\r\n");
  const std::size_t end = answer.find(kHeadersEnd);
  if (answer.rfind("HTTP/1.1 200 ", 0) != 0 || end == std::string::npos) {
    return absl::UnavailableError("no page: " + answer.substr(0, 200));
  }
  const std::string length = "Content-Length: ";
  const std::size_t at = answer.find(length);
  std::string body = answer.substr(end + std::string(kHeadersEnd).size());
  if (at > end || std::strtoul(answer.c_str() + at + length.size(), nullptr,
                               10) != body.size()) {
    return absl::DataLossError("a page of another length than it says");
  }
  return MetricsPage(std::move(body));
}

MetricsPage::MetricsPage(std::string text) : text_(std::move(text)) {
  std::istringstream lines(text_);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::size_t space = line.rfind(' ');
    EXPECT_NE(space, std::string::npos) << line;
    const bool first =
        values_
            .emplace(line.substr(0, space),
                     std::strtod(line.c_str() + space + 1, nullptr))
            .second;
    EXPECT_TRUE(first) << "twice: " << line;
  }
}

double MetricsPage::Value(const std::string& series) const {
  const auto found = values_.find(series);
  if (found != values_.end()) return found->second;
  ADD_FAILURE() << "no series " << series;
  return std::numeric_limits<double>::quiet_NaN();
}

std::map<std::string, double> MetricsPage::Under(
    const std::string& prefix) const {
  std::map<std::string, double> found;
  for (auto series = values_.lower_bound(prefix);
       series != values_.end() && series->first.rfind(prefix, 0) == 0;
       ++series) {
    found.insert(*series);
  }
  return found;
}

double MetricsPage::Sum(const std::string& prefix) const {
  double sum = 0;
  for (const auto& [series, value] : Under(prefix)) sum += value;
  return sum;
}

std::vector<std::string> MetricsPage::Families() const {
  std::vector<std::string> names;
  std::istringstream lines(text_);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string hash, type, name;
    if (words >> hash >> type >> name && hash == "#" && type == "TYPE") {
      names.push_back(name);
    }
  }
  return names;
}

int AdminPortOf(const Replica& replica) {
  const absl::StatusOr<std::string> line =
      replica.WaitForLogLine("metrics are served");
  EXPECT_TRUE(line.ok()) << line.status();
  const std::string marker = "\"port\":\"";
  const std::size_t at = line.ok() ? line->find(marker) : std::string::npos;
  EXPECT_NE(at, std::string::npos);
  if (at == std::string::npos) return 0;
  return std::atoi(line->c_str() + at + marker.size());
}

}  // namespace idempotency
