// One record as the functions of core/transitions would have left it, and
// whether they explain what a server has told its callers.
#ifndef IDEMPOTENCY_TESTS_FUZZ_RECORD_MODEL_H_
#define IDEMPOTENCY_TESTS_FUZZ_RECORD_MODEL_H_

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "google/rpc/status.pb.h"
#include "server/core/policies.h"
#include "server/core/types.h"

namespace idempotency::fuzz {

// Where the server and the model draw a random number.
inline constexpr double kRandom = 0.5;

// What a caller was told.
struct Told {
  std::string message{};        // serialised; empty with an error
  google::rpc::Status error{};  // code 0: none
};

// A call that has been sent.
struct Sent {
  std::variant<ClaimCommand, FinalizeCommand, LookupCommand, ReleaseCommand>
      command;
  std::optional<Told> told{};
  // Of a claim that waits: what it may have been told at its looks so far.
  std::vector<InProgress> seen{};

  const RecordId& id() const {
    return std::visit([](const auto& c) -> const RecordId& { return c.id; },
                      command);
  }
};

// Of one record and its evidence. What does not fit ends the process.
class RecordModel {
 public:
  // `rules` must outlive the model.
  RecordModel(RecordId id, const FleetRules& rules)
      : id_(std::move(id)), rules_(rules) {}

  const RecordId& id() const { return id_; }
  const std::optional<Record>& record() const { return record_; }

  struct Happened {
    std::vector<const Sent*> answered;
    // These may have been carried out, or not.
    std::vector<const Sent*> unseen;
    std::vector<Sent*> waiting;
  };
  // There must be an order in which the functions, each on the record that the
  // one before has left, give all those answers and leave what is `stored`.
  void Explain(const Happened& happened, const std::optional<Record>& stored,
               absl::Time now);

  // What a sweep has left: the record, parked or not, or nothing.
  void Sweep(const std::optional<Record>& stored, absl::Time now);

  // Claim tokens and digests of refused responses whose callers were told.
  std::size_t evidence() const { return evidence_.size(); }

 private:
  struct Step {
    Told told;
    std::optional<Record> write{};
    std::optional<InProgress> in_progress{};
    bool evidence = false;
  };
  struct Search;

  Step Decide(const std::optional<Record>& record, const Sent& sent,
              absl::Time now) const;
  bool Find(Search& search, std::vector<const Sent*> open,
            std::vector<const Sent*> unseen) const;
  [[noreturn]] void Fail(const Happened& happened,
                         const std::optional<Record>& stored,
                         absl::Time now) const;

  const RecordId id_;
  const FleetRules& rules_;
  std::optional<Record> record_;
  std::set<std::pair<Uuid, std::string>> evidence_;
};

}  // namespace idempotency::fuzz

#endif  // IDEMPOTENCY_TESTS_FUZZ_RECORD_MODEL_H_
