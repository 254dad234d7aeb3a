// fault-checker: were the promises kept? See the text of --help.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

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
    R"(usage: fault-checker --transitions=FILE --dump=FILE [options] HISTORY...

Checks what callers were told, what the table went through and what was done to
the outside world against the promises of the coordinator: S1 to S20, L1 to L4.

  HISTORY            what callers, wallets and the harness wrote; the format is
                     in tests/fault/checker/history.h. At least one of them
                     holds `clock` events
  --transitions=FILE the log of every change, and
  --dump=FILE        the final records: taken as tests/fault/transitions.sql
                     says, in one snapshot, when all calls have ended
  --conflicts=FILE   the refused responses; without it nobody looks whether
                     each left its evidence (part of S7)
  --budget=60s       give up after that: a check not made to its end is none
  --late=100ms       a call may end so much after its deadline (L3)
  --settle=5s        so long after the end of the last noted fault the service
                     has to work again (L1, L2, L4)
  --patience=2s      all calls of a record may fail for so long after that, as
                     those of a client that finds its way back (L1, L2)
  --decided=0.99     the share of the calls from then on that have to end with a
                     decision (L4)
  --help             this text

Prints a line for each broken promise, with its number, the scope and key and
the operations:

  S3 fault/r17 k42: c2-9 was given the key while the lease of c1-4 ran

ORDER stands for a change or an answer that no order of the calls explains.
The last line sums up:

  checked operations=.. keys=.. unknown=.. changes=.. effects=..
  overlapping_owners=.. late_changes=.. defects=.. seconds=.. violations=..

  unknown            calls that ended without a decision
  overlapping_owners effects by somebody whom another had taken over from:
                     allowed, and why there are fencing tokens
  late_changes       a copy of a request took effect beside its answer: allowed
  defects            calls that ended with INTERNAL or RECORD_CORRUPT

Exit status: 0 all promises kept, 1 some broken, 2 not checked.
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

// Returns what is wrong with `argument`, or nothing.
std::string Take(const std::string& argument, Files& files, Limits& limits) {
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
  } else if (IsFlag(argument, "--decided", value)) {
    char* end = nullptr;
    limits.decided_share = std::strtod(value.c_str(), &end);
    ok = !value.empty() && *end == '\0' && limits.decided_share >= 0 &&
         limits.decided_share <= 1;
  } else if (argument.starts_with("-")) {
    return "unknown option " + argument + "; see --help";
  } else {
    files.histories.push_back(argument);
  }
  return ok ? "" : "no such value: " + argument;
}

void Print(const Findings& findings, double seconds) {
  for (const Violation& violation : findings.violations()) {
    const std::string where =
        violation.id.scope.empty()
            ? ""
            : " " + violation.id.scope + " " + violation.id.key;
    std::printf("%s%s: %s\n", violation.number.c_str(), where.c_str(),
                violation.what.c_str());
  }
  const Counts& counts = findings.counts;
  const auto number = [](std::int64_t n) { return static_cast<long long>(n); };
  std::printf(
      "checked operations=%lld keys=%lld unknown=%lld changes=%lld "
      "effects=%lld overlapping_owners=%lld late_changes=%lld defects=%lld "
      "seconds=%.2f violations=%zu\n",
      number(counts.operations), number(counts.keys), number(counts.unknown),
      number(counts.changes), number(counts.effects),
      number(counts.overlapping_owners), number(counts.late_changes),
      number(counts.defects), seconds, findings.violations().size());
}

}  // namespace

int main(int argc, char** argv) {
  Files files;
  Limits limits;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--help") {
      std::fputs(kHelp, stdout);
      return kClean;
    }
    const std::string problem = Take(argument, files, limits);
    if (!problem.empty()) return Refuse(problem);
  }
  if (files.histories.empty() || files.transitions.empty() ||
      files.dump.empty()) {
    return Refuse("histories, --transitions and --dump are needed; see --help");
  }
  const absl::Time begin = absl::Now();
  const auto run = idempotency::fault::ReadRun(files);
  if (!run.ok()) return Refuse(std::string(run.status().message()));
  Findings findings;
  limits.budget -= absl::Now() - begin;
  const absl::Status status = idempotency::fault::Check(*run, limits, findings);
  Print(findings, absl::ToDoubleSeconds(absl::Now() - begin));
  if (!status.ok()) return Refuse(std::string(status.message()));
  if (findings.counts.operations == 0) return Refuse("no operation at all");
  return findings.violations().empty() ? kClean : kViolations;
}
