// What the tests of gRPC services that execute once share: they run once for
// each way to serve.
#ifndef IDEMPOTENCY_TESTS_INTEGRATION_GRPC_ONCE_FIXTURE_H_
#define IDEMPOTENCY_TESTS_INTEGRATION_GRPC_ONCE_FIXTURE_H_

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "tests/integration/grpc_shop.h"
#include "tests/integration/once_fixture.h"

namespace idempotency {

inline OnceRule ARule(const std::string& policy = "default") {
  return {.scope = "tests/wire",
          .policy = policy,
          .wait = std::chrono::milliseconds(0)};
}

inline Charged MustNotCharge(const Attempt&, const tests::ChargeRequest&) {
  ADD_FAILURE() << "it was charged";
  return {};
}

class GrpcOnceTest : public RunOnceTest,
                     public testing::WithParamInterface<Way> {
 protected:
  std::unique_ptr<Shop> Open(Wallet wallet, const OnceRule& rule = ARule(),
                             WalletLookup lookup = nullptr) {
    return Shop::Open(GetParam(), service_once_,
                      {.rule = rule,
                       .wallet = std::move(wallet),
                       .lookup = std::move(lookup)});
  }

  static v1::Record RecordAt(const std::string& key) {
    Operation operation = AnOperation();
    operation.key = key;
    return RecordOf(operation);
  }

  // An attempt for the key whose outcome nobody knows.
  void AbandonAt(const std::string& key, const OnceRule& rule) {
    const auto shop =
        Open([](auto&, auto&) { return Charged{.throws = true}; }, rule);
    const ChargeAnswer answer = ChargeOnce(shop->port(), key);
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::UNKNOWN)
        << answer.status.error_message();
  }

  const std::shared_ptr<RunOnce> service_once_ =
      RunOnce::Connect(replica().target());
};

inline auto EachWay() {
  return testing::Values(Way::kSync, Way::kCallback, Way::kProxy);
}
inline std::string WayName(const testing::TestParamInfo<Way>& way) {
  return NameOf(way.param);
}

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_INTEGRATION_GRPC_ONCE_FIXTURE_H_
