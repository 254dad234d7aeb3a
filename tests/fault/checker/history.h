// Histories of a fault run: what was asked, what was answered, what was done
// to the outside world, and when. fault-checker reads them.
//
// A history is a text file with one event a line:
//
//   word field=value field=value ...
//
// - Words and fields are those below and no others, each field at most once, in
//   any order, separated by single spaces. A line ends with one '\n'.
// - Fields marked * are required. Any other one may be left out: it then has
//   the value it has in a default-made event ("not said").
// - t is CLOCK_MONOTONIC in ns: all writers run on one machine. Fields that end
//   with _us are µs: durations, or times of the database's clock since 1970.
// - hash, digest and checkpoints are hexadecimal, lower case. Claim tokens are
//   UUIDs as FormatUuid() writes them. Flags are 1, or left out.
// - In any value a byte outside '!' to '~', and '%', is written as %XX with
//   upper-case digits.
//
//   call     a request is about to be sent. Written BEFORE it is sent.
//     *op      names the call, over all files of a run: c1-17
//     *t  *path  *kind  *scope  *key
//     path     unary and bulk send the request once; client may send it again
//     kind     claim, finalize, lookup, release
//     claim    token hash renew lease_us wait_us resolve policy checkpoint
//              checkpoint_number owner
//     finalize token status digest body_omitted headers_omitted; and how much
//              there is of what may be left out: body_bytes header_count
//              header_bytes (of names and values)
//     release  token disposition
//     deadline_us  how long the caller waits at most
//
//   answer   a call has ended. Written AFTER its end is known; a call that has
//            no such line is unknown, like one that ended with UNAVAILABLE.
//     *op  *t  *code: OK, UNAVAILABLE ... as gRPC names them
//     reason   of the ErrorInfo: CLAIM_SUPERSEDED ...
//     sends    how often the request was sent, if more than once
//     outcome  with OK:
//       claimed      fencing attempt lease_us lease_until_us expires_us
//                    downstream abandoned_*
//       replay       status digest body_omitted headers_omitted created_us
//                    finalized_us expires_us
//       in_progress  retry_after_us lease_until_us attempt owner
//       mismatch     created_us
//       in_doubt     abandoned_*
//       recorded, recorded_without_body, result_released, result_in_doubt
//                    expires_us
//       released, not_released
//                    state
//       found        state hash policy fencing attempt created_us claimed_us
//                    lease_until_us finalized_us expires_us status digest
//                    body_omitted headers_omitted checkpoint downstream
//                    conflicts owner abandoned_*
//     digest is of the response as it came, computed by the caller from what he
//     got: ResponseDigest() of server/core/digest.h.
//     abandoned_attempt is more than 0 where the answer tells of an abandoned
//     attempt; the others are left out with it. abandoned_reason is
//     lease_lapsed, outcome_unknown or server_error.
//
//   effect   somebody asked the wallet to act. Written by the wallet BEFORE it
//            answers.
//     *t  *scope  *key  *downstream  *result
//     token and fencing: of the grant under which it was asked, where known
//     result   executed; duplicate (done before under this downstream key) or
//              refused (nothing was done)
//
//   note     what the harness did.
//     *t
//     fault    class of the fault, with phase
//     phase    begin or end of the fault; or without one
//              closing: all faults and callers have ended; what is called from
//              now on asks for the keys that were left unfinished
//     caller   with a fault that is done to a caller: what its operations are
//              called before the '-'. What it is late for proves nothing.
//     text     for people
//
//   clock    the database's clock, read within error_ns of t.
//     *t  *database_us
//     error_ns
#ifndef IDEMPOTENCY_TESTS_FAULT_CHECKER_HISTORY_H_
#define IDEMPOTENCY_TESTS_FAULT_CHECKER_HISTORY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace idempotency::fault {

enum class Path { kUnset, kUnary, kBulk, kClient };
enum class Kind { kUnset, kClaim, kFinalize, kLookup, kRelease };
enum class SaidDisposition {
  kUnset,
  kNotExecuted,
  kOutcomeUnknown,
  kNeverExecuted
};
enum class Outcome {
  kNone,
  kClaimed,
  kReplay,
  kInProgress,
  kMismatch,
  kInDoubt,
  kRecorded,
  kRecordedWithoutBody,
  kResultReleased,
  kResultInDoubt,
  kReleased,
  kNotReleased,
  kFound,
};
enum class SaidState { kNone, kInProgress, kFinalized, kReleased, kInDoubt };
enum class SaidReason { kNone, kLeaseLapsed, kOutcomeUnknown, kServerError };
enum class EffectResult { kUnset, kExecuted, kDuplicate, kRefused };
enum class Phase { kNone, kBegin, kEnd, kClosing };

