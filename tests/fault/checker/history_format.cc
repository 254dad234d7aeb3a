#include <charconv>
#include <cstddef>
#include <iterator>
#include <system_error>
#include <type_traits>
#include <utility>

#include "tests/fault/checker/history.h"

namespace idempotency::fault {
namespace {

// The names of an enum's values, from 0 on. The first stands for "not said".
template <typename Enum>
struct Names;
template <>
struct Names<Path> {
  static constexpr std::string_view kAll[] = {"", "unary", "bulk", "client"};
};
template <>
struct Names<Kind> {
  static constexpr std::string_view kAll[] = {"", "claim", "finalize", "lookup",
                                              "release"};
};
template <>
struct Names<SaidDisposition> {
  static constexpr std::string_view kAll[] = {
      "", "not_executed", "outcome_unknown", "never_executed"};
};
template <>
struct Names<Outcome> {
  static constexpr std::string_view kAll[] = {"",
                                              "claimed",
                                              "replay",
                                              "in_progress",
                                              "mismatch",
                                              "in_doubt",
                                              "recorded",
                                              "recorded_without_body",
                                              "result_released",
                                              "result_in_doubt",
                                              "released",
                                              "not_released",
                                              "found"};
};
template <>
struct Names<SaidState> {
  static constexpr std::string_view kAll[] = {"", "in_progress", "finalized",
                                              "released", "in_doubt"};
};
template <>
struct Names<SaidReason> {
  static constexpr std::string_view kAll[] = {
      "", "lease_lapsed", "outcome_unknown", "server_error"};
};
template <>
struct Names<EffectResult> {
  static constexpr std::string_view kAll[] = {"", "executed", "duplicate",
                                              "refused"};
};
template <>
struct Names<Phase> {
  static constexpr std::string_view kAll[] = {"", "begin", "end", "closing"};
};

template <typename Enum>
std::string_view NameOf(Enum value) {
  return Names<Enum>::kAll[static_cast<std::size_t>(value)];
}

constexpr std::string_view kCodes[] = {"OK",
                                       "CANCELLED",
                                       "UNKNOWN",
                                       "INVALID_ARGUMENT",
                                       "DEADLINE_EXCEEDED",
                                       "NOT_FOUND",
                                       "ALREADY_EXISTS",
                                       "PERMISSION_DENIED",
                                       "RESOURCE_EXHAUSTED",
                                       "FAILED_PRECONDITION",
                                       "ABORTED",
                                       "OUT_OF_RANGE",
                                       "UNIMPLEMENTED",
                                       "INTERNAL",
                                       "UNAVAILABLE",
                                       "DATA_LOSS",
                                       "UNAUTHENTICATED"};

// ---- The fields of each event, for the writer and the reader alike. A
// visitor is called with (name, member, is it required).

constexpr bool kRequired = true;
constexpr bool kOptional = false;

template <typename Visitor, typename Call>
void VisitCall(Visitor& visit, Call& call) {
  visit("op", call.op, kRequired);
  visit("t", call.t, kRequired);
  visit("path", call.path, kRequired);
  visit("kind", call.kind, kRequired);
  visit("scope", call.scope, kRequired);
  visit("key", call.key, kRequired);
  visit("token", call.token, kOptional);
  visit("hash", call.hash, kOptional);
  visit("renew", call.renew, kOptional);
  visit("lease_us", call.lease_us, kOptional);
  visit("wait_us", call.wait_us, kOptional);
  visit("resolve", call.resolve, kOptional);
  visit("policy", call.policy, kOptional);
  visit("checkpoint", call.checkpoint, kOptional);
  visit("checkpoint_number", call.checkpoint_number, kOptional);
  visit("owner", call.owner, kOptional);
  visit("disposition", call.disposition, kOptional);
  visit("status", call.status, kOptional);
  visit("digest", call.digest, kOptional);
  visit("body_omitted", call.body_omitted, kOptional);
  visit("headers_omitted", call.headers_omitted, kOptional);
  visit("body_bytes", call.body_bytes, kOptional);
  visit("header_count", call.header_count, kOptional);
  visit("header_bytes", call.header_bytes, kOptional);
  visit("deadline_us", call.deadline_us, kOptional);
}

template <typename Visitor, typename Answer>
void VisitAbandoned(Visitor& visit, Answer& answer) {
  visit("abandoned_attempt", answer.abandoned_attempt, kOptional);
  visit("abandoned_fencing", answer.abandoned_fencing, kOptional);
  visit("abandoned_claimed_us", answer.abandoned_claimed_us, kOptional);
  visit("abandoned_us", answer.abandoned_us, kOptional);
  visit("abandoned_reason", answer.abandoned_reason, kOptional);
  visit("abandoned_status", answer.abandoned_status, kOptional);
  visit("abandoned_checkpoint", answer.abandoned_checkpoint, kOptional);
  visit("abandoned_downstream", answer.abandoned_downstream, kOptional);
  visit("abandoned_owner", answer.abandoned_owner, kOptional);
}

template <typename Visitor, typename Answer>
void VisitAnswer(Visitor& visit, Answer& answer) {
  visit("op", answer.op, kRequired);
  visit("t", answer.t, kRequired);
  visit("code", answer.code, kRequired);
  visit("reason", answer.reason, kOptional);
  visit("sends", answer.sends, kOptional);
  visit("outcome", answer.outcome, kOptional);
  visit("fencing", answer.fencing, kOptional);
  visit("attempt", answer.attempt, kOptional);
  visit("lease_us", answer.lease_us, kOptional);
  visit("lease_until_us", answer.lease_until_us, kOptional);
  visit("expires_us", answer.expires_us, kOptional);
  visit("downstream", answer.downstream, kOptional);
  visit("status", answer.status, kOptional);
  visit("digest", answer.digest, kOptional);
  visit("body_omitted", answer.body_omitted, kOptional);
  visit("headers_omitted", answer.headers_omitted, kOptional);
  visit("created_us", answer.created_us, kOptional);
  visit("claimed_us", answer.claimed_us, kOptional);
  visit("finalized_us", answer.finalized_us, kOptional);
  visit("retry_after_us", answer.retry_after_us, kOptional);
  visit("state", answer.state, kOptional);
  visit("hash", answer.hash, kOptional);
  visit("policy", answer.policy, kOptional);
  visit("checkpoint", answer.checkpoint, kOptional);
  visit("conflicts", answer.conflicts, kOptional);
  visit("owner", answer.owner, kOptional);
  VisitAbandoned(visit, answer);
}

template <typename Visitor, typename Effect>
void VisitEffect(Visitor& visit, Effect& effect) {
  visit("t", effect.t, kRequired);
  visit("scope", effect.scope, kRequired);
  visit("key", effect.key, kRequired);
  visit("downstream", effect.downstream, kRequired);
  visit("result", effect.result, kRequired);
  visit("token", effect.token, kOptional);
  visit("fencing", effect.fencing, kOptional);
}

template <typename Visitor, typename Note>
void VisitNote(Visitor& visit, Note& note) {
  visit("t", note.t, kRequired);
  visit("fault", note.fault, kOptional);
  visit("phase", note.phase, kOptional);
  visit("caller", note.caller, kOptional);
  visit("text", note.text, kOptional);
}

template <typename Visitor, typename Clock>
void VisitClock(Visitor& visit, Clock& clock) {
  visit("t", clock.t, kRequired);
  visit("database_us", clock.database_us, kRequired);
  visit("error_ns", clock.error_ns, kOptional);
}

// ---- Values.

std::string Quoted(std::string_view text) {
  return std::string("'").append(text).append("'");
}

bool IsPlain(char c) { return c > ' ' && c <= '~' && c != '%'; }

void AppendEscaped(std::string_view value, std::string& out) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  for (const char c : value) {
    if (IsPlain(c)) {
      out += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    out += '%';
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
}

int DigitValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// One spelling only: what need not be escaped must not be.
bool Unescape(std::string_view text, std::string& out) {
  out.clear();
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (IsPlain(text[i])) {
      out += text[i];
      continue;
    }
    if (text[i] != '%' || i + 2 >= text.size()) return false;
    const int high = DigitValue(text[i + 1]);
    const int low = DigitValue(text[i + 2]);
    if (high < 0 || low < 0) return false;
    out += static_cast<char>(high * 16 + low);
    if (IsPlain(out.back())) return false;
    i += 2;
  }
  return true;
}

bool Read(std::string_view text, std::string& value) {
  return Unescape(text, value);
}
bool Read(std::string_view text, std::optional<std::string>& value) {
  return Unescape(text, value.emplace());
}
bool Read(std::string_view text, std::int64_t& value) {
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}
bool Read(std::string_view text, std::optional<std::int64_t>& value) {
  return Read(text, value.emplace());
}
bool Read(std::string_view text, bool& value) {
  value = true;
  return text == "1";
}
template <typename Enum>
bool Read(std::string_view text, Enum& value) {
  for (std::size_t i = 1; i < std::size(Names<Enum>::kAll); ++i) {
    if (text != Names<Enum>::kAll[i]) continue;
    value = static_cast<Enum>(i);
    return true;
  }
  return false;
}

// ---- The writer's visitor: leaves out what has its default.

class FieldWriter {
 public:
  explicit FieldWriter(std::string& out) : out_(out) {}

