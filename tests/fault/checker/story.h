// Hand-written histories for the tests: calls of one record after the other,
// decided by core/transitions on a record in memory with a clock that only
// moves when it is told to. What results keeps every promise, until a test
// changes it.
#ifndef IDEMPOTENCY_TESTS_FAULT_CHECKER_STORY_H_
#define IDEMPOTENCY_TESTS_FAULT_CHECKER_STORY_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/core/types.h"
#include "tests/fault/checker/check.h"
#include "tests/fault/checker/history.h"
#include "tests/fault/checker/run.h"

namespace idempotency::fault {

// Claim tokens of four callers.
inline constexpr char kAnn[] = "aaaaaaaa-0000-4000-8000-000000000001";
inline constexpr char kBob[] = "bbbbbbbb-0000-4000-8000-000000000002";
inline constexpr char kCat[] = "cccccccc-0000-4000-8000-000000000003";
inline constexpr char kDan[] = "dddddddd-0000-4000-8000-000000000004";
// Request hashes and digests of responses.
inline constexpr char kHash[] = "11111111111111111111111111111111";
inline constexpr char kOtherHash[] = "22222222222222222222222222222222";
inline constexpr char kDigest[] = "dd01";
inline constexpr char kOtherDigest[] = "dd02";

class Story {
 public:
  // Lease 1 s, retention 2 s, takes over, releases on a server error.
  Story();

  Policy policy{};
  std::string scope = "fault/r1";
  std::string key = "k1";

  void Advance(absl::Duration by) { now_ += by; }

  // ---- Calls of `token`; each is named, sent, decided a millisecond later and
  // answered another one later. They return the answer, to be looked at or
  // changed; it stays where it is.
  AnswerEvent& Claim(const std::string& op, const std::string& token);
  AnswerEvent& Finalize(const std::string& op, const std::string& token,
                        const std::string& digest = kDigest);
  AnswerEvent& Lookup(const std::string& op);
  AnswerEvent& Release(const std::string& op, const std::string& token,
                       SaidDisposition disposition);
  AnswerEvent& Do(CallEvent call);

  // ---- The same in its parts.
  CallEvent ClaimCall(const std::string& op, const std::string& token) const;
  CallEvent FinalizeCall(const std::string& op, const std::string& token,
                         const std::string& digest = kDigest) const;
  CallEvent& Send(CallEvent call);
  // Decides it now, changes the record if that follows, and returns what is
  // answered.
  AnswerEvent Decide(const CallEvent& call);
  AnswerEvent& Answer(AnswerEvent answer);
  // An answer without an outcome.
  AnswerEvent& Fail(const std::string& op, const std::string& code,
                    const std::string& reason = "");

  // The sweeper's turn.
  void Sweep();
  EffectEvent& Effect(const std::string& token, std::int64_t fencing,
                      EffectResult result = EffectResult::kExecuted);
  NoteEvent& Note(Phase phase, const std::string& caller = "");

  // ---- What was written down so far; to be changed at will.
  std::deque<CallEvent> calls{};
  std::deque<AnswerEvent> answers{};
  std::deque<EffectEvent> effects{};
  std::deque<NoteEvent> notes{};
  std::vector<ClockEvent> clocks{};
  std::deque<Change> changes{};
  std::vector<Conflict> conflicts{};
  std::optional<std::vector<StoredRow>> dump{};  // unset: as the log ends

  CallEvent& call(const std::string& op);
  AnswerEvent& answer(const std::string& op);
  Record& last() { return changes.back().row.record; }
  // Writes the record down as it is after `change` did something to it.
  void Write(const Record& record);

  std::int64_t t() const;  // monotonic
  absl::Time now() const { return now_; }

  // ---- The check.
  absl::StatusOr<fault::Run> Finish() const;
  Findings Check() const;
  // Numbers of the broken promises, in the order found, with what is wrong.
  std::vector<std::string> Broken() const;

  Limits limits{};

 private:
  RecordId id() const { return {scope, key}; }
  const Record* Current() const;
  void Log(ChangeKind kind, const Record& record);

  absl::Time now_;
  std::map<RecordId, std::optional<Record>> records_{};
};

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CHECKER_STORY_H_
