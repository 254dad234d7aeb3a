#include "tests/support/port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

namespace idempotency {
namespace {

constexpr int kFirstPort = 20000;
constexpr int kLastPort = 32000;
constexpr int kTriesMax = 1000;

// An abstract unix socket named after the port: bound once on the machine, and
// gone with the process. The descriptor is kept on purpose.
bool Reserve(int port) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "idempotency-test-port-" + std::to_string(port);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0) return true;
  close(fd);
  return false;
}

bool IsFree(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<in_port_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool free =
      bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return free;
}

}  // namespace

int FreePort() {
  std::random_device random;
  std::uniform_int_distribution<int> ports(kFirstPort, kLastPort);
  for (int i = 0; i < kTriesMax; ++i) {
    const int port = ports(random);
    if (IsFree(port) && Reserve(port)) return port;
  }
  std::fputs("no free TCP port\n", stderr);
  std::abort();
}

}  // namespace idempotency
