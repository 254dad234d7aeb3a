// All that was written down of one round: histories, the log of changes and the
// final tables, sorted by record.
#ifndef IDEMPOTENCY_TESTS_FAULT_CHECKER_RUN_H_
#define IDEMPOTENCY_TESTS_FAULT_CHECKER_RUN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/node_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/fault/checker/database_clock.h"
#include "tests/fault/checker/dump.h"
#include "tests/fault/checker/explain.h"
#include "tests/fault/checker/history.h"

namespace idempotency::fault {

// What an answer says of whether the call took effect.
enum class Certainty {
  kFact,     // a decision: an outcome, or a refusal that states one
  kNothing,  // an error after which nothing can have happened, and the request
             // was sent once
  kUnknown,  // it may take effect at any time from the call on, or never
};

struct Operation {
  CallEvent call{};
  std::optional<AnswerEvent> answer{};
  Command command{};
  Certainty certainty = Certainty::kUnknown;

  const std::string& name() const { return call.op; }
  bool is_decided() const { return certainty == Certainty::kFact; }
  // nullptr: it has none.
  const Uuid* token() const;
};

// What belongs to one record. Operations in the order of their calls, changes
// in that of the log.
struct KeyHistory {
  std::vector<Operation> operations{};
  std::vector<Change> changes{};
  std::vector<EffectEvent> effects{};
  std::vector<StoredRow> dump{};
  std::vector<Conflict> conflicts{};
};

struct Files {
  std::vector<std::string> histories{};
  std::string transitions{};
  std::string dump{};
  std::string conflicts{};  // empty: refused responses are not looked up
};

struct Run {
  absl::node_hash_map<RecordId, KeyHistory> keys{};
  // Whose call named this claim token first.
  absl::flat_hash_map<std::string, RecordId> token_owners{};
  std::vector<NoteEvent> notes{};
  std::vector<ClockEvent> clocks{};
  bool has_conflicts = false;

  // Was a fault noted at some time between, or had it ended so short a time
  // before that what it left may have gone on?
  bool IsFaulty(std::int64_t from, std::int64_t until) const;

  // When anything was last heard of a caller; by the part of its operations'
  // names before the last '-'.
  absl::flat_hash_map<std::string, std::int64_t> last_heard{};
};

// Sorts what was written down into a run.
class RunBuilder {
 public:
  // Fails on an operation that is there twice, or that no server would accept.
  absl::Status Add(Event&& event);
  void Add(Change change);
  void Add(StoredRow row);
  void Add(Conflict conflict);

  // Brings answers to their calls. Fails where one has no call. Use once.
  absl::StatusOr<Run> Finish();

 private:
  absl::Status AddCall(CallEvent call);
  absl::Status AddAnswer(AnswerEvent answer);
  absl::Status Settle(Operation& operation);

  Run run_{};
  // Answers may be in another file than their calls, and be read earlier.
  absl::node_hash_map<std::string, AnswerEvent> answers_{};
  absl::flat_hash_set<std::string> names_{};
};

// Reads everything. Fails where a file cannot be read or understood, an answer
// has no call, or an operation is there twice.
absl::StatusOr<Run> ReadRun(const Files& files);

Certainty CertaintyOf(const CallEvent& call,
                      const std::optional<AnswerEvent>& answer);

// Was its request certainly sent no more than once? The server may still try it
// more than once.
bool IsSentOnce(const CallEvent& call, const AnswerEvent& answer);

// c1 of c1-17.
std::string CallerOf(const std::string& op);

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CHECKER_RUN_H_