  void operator()(std::string_view name, const std::string& value,
                  bool required) {
    if (required || !value.empty()) Append(name, value);
  }
  void operator()(std::string_view name,
                  const std::optional<std::string>& value, bool) {
    if (value.has_value()) Append(name, *value);
  }
  void operator()(std::string_view name, std::int64_t value, bool required) {
    const std::int64_t otherwise = name == "sends" ? 1 : 0;
    if (required || value != otherwise) Append(name, std::to_string(value));
  }
  void operator()(std::string_view name,
                  const std::optional<std::int64_t>& value, bool) {
    if (value.has_value()) Append(name, std::to_string(*value));
  }
  void operator()(std::string_view name, bool value, bool) {
    if (value) Append(name, "1");
  }
  template <typename Enum>
  void operator()(std::string_view name, Enum value, bool) {
    if (value != Enum{}) Append(name, NameOf(value));
  }

 private:
  void Append(std::string_view name, std::string_view value) {
    out_.append(" ").append(name).append("=");
    AppendEscaped(value, out_);
  }

  std::string& out_;
};

// ---- The reader's visitor: takes each field's text to its member.

class FieldReader {
 public:
  // Splits `rest`, all of a line behind its word.
  explicit FieldReader(std::string_view rest) {
    while (!rest.empty()) {
      if (rest.front() != ' ') Fail("fields are separated by single spaces");
      rest.remove_prefix(1);
      const std::string_view field = rest.substr(0, rest.find(' '));
      rest.remove_prefix(field.size());
      const std::size_t equals = field.find('=');
      if (equals == std::string_view::npos || count_ == kFieldsMax) {
        Fail(Quoted(field) + " is no field");
        return;
      }
      fields_[count_++] = {field.substr(0, equals), field.substr(equals + 1)};
    }
  }

