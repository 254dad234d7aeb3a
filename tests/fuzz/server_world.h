// Two replicas of the server in one thread, their callers, their clock and
// their bad luck, and for each key the model of its record that every answer
// is held against.
#ifndef IDEMPOTENCY_TESTS_FUZZ_SERVER_WORLD_H_
#define IDEMPOTENCY_TESTS_FUZZ_SERVER_WORLD_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "idempotency/v1/idempotency.pb.h"
#include "server/core/engine.h"
#include "server/core/errors.h"
#include "server/core/metrics.h"
#include "server/core/policies.h"
#include "server/rpc/service.h"
#include "tests/fuzz/record_model.h"
#include "tests/support/manual_clock.h"
#include "tests/support/memory_log.h"
#include "tests/support/memory_table.h"
#include "tests/unit/grpc_sides.h"

namespace idempotency::fuzz {

// Of the steps, none but Settle() and Finish() makes a lane run or looks at
// answers. Not thread-safe.
class ServerWorld {
 public:
  static constexpr std::size_t kReplicas = 2;
  static constexpr std::size_t kBodyBytesMax = 16;

  struct Options {
    std::size_t batch_items_max = 4;
    std::size_t replay_cache_bytes = 0;
  };
  explicit ServerWorld(const Options& options);
  ~ServerWorld();
  ServerWorld(const ServerWorld&) = delete;
  ServerWorld& operator=(const ServerWorld&) = delete;

  static const std::vector<RecordId>& ids();
  // The record as the model has it.
  const std::optional<Record>& RecordOf(std::size_t key) const {
    return models_[key].record();
  }

  // One call by itself, or many in a message of the replica's stream. Ids of
  // commands are set here.
  void Call(std::size_t replica, const v1::Command& command);
  void SendBulk(std::size_t replica, v1::BulkRequest message);
  // The stream's caller goes away, or has nothing more to send.
  void CancelBulk(std::size_t replica);
  void HalfCloseBulk(std::size_t replica);

  // For the database and the replicas.
  void PassTime(std::chrono::milliseconds time);
  void Sweep(int limit);

  enum class Fault { kLocked, kAway, kLostBefore, kLostAfter };
  // Meets the replica's next statement but `later`.
  void PlanFault(std::size_t replica, Fault fault, int later);

  void Drain(std::size_t replica);
  // Nothing if it does not drain, or has calls in hand.
  void Restart(std::size_t replica);

  // Runs all lanes until there is nothing to do for now, and checks what they
  // have answered and left in the database.
  void Settle();
  // The same again and again, with time passing and without further trouble,
  // until all have been answered, as they must be.
  void Finish();

 private:
  struct Stream;
  struct PlannedFault {
    Fault fault;
    int later;
  };
  struct Replica {
    FleetRulesCache rules;
    std::unique_ptr<Metrics> metrics;
    std::unique_ptr<Engine> engine;
    std::unique_ptr<Service> service;
    std::unique_ptr<Stream> stream;
    std::optional<PlannedFault> planned;
    bool draining = false;
    bool has_failed = false;
  };
  // A call in hand, of whichever kind.
  struct InHand : Sent {
    std::size_t replica = 0;
    std::size_t key = 0;
    SteadyTime submitted{};
    std::chrono::nanoseconds patience{};
    bool abandoned = false;  // nobody listens any more
    // Of a call by itself: whether it has an answer, and which.
    virtual bool Collect() { return false; }
    virtual ~InHand() = default;
  };
  template <typename Wire>
  struct UnaryInHand;

  void Start(std::size_t replica);
  absl::Status OnStatement(std::size_t replica, StatementPhase phase);
  template <typename Wire>
  void CallAs(std::size_t replica, const v1::Command& command,
              const typename Wire::Request& request);
  std::unique_ptr<InHand> Prepare(std::size_t replica,
                                  const v1::Command& command,
                                  std::unique_ptr<InHand> made);
  void CheckRefusal(const absl::Status& wanted, const Told& told);
  Stream* StreamOf(std::size_t replica);
  void RunLanes();
  void RunStreams();
  void TakeResults(Stream& stream);
  bool IsExcused(const InHand& call) const;
  void CheckAnswers();
  void CheckEvidence(const RecordModel& model) const;
  void CheckThatNobodyIsForgotten();

  const Options options_;
  MemoryDatabase database_;
  ManualClock clock_;
  MemoryLog log_;
  std::array<Replica, kReplicas> replicas_;
  std::vector<RecordModel> models_;
  std::list<std::unique_ptr<InHand>> calls_;
  std::list<std::unique_ptr<Stream>> ending_;
  std::map<std::uint64_t, InHand*> by_id_;  // of commands of Bulk
  std::map<std::uint64_t, absl::Status> refused_by_id_;
  std::uint64_t next_id_ = 1;
  bool effects_are_unsure_ = false;  // a reply was lost in this step
};

}  // namespace idempotency::fuzz

#endif  // IDEMPOTENCY_TESTS_FUZZ_SERVER_WORLD_H_
