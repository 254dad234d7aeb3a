// Charges once by the four calls: claims, finalizes, is replayed to, and is
// refused a second Finalize. Then once more by RunOnce, and not at all by a
// method of a gRPC service that is given no key. With status 0 only if the
// coordinator decided all of it so.
//
// usage: shop HOST:PORT KEY
#include <cstdio>
#include <string>

#include "google/rpc/error_details.pb.h"
#include "grpcpp/server_context.h"
#include "idempotency/client/client.h"
#include "idempotency/client/grpc/once_method.h"
#include "idempotency/client/http/middleware.h"
#include "idempotency/client/request_hash.h"
#include "idempotency/client/run_once.h"
#include "idempotency/client/status.h"

namespace v1 = idempotency::v1;

namespace {

v1::ClaimRequest ClaimOf(const std::string& key) {
  v1::ClaimRequest claim;
  claim.set_scope("payments");
  claim.set_key(key);
  claim.set_request_hash(
      idempotency::RequestHash({.method = "POST",
                                .target = "/payments",
                                .content_type = "application/json",
                                .body = R"({"amount":200})"}));
  return claim;
}

// What went wrong, or nothing.
std::string ChargeByCalls(idempotency::Client& client, const std::string& key) {
  v1::ClaimRequest mine = ClaimOf(key);
  const auto claimed = client.Claim(mine);
  if (!claimed.ok()) return claimed.status().ToString();
  if (!claimed->has_claimed()) return "not claimed";

  v1::FinalizeRequest finalize;
  finalize.set_scope(mine.scope());
  finalize.set_key(mine.key());
  finalize.set_claim_token(mine.claim_token());
  finalize.mutable_response()->set_status_code(201);
  finalize.mutable_response()->set_body("charged");
  const auto finalized = client.Finalize(finalize);
  if (!finalized.ok()) return finalized.status().ToString();

  v1::ClaimRequest retry = ClaimOf(key);
  const auto replay = client.Claim(retry);
  if (!replay.ok()) return replay.status().ToString();
  if (replay->replay().response().body() != "charged") return "not replayed";

  finalize.set_claim_token(retry.claim_token());
  const absl::Status late = client.Finalize(finalize).status();
  if (idempotency::ErrorReasonOf(late) != "CLAIM_SUPERSEDED") {
    return "not superseded: " + late.ToString();
  }
  google::rpc::ErrorInfo info;
  const auto detail =
      late.GetPayload("type.googleapis.com/google.rpc.ErrorInfo");
  if (!detail.has_value() || !info.ParseFromString(std::string(*detail)) ||
      info.domain() != "idempotency.v1") {
    return "no ErrorInfo";
  }
  return "";
}

// The same, by the shorter way.
std::string ChargeByRunOnce(const std::string& target, const std::string& key) {
  const auto once = idempotency::RunOnce::Connect(target);
  int charges = 0;
  idempotency::RunResult result;
  for (int request = 0; request < 2; ++request) {
    result = once->Run(
        {.scope = "payments",
         .key = key,
         .request_hash = idempotency::RequestHashOfParts({"charge", "200"})},
        [&](idempotency::Execution& execution) {
          ++charges;
          return idempotency::Respond(201, execution.downstream_key());
        });
    if (!result.has_response()) return result.status.ToString();
  }
  if (result.outcome != idempotency::RunOutcome::kReplayed) {
    return "not replayed";
  }
  return charges == 1 ? "" : "not charged once";
}

// And by way of HTTP, without any framework.
std::string ChargeByHttp(const std::string& target, const std::string& key) {
  const auto once = idempotency::RunOnce::Connect(target);
  idempotency::HttpMiddleware middleware(*once);
  int charges = 0;
  v1::Response response;
  for (int request = 0; request < 2; ++request) {
    response = middleware.Handle(
        {.method = "POST",
         .target = "/payments",
         .headers = {{"Idempotency-Key", key}}},
        {.scope = "payments"}, [&](idempotency::Execution* execution) {
          ++charges;
          return idempotency::HttpResult{
              idempotency::MakeResponse(201, execution->downstream_key())};
        });
    if (response.status_code() != 201) return response.body();
  }
  return charges == 1 ? "" : "not charged once";
}

// As the method of a service would, with messages that are at hand.
grpc::Status Charge(idempotency::RunOnce& once, grpc::ServerContext& context,
                    const google::rpc::RequestInfo& request,
                    google::rpc::RequestInfo& reply) {
  static const idempotency::OnceMethod charge{"/shop.Payments/Charge",
                                              {.scope = "payments"}};
  return idempotency::CallOnce(once, charge, context, request, reply,
                               [&](idempotency::OnceCall& call) {
                                 reply.set_request_id(call.downstream_key());
                                 return grpc::Status::OK;
                               });
}

std::string ChargeWithoutKey(const std::string& target) {
  const auto once = idempotency::RunOnce::Connect(target);
  grpc::ServerContext context;
  google::rpc::RequestInfo reply;
  const grpc::Status status = Charge(*once, context, {}, reply);
  return status.error_code() == grpc::StatusCode::INVALID_ARGUMENT
             ? ""
             : "not refused: " + status.error_message();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const auto client = idempotency::Client::Connect(argv[1]);
  std::string wrong = ChargeByCalls(*client, argv[2]);
  if (wrong.empty())
    wrong = ChargeByRunOnce(argv[1], std::string(argv[2]) + "-2");
  if (wrong.empty()) wrong = ChargeByHttp(argv[1], std::string(argv[2]) + "-3");
  if (wrong.empty()) wrong = ChargeWithoutKey(argv[1]);
  std::printf("%s\n", wrong.empty() ? "charged once" : wrong.c_str());
  return wrong.empty() ? 0 : 1;
}
