// The client's end: when it may come.
#include <gtest/gtest.h>

#include <string>

#include "absl/synchronization/notification.h"
#include "client/async_client.h"
#include "client/environment.h"
#include "tests/integration/scripted_service.h"

namespace idempotency {
namespace {

// The last client of a process, whose end gRPC's threads do not outlive.
class ClientEndTest : public testing::TestWithParam<BulkUse> {};
INSTANTIATE_TEST_SUITE_P(AsCalls, ClientEndTest,
                         testing::Values(BulkUse::kNever));
INSTANTIATE_TEST_SUITE_P(AsCommands, ClientEndTest,
                         testing::Values(BulkUse::kAlways));

TEST_P(ClientEndTest, AClientMayEndAsSoonAsItHasAnswered) {
  constexpr int kClients = 1500;
  ScriptedServer server({Granted()});
  v1::ClaimRequest request;
  request.set_scope("payments");
  request.set_key("order-1");
  request.set_request_hash(std::string(32, 'h'));
  request.set_claim_token(NewClaimToken());

  for (int i = 0; i < kClients; ++i) {
    absl::Notification answered;
    const auto client =
        AsyncClient::Connect(server.target(), {.bulk = GetParam()});
    client->Claim(request, {}, [&](absl::StatusOr<v1::ClaimResponse> answer) {
      EXPECT_TRUE(answer.ok()) << answer.status();
      answered.Notify();
    });
    answered.WaitForNotification();
  }
}

}  // namespace
}  // namespace idempotency
