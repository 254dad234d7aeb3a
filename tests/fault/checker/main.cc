// fault-checker: were the promises kept? See the text of --help.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/fault/checker/check.h"
#include "tests/fault/checker/findings.h"
#include "tests/fault/checker/run.h"

namespace {

using idempotency::fault::Counts;
using idempotency::fault::Files;
using idempotency::fault::Findings;
using idempotency::fault::Limits;
using idempotency::fault::Violation;

constexpr int kClean = 0;
constexpr int kViolations = 1;
constexpr int kNotChecked = 2;

constexpr char kHelp[] =
    R"(usage: fault-checker --transitions=FILE --dump=FILE --conflicts=FILE
           [options] HISTORY...

Checks what callers were told, what the table went through and what was done to
the outside world against the promises of the coordinator: S1 to S20, L1 to L4.

  HISTORY            what callers, wallets and the harness wrote; the format is
                     in tests/fault/checker/history.h. At least one of them
                     holds `clock` events
  --transitions=FILE the log of every change, and
  --dump=FILE        the final records: taken as tests/fault/transitions.sql
                     says, in one snapshot, when all calls have ended
  --conflicts=FILE   the refused responses, likewise
  --budget=60s       give up after that: a check not made to its end is none
  --late=100ms       a call may end so much after its deadline (L3)
  --settle=5s        so long after the end of the last noted fault the service
                     has to work again (L1, L2, L4, and the shares of L3)
  --patience=2s      all calls of a record may fail for so long after that, as
                     those of a client that finds its way back (L1, L2)
  --left_patience=5s so soon has a key that was left unfinished to be had, after
                     it was asked for or its lease was over (L1, L2): where
                     a `closing` note says from when on they are asked for.
                     What is called from then on counts for nothing else
  --decided=0.99     the share of the calls from then on that have to end with a
                     decision (L4)
  --body_bytes_max=10000
                     what the servers keep of a body (S9)
  --decided_min=0.2  less of all calls decided, or
  --effects_min=1    fewer effects, or
  --after_min=0      fewer calls decided after the faults, or
  --left_min=0       fewer of the keys that were left unfinished asked for at
                     the end, or
  --clock_error_max=50ms
                     times of the database placed worse, for more than a tenth
                     of the run: nothing was checked
  --help             this text

Prints a line for each broken promise, with its number, the scope and key and
the operations:

  S3 fault/r17 k42: c2-9 was given the key while the lease of c1-4 ran

ORDER stands for a change or an answer that no order of the calls explains,
DEFECT for a call that ended with INTERNAL or RECORD_CORRUPT. The last line sums
up:

  checked operations=.. decided=.. keys=.. unknown=.. grants=.. finals=..
  changes=.. effects=.. after_faults=.. settled=.. silent=.. waits=..
  cut_short=.. overlong=.. overslept=.. woken=.. left=.. left_asked=..
  overlapping_owners=.. late_changes=.. defects=.. clock_error_ms=..
  clock_error_max_ms=.. seconds=.. violations=..

It begins with `unfinished` if the check did not come to its end.

  unknown            calls that ended without a decision
  grants, finals     claims told that the key is theirs; recorded responses,
                     and confirmations of them
  after_faults       calls decided after the last fault and --settle
  settled, silent    unary calls that ended since then; without an answer of the
                     server's by their deadline
  waits, cut_short, overlong, overslept, woken
                     claims told InProgress since then that were to wait; that
                     did not; that waited longer; that waited on when the owner
                     had ended; and those told something else after a while
  left, left_asked   keys that callers left unfinished; asked for at the end
  overlapping_owners effects by somebody whom another had taken over from:
                     allowed, and why there are fencing tokens
  late_changes       a copy of a request, or another try of the server, took
                     effect beside its answer: allowed
  clock_error_ms     within which the database's times are placed, but for a
                     tenth of the run; clock_error_max_ms: all of them

Exit status: 0 all promises kept, 1 some broken, 2 not checked: also where
nothing was changed, or a fault has no end. It is 1 also where a check that did
not come to its end had found some broken.
)";

// The value of --name=value, if `argument` is that.
bool IsFlag(std::string_view argument, std::string_view name,
            std::string& value) {
  if (!argument.starts_with(name) || argument.size() <= name.size() ||
      argument[name.size()] != '=') {
    return false;
  }
  value = argument.substr(name.size() + 1);
  return true;
}

int Refuse(const std::string& problem) {
  std::fprintf(stderr, "fault-checker: %s\n", problem.c_str());
  return kNotChecked;
}

// Less than that is no check.
struct Least {
  double decided_share = 0.2;
  std::int64_t effects = 1;
  std::int64_t after_faults = 0;
  std::int64_t left = 0;
  // More is no placing of times.
  absl::Duration clock_error = absl::Milliseconds(50);
};

bool ReadShare(const std::string& value, double& share) {
  return absl::SimpleAtod(value, &share) && share >= 0 && share <= 1;
}

