// The service over a real engine and a store that the test scripts, without a
// gRPC server.
#ifndef IDEMPOTENCY_TESTS_UNIT_SERVICE_FIXTURE_H_
#define IDEMPOTENCY_TESTS_UNIT_SERVICE_FIXTURE_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/core/engine.h"
#include "server/rpc/service.h"
#include "tests/support/manual_clock.h"
#include "tests/support/memory_log.h"
#include "tests/support/scripted_store.h"

namespace idempotency {

class ServiceFixture : public ::testing::Test {
 protected:
  static constexpr char kToken[] = "0f8fad5b-d9cb-469f-a165-70867728950e";

  ServiceFixture() {
    script_.rules = OnePolicy(namespace_);
    std::vector<std::unique_ptr<Store>> stores;
    stores.push_back(std::make_unique<YesStore>(script_));
    engine_ = std::make_unique<Engine>(LaneOptions{}, clock_, rules_, metrics_,
                                       log_, std::move(stores),
                                       std::make_unique<YesStore>(script_));
    Restart({});
  }

  void Restart(const ServiceOptions& options) {
    service_ = std::make_unique<Service>(
        options, ServiceParts{.engine = *engine_,
                              .rules = rules_,
                              .clock = clock_,
                              .log = log_,
                              .metrics = metrics_,
                              .random = [] { return 0.5; }});
  }

  static void SetClaim(const std::string& key, v1::ClaimRequest& request) {
    request.set_scope("payments");
    request.set_key(key);
    request.set_request_hash(std::string(32, 'h'));
    request.set_claim_token(kToken);
  }

  // Lookups find a final record with such a body.
  void Record(std::string body) {
    script_.record.state = RecordState::kFinal;
    script_.record.response.body = std::move(body);
  }

  void RunLanes() {
    for (Lane* lane : engine_->lanes()) lane->RunBatch();
  }

  // Calls for one key go to the store one after the other.
  void RunLanesDry() {
    while (!engine_->idle()) RunLanes();
  }

  const Uuid namespace_ = *ParseUuid("6ba7b810-9dad-11d1-80b4-00c04fd430c8");
  StoreScript script_;
  ManualClock clock_;
  FleetRulesCache rules_;
  Metrics metrics_;
  MemoryLog log_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Service> service_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_UNIT_SERVICE_FIXTURE_H_
