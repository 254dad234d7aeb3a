// Input: steps, each a few numbers (FuzzedDataProvider) that say what happens
// next to two replicas over one table: a call, a message of Bulk, time that
// passes, a sweep, a fault. Every answer is held against core/transitions.
// libFuzzer: -entropic=0 -len_control=0 -max_len=1500
#include <fuzzer/FuzzedDataProvider.h>

#include <cstdint>
#include <iterator>
#include <string>

#include "server/core/limits.h"
#include "server/core/uuid.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/server_world.h"

namespace idempotency::fuzz {
namespace {

constexpr int kStepsMax = 300;
constexpr std::uint8_t kTokens = 5;

class Steps {
 public:
  Steps(const std::uint8_t* data, std::size_t size)
      : in_(data, size),
        world_({.batch_items_max = Below(6) + 1U,
                .replay_cache_bytes = Below(2) * limits::kMiB}) {}

  void Run() {
    for (int i = 0; i < kStepsMax && in_.remaining_bytes() > 0; ++i) Step();
    world_.Finish();
  }

 private:
  std::uint8_t Below(std::uint8_t bound) {
    return in_.ConsumeIntegralInRange<std::uint8_t>(0, bound - 1);
  }
  template <typename Value, std::size_t size>
  Value OneOf(const Value (&values)[size]) {
    return values[Below(size)];
  }

  void Step() {
    enum { kCall, kBulk, kTime, kSweep, kFault, kCancel, kClose, kDrain };
    // What is common comes more than once.
    const int what =
        OneOf({kCall, kCall, kCall, kCall, kCall, kCall, kCall, kCall, kBulk,
               kBulk, kTime, kTime, kSweep, kFault, kCancel, kClose, kDrain});
    const std::size_t replica = Below(ServerWorld::kReplicas);
    switch (what) {
      case kCall:
        world_.Call(replica, AnyCommand());
        break;
      case kBulk:
        world_.SendBulk(replica, AnyMessage());
        break;
      case kTime:
        world_.PassTime(std::chrono::milliseconds(
            OneOf({1, 5, 20, 60, 150, 250, 600, 1'000, 2'500, 5'000, 31'000})));
        break;
      case kSweep:
        world_.Sweep(Below(3) + 1);
        break;
      case kFault:
        world_.PlanFault(
            replica,
            OneOf({ServerWorld::Fault::kLocked, ServerWorld::Fault::kAway,
                   ServerWorld::Fault::kLostBefore,
                   ServerWorld::Fault::kLostAfter}),
            Below(4));
        break;
      case kCancel:
        world_.CancelBulk(replica);
        break;
      case kClose:
        world_.HalfCloseBulk(replica);
        break;
      case kDrain:
        if (Below(2) == 0) {
          world_.Drain(replica);
        } else {
          world_.Restart(replica);
        }
        break;
    }
    // Now and then more comes before the lanes run.
    if (Below(4) != 0) world_.Settle();
  }

  v1::BulkRequest AnyMessage() {
    v1::BulkRequest message;
    for (int left = Below(8) + 1; left > 0; --left) {
      v1::Command& command = *message.add_commands() = AnyCommand();
      switch (Below(4)) {
        case 0:
          command.mutable_timeout()->set_nanos(50'000'000);
          break;
        case 1:
          command.mutable_timeout()->set_seconds(2);
          break;
        default:
          break;
      }
    }
    return message;
  }

  v1::Command AnyCommand() {
    v1::Command command;
    key_ = Below(static_cast<std::uint8_t>(ServerWorld::ids().size()));
    switch (Below(8)) {
      case 0:
      case 1:
      case 2:
        SetClaim(*command.mutable_claim());
        break;
      case 3:
      case 4:
        SetFinalize(*command.mutable_finalize());
        break;
      case 5:
      case 6:
        SetRelease(*command.mutable_release());
        break;
      default:
        SetName(*command.mutable_lookup());
    }
    return command;
  }

  template <typename Request>
  void SetName(Request& request) {
    request.set_scope(ServerWorld::ids()[key_].scope);
    request.set_key(ServerWorld::ids()[key_].key);
  }
  template <typename Request>
  void SetNameAndToken(Request& request) {
    SetName(request);
    // The last one is none.
    const std::uint8_t number = Below(kTokens + 1);
    Uuid token;
    if (number < kTokens)
      token.bytes.fill(static_cast<std::uint8_t>(number + 1));
    request.set_claim_token(FormatUuid(token));
  }

  void SetClaim(v1::ClaimRequest& claim) {
    SetNameAndToken(claim);
    claim.set_request_hash(std::string(16, OneOf({'h', 'h', 'h', 'i'})));
    claim.set_policy(OneOf({"", "", "", "held", "recorded", "permanent", "?"}));
    switch (Below(6)) {
      case 0:
        claim.mutable_lease()->set_nanos(150'000'000);
        break;
      case 1:
        claim.mutable_lease()->set_seconds(2);
        break;
      case 2:
        claim.mutable_lease()->set_seconds(9);
        break;
      default:
        break;
    }
    const int wait = OneOf({0, 0, 0, 200, 2'000, 70'000});
    claim.mutable_wait()->set_seconds(wait / 1000);
    claim.mutable_wait()->set_nanos(wait % 1000 * 1'000'000);
    if (wait == 0) claim.clear_wait();
    claim.set_resolve_in_doubt(Below(2) == 0);
    const std::optional<Record>& record = world_.RecordOf(key_);
    claim.set_renew_fencing_token(OneOf<std::int64_t>(
        {0, 0, 0, 0, 1, record.has_value() ? record->fencing_token : 2}));
    if (Below(3) == 0) {
      claim.set_checkpoint_number(Below(4));
      claim.set_checkpoint(std::string(1, 'A' + Below(4)));
    }
    claim.set_owner(OneOf({"", "pod-1", "pod-2"}));
  }

  void SetFinalize(v1::FinalizeRequest& finalize) {
    SetNameAndToken(finalize);
    v1::Response& response = *finalize.mutable_response();
    response.set_status_code(OneOf({200, 200, 201, 404, 500, 503, 999, 1'000}));
    const std::string body(OneOf({0, 1, 1, 16, 17}), OneOf({'x', 'y'}));
    response.set_body(body);
    for (int left = Below(3); left > 0; --left) {
      v1::Header& header = *response.add_headers();
      header.set_name("name");
      header.set_value("value");
    }
    response.set_body_omitted(Below(8) == 0);
    response.set_headers_omitted(Below(8) == 0);
  }

  void SetRelease(v1::ReleaseRequest& release) {
    SetNameAndToken(release);
    release.set_disposition(
        static_cast<v1::ReleaseRequest::Disposition>(Below(5)));
  }

  FuzzedDataProvider in_;
  ServerWorld world_;
  std::size_t key_ = 0;
};

}  // namespace
}  // namespace idempotency::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  idempotency::fuzz::Steps(data, size).Run();
  return 0;
}
