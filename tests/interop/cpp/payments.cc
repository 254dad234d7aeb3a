// A payment service over the HTTP middleware, as run.py wants it.
#include <httplib.h>

#include <chrono>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "client/http/httplib_adapter.h"
#include "client/http/middleware.h"
#include "client/run_once.h"
#include "client/status.h"
#include "google/rpc/error_details.pb.h"
#include "tests/interop/cpp/vectors.h"
#include "tests/interop/cpp/wallet.h"

ABSL_FLAG(std::string, listen, "127.0.0.1:8080", "address of the service");
ABSL_FLAG(std::string, coordinator, "127.0.0.1:50051", "whom it asks");
ABSL_FLAG(int, lease_ms, 0, "lease of a claim; 0: the policy's");
ABSL_FLAG(std::string, check_vectors, "",
          "checks the request hashes of this file, and ends");

namespace idempotency::interop {
namespace {

// The coordinator's error behind the answer that this thread makes.
thread_local absl::Status refusal;

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

std::string FieldOf(const absl::Status& status) {
  google::rpc::BadRequest bad;
  const auto packed =
      status.GetPayload("type.googleapis.com/google.rpc.BadRequest");
  if (!packed.has_value() || !bad.ParseFromString(std::string(*packed)) ||
      bad.field_violations().empty()) {
    return "";
  }
  return bad.field_violations(0).field();
}

// `guarded`, whose problems then have the members `reason` (ErrorInfo) and
// `field` (BadRequest) of the error behind them.
httplib::Server::Handler ExplainRefusals(httplib::Server::Handler guarded) {
  return [guarded = std::move(guarded)](const httplib::Request& request,
                                        httplib::Response& response) {
    refusal = absl::OkStatus();
    guarded(request, response);
    if (refusal.ok() || response.get_header_value("Content-Type") !=
                            "application/problem+json") {
      return;
    }
    nlohmann::json problem = nlohmann::json::parse(response.body);
    const std::string reason = ErrorReasonOf(refusal);
    const std::string field = FieldOf(refusal);
    if (!reason.empty()) problem["reason"] = reason;
    if (!field.empty()) problem["field"] = field;
    response.body = problem.dump();
  };
}

int Serve() {
  const auto once = RunOnce::Connect(absl::GetFlag(FLAGS_coordinator));
  HttpMiddleware middleware(*once, {.notice = [](const HttpNotice& notice) {
    refusal = notice.why;
  }});
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
}  // namespace idempotency::interop

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("A payment service.");
  absl::ParseCommandLine(argc, argv);
  const std::string vectors = absl::GetFlag(FLAGS_check_vectors);
  try {
    if (vectors.empty()) return idempotency::interop::Serve();
    std::cout << idempotency::interop::CheckVectors(vectors) << " vectors\n";
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
