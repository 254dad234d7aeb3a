// idempotency-payments: a payment service behind the middleware.
//
//   POST /payments {"account": "alice", "amount_cents": 1999}
//
// charges the wallet once for each Idempotency-Key, whatever becomes of the
// answers, of the wallet's and of this process. client/examples/payments/run.sh
// starts all that it needs.

#include <httplib.h>
#include <signal.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "client/demo/night/wallet_client.h"
#include "client/http/httplib_adapter.h"
#include "client/http/middleware.h"
#include "client/run_once.h"
#include "nlohmann/json.hpp"

ABSL_FLAG(std::string, host, "127.0.0.1", "Where to listen.");
ABSL_FLAG(int, port, 8081, "Where to listen.");
ABSL_FLAG(std::string, coordinator, "127.0.0.1:50051",
          "HOST:PORT of the coordinator.");
ABSL_FLAG(std::string, channel, "", "HOST:PORT of the wallet.");
ABSL_FLAG(std::string, name, "payments",
          "This pod, as the coordinator's records name it.");

namespace idempotency {
namespace {

using night::LedgerEntry;
using night::WalletClient;

constexpr std::chrono::milliseconds kWalletTimeout{3000};
// How long everybody waits for a pod that died with a payment in hand. In
// earnest rather 30 s, which the policy says; nobody wants to watch that.
constexpr std::chrono::milliseconds kLease{3000};

constexpr std::size_t kBodyBytesMax = 16 * 1024;

struct Payment {
  std::string account;
  std::int64_t amount_cents = 0;
};

std::optional<Payment> ParsePayment(const std::string& body) {
  const auto json = nlohmann::json::parse(body, nullptr, false);
  if (!json.is_object() || !json.contains("account") ||
      !json["account"].is_string() || !json.contains("amount_cents") ||
      !json["amount_cents"].is_number_integer()) {
    return std::nullopt;
  }
  const Payment payment{json["account"], json["amount_cents"]};
  if (payment.amount_cents <= 0) return std::nullopt;
  return payment;
}

// The same, whoever found out about the charge: its handler or its resolver.
std::string Receipt(const Payment& payment, const LedgerEntry& charge) {
  return nlohmann::json({{"payment", charge.id()},
                         {"account", payment.account},
                         {"amount_cents", charge.amount()}})
      .dump();
}

void Refuse(httplib::Response& response, int status, const std::string& title) {
  response.status = status;
  response.set_content(
      nlohmann::json({{"status", status}, {"title", title}}).dump(),
      "application/problem+json");
}

// Executes the payment.
HttpEffect Pay(WalletClient& wallet, const httplib::Request& request,
               httplib::Response& response, const Execution& execution) {
  const auto payment = ParsePayment(request.body);
  if (!payment) {
    Refuse(response, 400, "account, and amount_cents above 0, are needed");
    return HttpEffect::kNothing;
  }
  const auto charge =
      wallet.Charge(payment->amount_cents, execution.downstream_key());
  if (!charge.ok()) {
    Refuse(response, 504, "The wallet did not answer; ask again");
    return HttpEffect::kUnknown;
  }
  response.status = 201;
  response.set_content(Receipt(*payment, *charge), "application/json");
  return HttpEffect::kExecuted;
}

// Finds out what became of an attempt that did not come to its end.
Resolution AskWallet(WalletClient& wallet, const httplib::Request& request,
                     const Execution& execution) {
  const auto payment = ParsePayment(request.body);
  if (!payment) return NeverExecuted{};
  const auto charge = wallet.Find(execution.downstream_key());
  if (!charge.ok()) return StillUnknown{charge.status()};
  // Should a charge with this key still be on its way: ours has the same key,
  // and only one of them counts.
  if (!*charge) return NeverExecuted{};
  return WasExecuted{MakeResponse(201, Receipt(*payment, **charge))};
}

// Until SIGINT or SIGTERM; what was begun is brought to its end. `signals` are
// blocked.
bool Serve(httplib::Server& server, const sigset_t& signals) {
  const std::string host = absl::GetFlag(FLAGS_host);
  const int port = absl::GetFlag(FLAGS_port);
  if (!server.bind_to_port(host, port)) {
    std::fprintf(stderr, "cannot listen on %s:%d\n", host.c_str(), port);
    return false;
  }
  std::thread serving([&] { server.listen_after_bind(); });
  // A stop() that comes before has no effect.
  while (!server.is_running()) std::this_thread::yield();
  int signal = 0;
  sigwait(&signals, &signal);
  server.stop();
  serving.join();
  return true;
}

bool Run() {
  // Before any thread is made.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  WalletClient wallet(absl::GetFlag(FLAGS_channel), kWalletTimeout);
  const auto once = RunOnce::Connect(absl::GetFlag(FLAGS_coordinator));
  HttpMiddleware middleware(*once);
  HttplibGuard guard(middleware);

  httplib::Server server;
  server.Post(
      "/payments",
      guard.WrapBounded(
          kBodyBytesMax,
          // Where callers do not trust each other, also .caller: who sends it.
          {.scope = "payments",
           .policy = "payment",  // hold what is in doubt, until it is resolved
           .owner = absl::GetFlag(FLAGS_name),
           .required = true,
           .lease = kLease},
          [&](const httplib::Request& request, httplib::Response& response,
              Execution* execution) {
            return Pay(wallet, request, response, *execution);
          },
          [&](const httplib::Request& request, Execution& execution) {
            return AskWallet(wallet, request, execution);
          }));
  return Serve(server, signals);
}

}  // namespace
}  // namespace idempotency

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "A payment service; client/examples/payments/run.sh starts it.");
  absl::ParseCommandLine(argc, argv);
  return idempotency::Run() ? 0 : 1;
}