struct CallEvent {
  std::string op{};
  std::int64_t t = 0;
  Path path = Path::kUnset;
  Kind kind = Kind::kUnset;
  std::string scope{};
  std::string key{};
  std::string token{};
  std::string hash{};
  std::int64_t renew = 0;
  std::optional<std::int64_t> lease_us{};
  std::int64_t wait_us = 0;
  bool resolve = false;
  std::string policy{};
  std::optional<std::string> checkpoint{};
  std::int64_t checkpoint_number = 0;
  std::string owner{};
  SaidDisposition disposition = SaidDisposition::kUnset;
  std::int64_t status = 0;
  std::string digest{};
  bool body_omitted = false;
  bool headers_omitted = false;
  std::int64_t body_bytes = 0;
  std::int64_t header_count = 0;
  std::int64_t header_bytes = 0;
  std::int64_t deadline_us = 0;  // 0: not said

  bool operator==(const CallEvent&) const = default;
};

struct AnswerEvent {
  std::string op{};
  std::int64_t t = 0;
  std::string code{};
  std::string reason{};
  std::int64_t sends = 1;
  Outcome outcome = Outcome::kNone;
  std::int64_t fencing = 0;
  std::int64_t attempt = 0;
  std::int64_t lease_us = 0;
  std::int64_t lease_until_us = 0;
  std::optional<std::int64_t> expires_us{};  // nullopt: never
  std::string downstream{};
  std::int64_t status = 0;
  std::string digest{};
  bool body_omitted = false;
  bool headers_omitted = false;
  std::int64_t created_us = 0;
  std::int64_t claimed_us = 0;
  std::int64_t finalized_us = 0;
  std::int64_t retry_after_us = 0;
  SaidState state = SaidState::kNone;
  std::string hash{};
  std::string policy{};
  std::string checkpoint{};
  std::int64_t conflicts = 0;
  std::string owner{};
  std::int64_t abandoned_attempt = 0;
  std::int64_t abandoned_fencing = 0;
  std::int64_t abandoned_claimed_us = 0;
  std::int64_t abandoned_us = 0;
  SaidReason abandoned_reason = SaidReason::kNone;
  std::int64_t abandoned_status = 0;
  std::string abandoned_checkpoint{};
  std::string abandoned_downstream{};
  std::string abandoned_owner{};

  bool operator==(const AnswerEvent&) const = default;
};

struct EffectEvent {
  std::int64_t t = 0;
  std::string scope{};
  std::string key{};
  std::string downstream{};
  std::string token{};
  std::int64_t fencing = 0;
  EffectResult result = EffectResult::kUnset;

  bool operator==(const EffectEvent&) const = default;
};

struct NoteEvent {
  std::int64_t t = 0;
  std::string fault{};
  Phase phase = Phase::kNone;
  std::string caller{};
  std::string text{};

  bool operator==(const NoteEvent&) const = default;
};

struct ClockEvent {
  std::int64_t t = 0;
  std::int64_t database_us = 0;
  std::int64_t error_ns = 0;

  bool operator==(const ClockEvent&) const = default;
};

using Event =
    std::variant<CallEvent, AnswerEvent, EffectEvent, NoteEvent, ClockEvent>;

// CLOCK_MONOTONIC in ns: the `t` of an event that happens now.
std::int64_t MonotonicNow();

// As in a history: in_progress.
std::string_view PathName(Path path);
std::string_view KindName(Kind kind);
std::string_view OutcomeName(Outcome outcome);

// The line of `event`, with its '\n'.
std::string FormatEvent(const Event& event);

// Reads one line, with or without its '\n'. INVALID_ARGUMENT says what is
// wrong.
absl::StatusOr<Event> ParseEvent(std::string_view line);

// Appends events to a file, each with one write(2), so that a killed writer
// loses no event that it has written. One process at a time writes a file.
//
// Thread-safe.
class HistoryWriter {
 public:
  // Opens the file, and makes it if there is none. What a killed writer left
  // of a last line is cut off.
  static absl::StatusOr<std::unique_ptr<HistoryWriter>> Open(
      const std::string& path);
  ~HistoryWriter();
  HistoryWriter(const HistoryWriter&) = delete;
  HistoryWriter& operator=(const HistoryWriter&) = delete;

  // When it returns OK, the event is in the file, though maybe not yet on the
  // disk. After an error the history is not to be gone on with.
  absl::Status Append(const Event& event);

 private:
  explicit HistoryWriter(int file) : file_(file) {}

  const int file_;
};

// Gives every event of the file to `use`, in the file's order, and stops at the
// first line that is none or that `use` refuses, with an error that names file
// and line. A last line without '\n' was torn by a kill: it counts as never
// written.
absl::Status ReadHistory(const std::string& path,
                         absl::FunctionRef<absl::Status(Event&&)> use);

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CHECKER_HISTORY_H_