// Returns what is wrong with `argument`, or nothing.
std::string Take(const std::string& argument, Files& files, Limits& limits,
                 Least& least) {
  std::string value;
  bool ok = true;
  if (IsFlag(argument, "--transitions", files.transitions) ||
      IsFlag(argument, "--dump", files.dump) ||
      IsFlag(argument, "--conflicts", files.conflicts)) {
    return "";
  }
  if (IsFlag(argument, "--budget", value)) {
    ok = absl::ParseDuration(value, &limits.budget);
  } else if (IsFlag(argument, "--late", value)) {
    ok = absl::ParseDuration(value, &limits.late);
  } else if (IsFlag(argument, "--settle", value)) {
    ok = absl::ParseDuration(value, &limits.settle);
  } else if (IsFlag(argument, "--patience", value)) {
    ok = absl::ParseDuration(value, &limits.patience);
  } else if (IsFlag(argument, "--left_patience", value)) {
    ok = absl::ParseDuration(value, &limits.left_patience);
  } else if (IsFlag(argument, "--left_min", value)) {
    ok = absl::SimpleAtoi(value, &least.left);
  } else if (IsFlag(argument, "--decided", value)) {
    ok = ReadShare(value, limits.decided_share);
  } else if (IsFlag(argument, "--body_bytes_max", value)) {
    ok = absl::SimpleAtoi(value, &limits.body_bytes_max);
  } else if (IsFlag(argument, "--decided_min", value)) {
    ok = ReadShare(value, least.decided_share);
  } else if (IsFlag(argument, "--effects_min", value)) {
    ok = absl::SimpleAtoi(value, &least.effects);
  } else if (IsFlag(argument, "--clock_error_max", value)) {
    ok = absl::ParseDuration(value, &least.clock_error);
  } else if (IsFlag(argument, "--after_min", value)) {
    ok = absl::SimpleAtoi(value, &least.after_faults);
  } else if (argument.starts_with("-")) {
    return "unknown option " + argument + "; see --help";
  } else {
    files.histories.push_back(argument);
  }
  return ok ? "" : "no such value: " + argument;
}

void Print(const Findings& findings, bool is_finished, double seconds) {
  for (const Violation& violation : findings.violations()) {
    const std::string where =
        violation.id.scope.empty()
            ? ""
            : " " + violation.id.scope + " " + violation.id.key;
    std::printf("%s%s: %s\n", violation.number.c_str(), where.c_str(),
                violation.what.c_str());
  }
  const Counts& counts = findings.counts;
  std::printf(is_finished ? "checked" : "unfinished");
  const auto print = [](const char* name, std::int64_t number) {
    std::printf(" %s=%lld", name, static_cast<long long>(number));
  };
  print("operations", counts.operations);
  print("decided", counts.decided);
  print("keys", counts.keys);
  print("unknown", counts.unknown);
  print("grants", counts.grants);
  print("finals", counts.finals);
  print("changes", counts.changes);
  print("effects", counts.effects);
  print("after_faults", counts.after_faults);
  print("settled", counts.settled);
  print("silent", counts.silent);
  print("waits", counts.waits);
  print("cut_short", counts.cut_short);
  print("overlong", counts.overlong);
  print("overslept", counts.overslept);
  print("woken", counts.woken);
  print("left", counts.left);
  print("left_asked", counts.left_asked);
  print("overlapping_owners", counts.overlapping_owners);
  print("late_changes", counts.late_changes);
  print("defects", counts.defects);
  print("clock_error_ms", counts.clock_error_ms);
  print("clock_error_max_ms", counts.clock_error_max_ms);
  std::printf(" seconds=%.2f violations=%zu\n", seconds,
              findings.violations().size());
  std::fflush(stdout);
}

// Why nothing can be said after no violation was found; empty: it can.
std::string WhyNothingSaid(const Counts& counts, const Least& least) {
  if (counts.operations == 0) return "no operation at all";
  if (counts.changes == 0) return "no change at all";
  if (static_cast<double>(counts.decided) <
      least.decided_share * static_cast<double>(counts.operations)) {
    return "hardly any operation was decided";
  }
  if (absl::Milliseconds(counts.clock_error_ms) > least.clock_error) {
    return "the database's times cannot be placed: did its clock step?";
  }
  if (counts.effects < least.effects) return "hardly any effect";
  if (counts.after_faults < least.after_faults) {
    return "hardly any operation was decided after the faults";
  }
  if (counts.left_asked < std::min(counts.left, least.left)) {
    return "hardly any key that was left unfinished was asked for";
  }
  if (least.left > 0 && counts.left == 0) {
    return "no key was left unfinished, or none was asked for";
  }
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  Files files;
  Limits limits;
  Least least;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--help") {
      std::fputs(kHelp, stdout);
      return kClean;
    }
    const std::string problem = Take(argument, files, limits, least);
    if (!problem.empty()) return Refuse(problem);
  }
  if (files.histories.empty() || files.transitions.empty() ||
      files.dump.empty() || files.conflicts.empty()) {
    return Refuse(
        "histories, --transitions, --dump and --conflicts are needed; see "
        "--help");
  }
  const absl::Time begin = absl::Now();
  const auto run = idempotency::fault::ReadRun(files);
  if (!run.ok()) return Refuse(std::string(run.status().message()));
  Findings findings;
  limits.budget -= absl::Now() - begin;
  const absl::Status status = idempotency::fault::Check(*run, limits, findings);
  Print(findings, status.ok(), absl::ToDoubleSeconds(absl::Now() - begin));
  const int refused =
      status.ok() ? kClean : Refuse(std::string(status.message()));
  if (!findings.violations().empty()) return kViolations;
  if (!status.ok()) return refused;
  const std::string why = WhyNothingSaid(findings.counts, least);
  return why.empty() ? kClean : Refuse(why);
}