  template <typename Value>
  void operator()(std::string_view name, Value& value, bool required) {
    // Mostly in the order in which they are written.
    const std::size_t i =
        next_ < count_ && fields_[next_].name == name ? next_ : Find(name);
    if (i == count_) {
      if (required) Fail(Quoted(name) + " is missing");
      return;
    }
    if (fields_[i].used) return;
    if (!Read(fields_[i].text, value) || (required && value == Value{})) {
      Fail(Quoted(name) + " has no such value: " + Quoted(fields_[i].text));
    }
    fields_[i].used = true;
    ++used_;
    next_ = i + 1;
  }

  // To be asked when all fields were visited.
  absl::Status Finish() {
    for (std::size_t i = 0; i < count_ && used_ < count_; ++i) {
      if (!fields_[i].used) {
        Fail(Quoted(fields_[i].name) + " is unknown here, or said twice");
      }
    }
    return problem_.empty() ? absl::OkStatus()
                            : absl::InvalidArgumentError(problem_);
  }

 private:
  struct Field {
    std::string_view name{};
    std::string_view text{};
    bool used = false;
  };

  std::size_t Find(std::string_view name) const {
    for (std::size_t i = 0; i < count_; ++i) {
      if (fields_[i].name == name) return i;
    }
    return count_;
  }

  void Fail(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
  }

  static constexpr std::size_t kFieldsMax = 48;
  Field fields_[kFieldsMax];
  std::size_t count_ = 0;
  std::size_t used_ = 0;
  std::size_t next_ = 0;
  std::string problem_{};
};

struct Visit {
  template <typename Visitor, typename E>
  static void Fields(Visitor& visit, E& event) {
    using Plain = std::remove_const_t<E>;
    if constexpr (std::is_same_v<Plain, CallEvent>) {
      VisitCall(visit, event);
    } else if constexpr (std::is_same_v<Plain, AnswerEvent>) {
      VisitAnswer(visit, event);
    } else if constexpr (std::is_same_v<Plain, EffectEvent>) {
      VisitEffect(visit, event);
    } else if constexpr (std::is_same_v<Plain, NoteEvent>) {
      VisitNote(visit, event);
    } else {
      VisitClock(visit, event);
    }
  }
};

constexpr std::string_view kWords[] = {"call", "answer", "effect", "note",
                                       "clock"};

template <typename E>
absl::StatusOr<Event> ParseFields(std::string_view rest) {
  E event;
  FieldReader reader(rest);
  Visit::Fields(reader, event);
  if (absl::Status status = reader.Finish(); !status.ok()) return status;
  if constexpr (std::is_same_v<E, AnswerEvent>) {
    for (const std::string_view code : kCodes) {
      if (event.code == code) return Event(std::move(event));
    }
    return absl::InvalidArgumentError("gRPC has no code " + Quoted(event.code));
  }
  return Event(std::move(event));
}

}  // namespace

std::string_view PathName(Path path) { return NameOf(path); }
std::string_view KindName(Kind kind) { return NameOf(kind); }
std::string_view OutcomeName(Outcome outcome) { return NameOf(outcome); }

std::string FormatEvent(const Event& event) {
  std::string line(kWords[event.index()]);
  FieldWriter writer(line);
  std::visit([&](const auto& one) { Visit::Fields(writer, one); }, event);
  line += '\n';
  return line;
}

absl::StatusOr<Event> ParseEvent(std::string_view line) {
  if (line.ends_with('\n')) line.remove_suffix(1);
  const std::string_view word = line.substr(0, line.find(' '));
  const std::string_view rest = line.substr(word.size());
  if (word == kWords[0]) return ParseFields<CallEvent>(rest);
  if (word == kWords[1]) return ParseFields<AnswerEvent>(rest);
  if (word == kWords[2]) return ParseFields<EffectEvent>(rest);
  if (word == kWords[3]) return ParseFields<NoteEvent>(rest);
  if (word == kWords[4]) return ParseFields<ClockEvent>(rest);
  return absl::InvalidArgumentError(Quoted(word) + " is no event's word");
}

}  // namespace idempotency::fault
