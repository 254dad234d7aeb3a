#include "tests/fault/caller/wallet.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace idempotency::fault {
namespace {

// How long a caller waits for an answer.
constexpr timeval kPatience{1, 0};
constexpr int kBacklog = 256;
constexpr std::size_t kLineBytesMax = 4096;

// On the socket a request is a line of its fields, separated by tabs, which no
// key holds; an answer is a line of one word.
constexpr std::array<std::string_view, 3> kVerbs = {"charge", "find", "refuse"};
constexpr std::array<std::string_view, 4> kAnswers = {"executed", "duplicate",
                                                      "refused", "absent"};

template <typename Enum, std::size_t kSize>
std::optional<Enum> Named(const std::array<std::string_view, kSize>& names,
                          std::string_view name) {
  for (std::size_t i = 0; i < kSize; ++i) {
    if (names[i] == name) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

std::string FormatRequest(const WalletRequest& request) {
  std::string line(kVerbs[static_cast<std::size_t>(request.verb)]);
  absl::StrAppend(&line, "\t", request.scope, "\t", request.key, "\t",
                  request.downstream, "\t", request.token, "\t",
                  request.fencing, "\n");
  return line;
}

std::optional<WalletRequest> ParseRequest(const std::string& line) {
  const std::vector<std::string> fields = absl::StrSplit(line, '\t');
  WalletRequest request;
  if (fields.size() != 6 || !absl::SimpleAtoi(fields[5], &request.fencing)) {
    return std::nullopt;
  }
  const auto verb = Named<WalletVerb>(kVerbs, fields[0]);
  if (!verb.has_value()) return std::nullopt;
  request.verb = *verb;
  request.scope = fields[1];
  request.key = fields[2];
  request.downstream = fields[3];
  request.token = fields[4];
  return request;
}

std::optional<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return std::nullopt;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

bool SendAll(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

// The next line, without its end; nothing at the end of the connection. What
// was read of later ones stays in `buffer`.
std::optional<std::string> ReadLine(int socket, std::string& buffer) {
  for (;;) {
    const std::size_t end = buffer.find('\n');
    if (end != std::string::npos) {
      std::string line = buffer.substr(0, end);
      buffer.erase(0, end + 1);
      return line;
    }
    std::array<char, kLineBytesMax> bytes;
    const ssize_t got = recv(socket, bytes.data(), bytes.size(), 0);
    if (got <= 0 || buffer.size() > kLineBytesMax) return std::nullopt;
    buffer.append(bytes.data(), static_cast<std::size_t>(got));
  }
}

bool Happens(int thousandths, std::mt19937_64& random) {
  return static_cast<int>(random() % 1000) < thousandths;
}

}  // namespace

// --------------------------------------------------------------------- Wallet

absl::StatusOr<std::unique_ptr<Wallet>> Wallet::Open(
    const std::string& ledger_path) {
  absl::StatusOr<std::unique_ptr<HistoryWriter>> ledger =
      HistoryWriter::Open(ledger_path);
  if (!ledger.ok()) return ledger.status();
  std::unordered_map<std::string, bool> charged;
  const absl::Status read =
      ReadHistory(ledger_path, [&charged](const Event& event) {
        const auto* const effect = std::get_if<EffectEvent>(&event);
        if (effect == nullptr) return absl::InvalidArgumentError("no effect");
        charged.emplace(effect->downstream,
                        effect->result != EffectResult::kRefused);
        return absl::OkStatus();
      });
  if (!read.ok()) return read;
  return std::unique_ptr<Wallet>(
      new Wallet(*std::move(ledger), std::move(charged)));
}

WalletAnswer Wallet::Ask(const WalletRequest& request) {
  MutexLock lock(mutex_);
  const auto found = charged_.find(request.downstream);
  const bool known = found != charged_.end();
  const bool charged = known && found->second;
  if (request.verb == WalletVerb::kFind) {
    return charged ? WalletAnswer::kDuplicate
                   : (known ? WalletAnswer::kRefused : WalletAnswer::kAbsent);
  }
  if (charged) {
    if (request.verb == WalletVerb::kCharge) {
      Write(request, EffectResult::kDuplicate);
    }
    return WalletAnswer::kDuplicate;
  }
  const bool acts = request.verb == WalletVerb::kCharge && !known;
  Write(request, acts ? EffectResult::kExecuted : EffectResult::kRefused);
  charged_.emplace(request.downstream, acts);
  return acts ? WalletAnswer::kExecuted : WalletAnswer::kRefused;
}

void Wallet::Write(const WalletRequest& request, EffectResult result) {
  EffectEvent effect;
  effect.t = MonotonicNow();
  effect.scope = request.scope;
  effect.key = request.key;
  effect.downstream = request.downstream;
  effect.token = request.token;
  effect.fencing = request.fencing;
  effect.result = result;
  const absl::Status written = ledger_->Append(effect);
  if (written.ok()) return;
  std::fprintf(stderr, "%s\n", written.ToString().c_str());
  std::abort();
}

// --------------------------------------------------------------- WalletServer

absl::StatusOr<std::unique_ptr<WalletServer>> WalletServer::Start(
    Wallet& wallet, Options options) {
  const auto address = AddressOf(options.socket_path);
  if (!address.has_value()) {
    return absl::InvalidArgumentError("too long: " + options.socket_path);
  }
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  unlink(options.socket_path.c_str());
  if (listener < 0 ||
      bind(listener, reinterpret_cast<const sockaddr*>(&*address),
           sizeof(*address)) != 0 ||
      listen(listener, kBacklog) != 0) {
    absl::Status error =
        absl::ErrnoToStatus(errno, "cannot listen at " + options.socket_path);
    close(listener);
    return error;
  }
  std::unique_ptr<WalletServer> server(
      new WalletServer(wallet, std::move(options), listener));
  server->acceptor_ = std::thread([&server = *server] { server.Accept(); });
  return server;
}

WalletServer::~WalletServer() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    for (const Connection& one : connections_) shutdown(one.socket, SHUT_RD);
  }
  // Wakes the acceptor, after which there are no more connections.
  shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  Reap(true);
  close(listener_);
  unlink(options_.socket_path.c_str());
}

void WalletServer::Accept() {
  for (std::uint64_t seed = options_.seed;; ++seed) {
    const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    Reap(false);
    MutexLock lock(mutex_);
    if (socket < 0 || stopping_) {
      if (socket >= 0) close(socket);
      if (stopping_) return;
      continue;
    }
    Connection& one = connections_.emplace_back();
    one.socket = socket;
    one.thread = std::thread([this, &one, seed] { Serve(one, seed); });
  }
}

void WalletServer::Reap(bool all) {
  std::list<Connection> ended;
  {
    MutexLock lock(mutex_);
    for (auto one = connections_.begin(); one != connections_.end();) {
      const auto next = std::next(one);
      if (all || one->ended) ended.splice(ended.end(), connections_, one);
      one = next;
    }
  }
  for (Connection& one : ended) {
    one.thread.join();
    close(one.socket);
  }
}

void WalletServer::Serve(Connection& connection, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string buffer;
  while (const auto line = ReadLine(connection.socket, buffer)) {
    if (!Answer(connection.socket, *line, random)) break;
  }
  // Its descriptor is closed with the thread, so that it is nobody else's yet.
  shutdown(connection.socket, SHUT_RDWR);
  connection.ended = true;
}

bool WalletServer::Answer(int socket, const std::string& line,
                          std::mt19937_64& random) {
  if (Happens(options_.lost_before, random)) return false;
  const std::optional<WalletRequest> request = ParseRequest(line);
  if (!request.has_value()) return false;
  const WalletAnswer answer = wallet_.Ask(*request);
  if (Happens(options_.lost_after, random)) return false;
  if (Happens(options_.late, random)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(
        random() % static_cast<unsigned>(options_.late_ms_max)));
  }
  std::string word(kAnswers[static_cast<std::size_t>(answer)]);
  return SendAll(socket, word += '\n');
}

// --------------------------------------------------------------- WalletClient

WalletClient::~WalletClient() { Close(); }

void WalletClient::Close() {
  if (socket_ >= 0) close(std::exchange(socket_, -1));
}

absl::StatusOr<WalletAnswer> WalletClient::Ask(const WalletRequest& request) {
  if (socket_ < 0) {
    const auto address = AddressOf(socket_path_);
    if (!address.has_value()) {
      return absl::InvalidArgumentError("too long: " + socket_path_);
    }
    socket_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
    if (connect(socket_, reinterpret_cast<const sockaddr*>(&*address),
                sizeof(*address)) != 0) {
      Close();
      return absl::UnavailableError("no wallet");
    }
  }
  std::string buffer;
  if (SendAll(socket_, FormatRequest(request))) {
    if (const auto line = ReadLine(socket_, buffer)) {
      if (const auto answer = Named<WalletAnswer>(kAnswers, *line)) {
        return *answer;
      }
    }
  }
  // A late answer must not be taken for the next one's.
  Close();
  return absl::UnavailableError("the wallet did not answer");
}

}  // namespace idempotency::fault
