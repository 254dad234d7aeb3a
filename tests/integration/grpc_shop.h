// A shop whose method Charge is executed once, served in each of three ways: by
// the wrapper of synchronous services, by that of callback services, and by a
// service that knows nothing of keys, behind the sidecar.
#ifndef IDEMPOTENCY_TESTS_INTEGRATION_GRPC_SHOP_H_
#define IDEMPOTENCY_TESTS_INTEGRATION_GRPC_SHOP_H_

#include <grpcpp/channel.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "client/grpc/once_method.h"
#include "client/proxy/grpc_proxy.h"
#include "tests/integration/shop.grpc.pb.h"

namespace idempotency {

inline constexpr char kChargePath[] = "/idempotency.tests.Payments/Charge";

// What Charge is told of its attempt.
struct Attempt {
  int number = 0;  // 0: it runs without a claim
  std::string downstream_key;
  std::string abandoned;  // empty; else as in idempotency-abandoned
};

// What it does.
struct Charged {
  grpc::Status status = grpc::Status::OK;
  std::string payment = "charge-1";
  std::string receipt = {};
  GrpcMetadata trailers = {};
  bool throws = false;
};

using Wallet =
    std::function<Charged(const Attempt&, const tests::ChargeRequest&)>;
// Asked about an abandoned attempt; null: nobody can tell. (The sidecar asks
// the wallet itself.)
using WalletLookup = std::function<ResolverResult(tests::ChargeReply&)>;

enum class Way { kSync, kCallback, kProxy };
std::string NameOf(Way way);

struct ShopOptions {
  OnceRule rule;
  Wallet wallet;
  WalletLookup lookup = nullptr;
  std::chrono::milliseconds timeout{60'000};  // of the sidecar's route
};

class Shop {
 public:
  static std::unique_ptr<Shop> Open(Way way, std::shared_ptr<RunOnce> once,
                                    ShopOptions options);
  virtual ~Shop() = default;
  virtual int port() const = 0;

 protected:
  Shop() = default;
};

// The service that knows nothing of keys, for a sidecar to stand before. Talk
// answers each message with one, and echoes metadata "x-...".
class PlainShop {
 public:
  explicit PlainShop(Wallet wallet);
  ~PlainShop();
  int port() const;

  // Of Watch: messages that gRPC has taken, and calls that have begun and
  // ended.
  int watch_messages() const;
  int watches_begun() const;
  int watches_ended() const;
  // Of Talk: calls that have ended, and those whose caller sent all it had, as
  // far as the service can see.
  int talks_ended() const;
  int talks_ended_by_their_caller() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

// ----------------------------------------------------------------- its callers

struct ChargeAnswer {
  grpc::Status status;
  tests::ChargeReply reply;
  std::multimap<std::string, std::string> initial_metadata;
  std::multimap<std::string, std::string> trailers;

  bool replayed() const;
  // Of the status details; empty: none.
  std::string reason() const;
};

std::multimap<std::string, std::string> CopyOf(
    const std::multimap<grpc::string_ref, grpc::string_ref>& metadata);

std::shared_ptr<grpc::Channel> ChannelTo(int port);

tests::ChargeRequest AnOrder(int amount = 200);

ChargeAnswer ChargeAt(
    int port, const GrpcMetadata& metadata,
    const tests::ChargeRequest& request = AnOrder(),
    std::chrono::milliseconds timeout = std::chrono::seconds(20));
ChargeAnswer ChargeOnce(int port, const std::string& key,
                        const tests::ChargeRequest& request = AnOrder());

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_INTEGRATION_GRPC_SHOP_H_
