#include "client/examples/payments/front.h"

#include <chrono>
#include <thread>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace idempotency::payments {
namespace {

constexpr char kFault[] = "Demo-Fault";
constexpr std::chrono::milliseconds kWalletTimeout{2000};
// Longer than a pod takes for whatever it may wait for.
constexpr std::chrono::seconds kPodTimeout{20};
constexpr std::chrono::milliseconds kLookPause{20};

void Answer(httplib::Response& response, const nlohmann::json& json,
            int status = 200) {
  response.status = status;
  response.set_header("Cache-Control", "no-store");
  response.set_content(json.dump(), "application/json");
}

void Refuse(httplib::Response& response, int status, const std::string& title) {
  response.status = status;
  response.set_content(
      nlohmann::json({{"status", status}, {"title", title}}).dump(),
      "application/problem+json");
}

// Of `from`, the header fields that the page and the pods look at.
void Copy(const httplib::Headers& from, httplib::Headers& to) {
  for (const char* name : {"Content-Type", "Idempotency-Key",
                           "Idempotent-Replayed", "Retry-After"}) {
    const auto [begin, end] = from.equal_range(name);
    to.insert(begin, end);
  }
}

}  // namespace

Front::Front(const Options& options, Pods& pods)
    : options_(options),
      pods_(pods),
      coordinator_(Client::Connect(options.coordinator)),
      wallet_(options.channel, kWalletTimeout) {}

bool Front::AddTo(httplib::Server& server) {
  using httplib::Request;
  using httplib::Response;
  server.Post("/payments", [this](const Request& request, Response& response) {
    Pay(request, response);
  });
  server.Get("/ledger", [this](const Request&, Response& response) {
    ShowLedger(response);
  });
  server.Get("/record", [this](const Request& request, Response& response) {
    ShowRecord(request.get_param_value("key"), response);
  });
  server.Get("/pods", [this](const Request&, Response& response) {
    ShowPods(response);
  });
  return server.set_mount_point("/", options_.page);
}

// ------------------------------------------------------------------ payments

void Front::Pay(const httplib::Request& request, httplib::Response& response) {
  const std::string fault = request.get_header_value(kFault);
  const bool silent = fault == "silent-wallet" || fault == "kill-pod";
  if (silent && !wallet_.LoseAnswers(1).ok()) {
    return Refuse(response, 503, "The wallet cannot be reached");
  }
  Forward(request, response);
  // If nothing was charged, the fault is not left behind for the next one.
  if (silent) wallet_.LoseAnswers(0).IgnoreError();
  if (fault == "lose-answer" && response.status < 500) {
    response.body.clear();
    response.headers.erase("Content-Type");
    response.headers.erase("Idempotent-Replayed");
    Refuse(response, 504, "The pod's answer was lost on its way");
  }
}

// A pod that cannot be connected to has seen nothing, and the next one is
// asked. Any other failure says nothing about what the pod did: only the
// caller, who has the key, may ask again.
void Front::Forward(const httplib::Request& request,
                    httplib::Response& response) {
  httplib::Request to_pod;
  to_pod.method = request.method;
  to_pod.path = request.path;
  to_pod.body = request.body;
  Copy(request.headers, to_pod.headers);
  const bool kill = request.get_header_value(kFault) == "kill-pod";

  for (std::size_t tries = 0; tries < pods_.pods().size(); ++tries) {
    const std::size_t index = next_++ % pods_.pods().size();
    const Pod& pod = pods_.pods()[index];
    httplib::Client client("127.0.0.1", pod.port);
    client.set_read_timeout(kPodTimeout);
    std::atomic<bool> answered{false};
    std::thread killer;
    if (kill) {
      killer = std::thread([&] {
        KillOnceCharged(request.get_header_value("Idempotency-Key"), index,
                        answered);
      });
    }
    const httplib::Result result = client.send(to_pod);
    answered = true;
    if (killer.joinable()) killer.join();
    if (!result && result.error() == httplib::Error::Connection) continue;

    response.set_header("Served-By", pod.name);
    if (!result) return Refuse(response, 502, "The pod did not answer");
    response.status = result->status;
    response.body = result->body;
    return Copy(result->headers, response.headers);
  }
  Refuse(response, 503, "No pod can be reached");
}

void Front::KillOnceCharged(const std::string& key, std::size_t pod,
                            const std::atomic<bool>& answered) {
  while (!answered) {
    if (IsCharged(key)) return pods_.Kill(pod);
    std::this_thread::sleep_for(kLookPause);
  }
}

// The wallet knows a payment by its downstream key, which the record tells.
bool Front::IsCharged(const std::string& key) {
  v1::LookupRequest request;
  request.set_scope("payments");
  request.set_key(key);
  const auto found = coordinator_->Lookup(request);
  if (!found.ok()) return false;
  const auto ledger = wallet_.Ledger();
  if (!ledger.ok()) return false;
  for (const night::LedgerEntry& charge : *ledger) {
    if (charge.idempotency_key() == found->record().downstream_key()) {
      return true;
    }
  }
  return false;
}

// ------------------------------------------------------------- what is shown

void Front::ShowLedger(httplib::Response& response) {
  const auto ledger = wallet_.Ledger();
  if (!ledger.ok()) {
    return Refuse(response, 503, "The wallet cannot be reached");
  }
  auto charges = nlohmann::json::array();
  for (const night::LedgerEntry& charge : *ledger) {
    charges.push_back({{"charge", charge.id()},
                       {"downstream_key", charge.idempotency_key()},
                       {"amount_cents", charge.amount()}});
  }
  Answer(response, charges);
}

void Front::ShowRecord(const std::string& key, httplib::Response& response) {
  v1::LookupRequest request;
  request.set_scope("payments");
  request.set_key(key);
  const auto found = coordinator_->Lookup(request);
  if (absl::IsNotFound(found.status())) {
    return Refuse(response, 404, "No such payment");
  }
  if (!found.ok()) {
    return Refuse(response, 503, "The coordinator cannot be reached");
  }
  const v1::Record& record = found->record();
  nlohmann::json json = {{"state", v1::Record::State_Name(record.state())},
                         {"attempt", record.attempt()},
                         {"owner", record.owner()},
                         {"downstream_key", record.downstream_key()}};
  if (record.has_abandoned()) {
    const v1::Abandoned& abandoned = record.abandoned();
    json["abandoned"] = {
        {"attempt", abandoned.attempt()},
        {"owner", abandoned.owner()},
        {"reason", v1::Abandoned::Reason_Name(abandoned.reason())}};
  }
  Answer(response, json);
}

void Front::ShowPods(httplib::Response& response) {
  auto pods = nlohmann::json::array();
  for (const PodState& pod : pods_.States()) {
    pods.push_back({{"name", pod.name}, {"process", pod.pid}});
  }
  Answer(response, pods);
}

}  // namespace idempotency::payments
