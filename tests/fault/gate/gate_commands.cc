#include "tests/fault/gate/gate_commands.h"

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/integration/http2_answer.h"

namespace idempotency::fault {
namespace {

using std::chrono::milliseconds;
using Words = std::vector<std::string>;

// The words behind the command's name. Nothing is done and false returned
// where they are not what the command takes.
using Command = std::function<bool(TcpGate&, Behind, const Words&)>;

std::optional<std::int64_t> NumberIn(const std::string& word,
                                     std::int64_t least) {
  std::int64_t number = 0;
  if (!absl::SimpleAtoi(word, &number) || number < least) return std::nullopt;
  return number;
}

std::optional<TcpGate::Way> WayIn(const std::string& word) {
  if (word == "request") return TcpGate::Way::kRequests;
  if (word == "reply") return TcpGate::Way::kReplies;
  return std::nullopt;
}

Command Plain(void (TcpGate::*control)()) {
  return [control](TcpGate& gate, Behind, const Words& words) {
    if (!words.empty()) return false;
    (gate.*control)();
    return true;
  };
}

bool Swallow(TcpGate& gate, Behind, const Words& words) {
  if (words != Words{"on"} && words != Words{"off"}) return false;
  gate.SwallowReplies(words.front() == "on");
  return true;
}

bool Stall(TcpGate& gate, Behind, const Words& words) {
  if (words.size() != 1) return false;
  const auto time = NumberIn(words[0], 0);
  if (!time.has_value()) return false;
  gate.Stall(milliseconds(*time));
  return true;
}

bool Delay(TcpGate& gate, Behind, const Words& words) {
  if (words.size() != 2) return false;
  const auto requests = NumberIn(words[0], 0);
  const auto replies = NumberIn(words[1], 0);
  if (!requests.has_value() || !replies.has_value()) return false;
  gate.Delay(milliseconds(*requests), milliseconds(*replies));
  return true;
}

bool Throttle(TcpGate& gate, Behind, const Words& words) {
  if (words.size() != 1) return false;
  const auto bytes = NumberIn(words[0], 0);
  if (!bytes.has_value()) return false;
  gate.Throttle(*bytes);
  return true;
}

bool CutAfterNextRequest(TcpGate& gate, Behind behind, const Words& words) {
  if (words.size() > 1) return false;
  TcpGate::Cut cut;
  if (!words.empty()) cut.request_contains = words[0];
  if (behind == Behind::kGrpc) cut.answered = EndsAStream;
  gate.CutAfterNextRequest(std::move(cut));
  return true;
}

Command EndAtByte(TcpGate::End end) {
  return [end](TcpGate& gate, Behind, const Words& words) {
    if (words.size() != 2) return false;
    const auto way = WayIn(words[0]);
    const auto byte = NumberIn(words[1], 1);
    if (!way.has_value() || !byte.has_value()) return false;
    gate.EndAtByte(*way, *byte, end);
    return true;
  };
}

bool HalfClose(TcpGate& gate, Behind, const Words& words) {
  if (words.size() != 1) return false;
  const auto way = WayIn(words[0]);
  if (!way.has_value()) return false;
  gate.HalfClose(*way);
  return true;
}

const std::map<std::string, Command>& Commands() {
  static const auto& commands = *new std::map<std::string, Command>{
      {"open", Plain(&TcpGate::Open)},
      {"refuse", Plain(&TcpGate::Refuse)},
      {"cut", Plain(&TcpGate::CutAll)},
      {"blackhole", Plain(&TcpGate::BlackHole)},
      {"stall", Stall},
      {"swallow", Swallow},
      {"delay", Delay},
      {"throttle", Throttle},
      {"cut_after_next_request", CutAfterNextRequest},
      {"cut_at_byte", EndAtByte(TcpGate::End::kReset)},
      {"half_close_at_byte", EndAtByte(TcpGate::End::kHalfClose)},
      {"half_close", HalfClose},
  };
  return commands;
}

std::string Told(const TcpGate::Counters& counters) {
  return absl::StrCat("ok connections_accepted=", counters.connections_accepted,
                      " connections_open=", counters.connections_open,
                      " request_bytes=", counters.request_bytes,
                      " reply_bytes=", counters.reply_bytes,
                      " swallowed_bytes=", counters.swallowed_bytes,
                      " cuts=", counters.cuts);
}

}  // namespace

std::string RunGateCommand(TcpGate& gate, Behind behind,
                           const std::string& line) {
  Words words = absl::StrSplit(line, ' ', absl::SkipEmpty());
  if (words.empty()) return "error: no command";
  const std::string name = words.front();
  words.erase(words.begin());
  if (name == "counters" && words.empty()) return Told(gate.counters());
  const auto command = Commands().find(name);
  if (command == Commands().end()) return "error: there is no such command";
  return command->second(gate, behind, words)
             ? "ok"
             : absl::StrCat("error: ", name, " takes something else");
}

}  // namespace idempotency::fault
