// The gRPC server on a free loopback port, with an engine whose store says yes
// to everything. The lanes run in threads of their own, or when the test says.
#ifndef IDEMPOTENCY_TESTS_INTEGRATION_LOOPBACK_SERVER_H_
#define IDEMPOTENCY_TESTS_INTEGRATION_LOOPBACK_SERVER_H_

#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/core/engine.h"
#include "server/rpc/server.h"
#include "tests/support/manual_clock.h"
#include "tests/support/memory_log.h"
#include "tests/support/scripted_store.h"

namespace idempotency {

class LoopbackServer {
 public:
  explicit LoopbackServer(ServerOptions options = {}) {
    options.listen = "127.0.0.1:0";
    script.rules =
        OnePolicy(*ParseUuid("6ba7b810-9dad-11d1-80b4-00c04fd430c8"));
    absl::StatusOr<std::unique_ptr<RpcServer>> started =
        RpcServer::Start(options, {}, parts());
    EXPECT_TRUE(started.ok()) << started.status();
    server = *std::move(started);
  }

  ~LoopbackServer() {
    engine.StopAccepting();
    if (lanes_.empty()) RunLanesInThreads();
    server.reset();
    engine.Stop();
    for (std::thread& lane : lanes_) lane.join();
  }

  // Once; after that the test must leave the lanes alone.
  void RunLanesInThreads() {
    for (Lane* lane : engine.lanes()) {
      lanes_.emplace_back([lane] {
        while (lane->WaitForWork()) lane->RunBatch();
        lane->RunBatch();
      });
    }
  }

  void RunLanesOnce() {
    for (Lane* lane : engine.lanes()) lane->RunBatch();
  }

  // Until a call is in the engine.
  void AwaitCall() const {
    while (engine.idle()) std::this_thread::yield();
  }

  ServiceParts parts() {
    return {.engine = engine,
            .rules = rules,
            .clock = clock,
            .log = log,
            .metrics = metrics};
  }

  std::string address() const {
    return "127.0.0.1:" + std::to_string(server->port());
  }

  // Each call of it makes a connection of its own.
  std::shared_ptr<grpc::Channel> Channel() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
    return grpc::CreateCustomChannel(
        address(), grpc::InsecureChannelCredentials(), arguments);
  }

  StoreScript script;
  ManualClock clock;
  FleetRulesCache rules;
  Metrics metrics;
  MemoryLog log;
  Engine engine{LaneOptions{}, clock,      rules,       metrics,
                log,           OneStore(), YesStoreOf()};
  std::unique_ptr<RpcServer> server;

 private:
  std::unique_ptr<Store> YesStoreOf() {
    return std::make_unique<YesStore>(script);
  }
  std::vector<std::unique_ptr<Store>> OneStore() {
    std::vector<std::unique_ptr<Store>> stores;
    stores.push_back(YesStoreOf());
    return stores;
  }

  std::vector<std::thread> lanes_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_INTEGRATION_LOOPBACK_SERVER_H_
