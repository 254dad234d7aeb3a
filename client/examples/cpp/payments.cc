// A payment service: POST /payments, once for each Idempotency-Key.
//
//   build/client/idempotency-payments --coordinator=127.0.0.1:50051
//
// The wallet is played, so that a test can say what it does: header X-Wallet.
#include <httplib.h>

#include <chrono>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/numbers.h"
#include "client/examples/cpp/refusal.h"
#include "client/examples/cpp/vectors.h"
#include "client/examples/cpp/wallet.h"
#include "client/http/httplib_adapter.h"
#include "client/http/middleware.h"
#include "client/run_once.h"

ABSL_FLAG(std::string, listen, "127.0.0.1:8080", "address of the service");
ABSL_FLAG(std::string, coordinator, "127.0.0.1:50051", "whom it asks");
ABSL_FLAG(int, lease_ms, 0, "lease of a claim; 0: the policy's");
ABSL_FLAG(std::string, check_vectors, "",
          "checks the request hashes of this file, and ends");

namespace idempotency::payments {
namespace {

// How long a user waits for the coordinator.
constexpr std::chrono::milliseconds kPatience{3'000};

HttpRoute Route() {
  HttpRoute route{.scope = "payments", .policy = "payment", .required = true};
  route.claim_timeout = route.finalize_timeout = kPatience;
  if (const int ms = absl::GetFlag(FLAGS_lease_ms); ms > 0) {
    route.lease = std::chrono::milliseconds(ms);
  }
  return route;
}

void Send(const nlohmann::json& answer, httplib::Response& response) {
  response.set_content(answer.dump(), "application/json");
}

HttpEffect Pay(Wallet& wallet, const httplib::Request& request,
               httplib::Response& response, const Execution& execution) {
  const Said said =
      wallet.Charge(nlohmann::json::parse(request.body), execution,
                    request.get_header_value("X-Wallet"));
  response.status = said.status;
  // Some of one name, to be replayed as they are.
  for (int i = 0; i < said.receipts; ++i) {
    response.set_header("X-Receipt", std::to_string(i));
  }
  Send(said.answer, response);
  return said.nothing_happened ? HttpEffect::kNothing : HttpEffect::kExecuted;
}

int Serve() {
  const auto once = RunOnce::Connect(absl::GetFlag(FLAGS_coordinator));
  HttpMiddleware middleware(*once, {.notice = KeepRefusal});
  HttplibGuard guard(middleware);
  Wallet wallet;
  httplib::Server server;
  // A handler has its thread for as long as the wallet takes.
  server.new_task_queue = [] { return new httplib::ThreadPool(32); };
  const auto pay = [&](const httplib::Request& request,
                       httplib::Response& response, Execution* execution) {
    return Pay(wallet, request, response, *execution);
  };
  server.Post("/payments", ExplainRefusals(guard.Wrap(Route(), pay)));
  server.Get("/payments", [&](const httplib::Request& request,
                              httplib::Response& response) {
    const int asked = wallet.Asked(request.get_param_value("account"));
    Send({{"asked", asked}}, response);
  });
  const std::string listen = absl::GetFlag(FLAGS_listen);
  const std::size_t colon = listen.rfind(':');
  int port = 0;
  if (colon == std::string::npos ||
      !absl::SimpleAtoi(listen.substr(colon + 1), &port) ||
      !server.listen(listen.substr(0, colon), port)) {
    std::cerr << "cannot listen on " << listen << "\n";
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace idempotency::payments

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("A payment service.");
  absl::ParseCommandLine(argc, argv);
  const std::string vectors = absl::GetFlag(FLAGS_check_vectors);
  try {
    if (vectors.empty()) return idempotency::payments::Serve();
    std::cout << idempotency::payments::CheckVectors(vectors) << " vectors\n";
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
