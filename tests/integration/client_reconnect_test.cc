// The client and a server that goes away and comes back.
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "client/client.h"
#include "tests/integration/scripted_service.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;

TEST(ClientReconnectTest, AServerThatComesBackIsReachedWithinTheTimeout) {
  auto server = std::make_unique<ScriptedServer>(std::deque<Answer>{Granted()});
  const int port = server->port();
  const auto client = Client::Connect(server->target());
  v1::ClaimRequest request;
  request.set_scope("payments");
  request.set_key("order-1");
  request.set_request_hash(std::string(32, 'h'));
  ASSERT_TRUE(client->Claim(request).ok());
  server.reset();
  std::thread restart([&] {
    std::this_thread::sleep_for(milliseconds(300));
    server =
        std::make_unique<ScriptedServer>(std::deque<Answer>{Granted()}, port);
  });

  const auto response = client->Claim(request);

  restart.join();
  EXPECT_TRUE(response.ok()) << response.status();
}

}  // namespace
}  // namespace idempotency
