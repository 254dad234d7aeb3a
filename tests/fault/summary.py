"""What rounds came to: a line for each, a table by class, results.tsv."""

import os
import statistics
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..",
                             "benchmark"))
import report
from report import Row


# Of L3, as the checker judges them in one round if there are so many: these
# counts of it, of all of those.
_SHARED_MIN = 20
_SHARES = {
    "silent": (("settled",), 0.02),
    "cut_short": (("waits",), 0.2),
    "overlong": (("waits",), 0.2),
    "overslept": (("overslept", "woken"), 0.3),
}


class Result:
    """Of one round."""

    def __init__(self, round_, counts, violations):
        self.number = round_.number
        self.fault_class = round_.fault_class
        self.counts = counts  # of the checker, none unless it checked all
        self.violations = [
            *violations,
            *("L4: calls did not succeed again after the fault"
              for injection in round_.injections if injection.is_outage()),
            *round_.violations]
        self.injections = round_.injections
        self.problems = list(round_.problems)
        self.internal_errors = round_.traffic.internal_errors
        self.counted, self.uncounted = [], []
        for injection in round_.injections:
            why = self.problems[0] if self.problems else (
                injection.why_not_counted())
            if why is None:
                self.counted.append(injection)
            else:
                self.uncounted.append(why)
        # A class whose fault broke off at its first time has no injection.
        if not round_.injections and self.problems:
            self.uncounted.append(self.problems[0])

    def is_suspect(self):
        """Worth a look at its files, violation or not."""
        return bool(self.problems or self.internal_errors or any(
            "recovery" in why for why in self.uncounted))

    def line(self):
        text = f"{self.number:4} {self.fault_class.name:30}"
        if self.injections:
            first = self.injections[0]
            recovered = [injection.recovered_ms for injection
                         in self.injections
                         if injection.recovered_ms is not None]
            text += (f" {first.rate_before:6,.0f}/s before, "
                     f"{sum(i.during for i in self.injections):6,} during, "
                     f"{sum(i.after for i in self.injections):6,} after, "
                     f"recovered {max(recovered, default=0):6,.0f} ms, ")
        if self.counts:
            text += (f"{self.counts.get('operations', 0):7,} checked, "
                     f"{self.counts.get('unknown', 0):5,} unknown, ")
        text += (f"{len(self.counted)} counted, "
                 f"{len(self.violations)} violations")
        if self.internal_errors:
            text += f", {self.internal_errors} INTERNAL"
        if self.uncounted:
            text += "; not counted: " + "; ".join(sorted(set(self.uncounted)))
        return text


def _sum(results, name):
    return sum(result.counts.get(name, 0) for result in results)


def _by_class(results):
    grouped = {}
    for result in results:
        grouped.setdefault(result.fault_class.name, []).append(result)
    return grouped


def _recoveries(results):
    return [injection.recovered_ms for result in results
            for injection in result.counted]


def print_classes(results):
    print(f"{'class':32} rounds faults  not  operations unknown "
          "recovered p50    max ms  violations")
    for name, some in _by_class(results).items():
        recoveries = _recoveries(some) or [0]
        print(f"{name:32} {len(some):6} {sum(len(r.counted) for r in some):6} "
              f"{sum(len(r.uncounted) for r in some):4} "
              f"{_sum(some, 'operations'):11,} {_sum(some, 'unknown'):7,} "
              f"{statistics.median(recoveries):13,.0f} "
              f"{max(recoveries):9,.0f} "
              f"{sum(len(r.violations) for r in some):11}")


def _shares(results):
    """(name, how many, of how many, share that there may be)"""
    return [(name, _sum(results, name), sum(_sum(results, one) for one in all_),
             most) for name, (all_, most) in _SHARES.items()]


def broken_shares(results):
    """Violations that only show in many rounds, each of which had too few."""
    return [f"L3: {some} of {all_} {name} in all rounds"
            for name, some, all_, most in _shares(results)
            if all_ >= _SHARED_MIN and some > most * all_]


def ledger_counts(results):
    return {
        "classes": {r.fault_class.name for r in results if r.counted},
        "faults": sum(len(r.counted) for r in results),
        "not_counted": sum(len(r.uncounted) for r in results),
        "operations": _sum(results, "operations"),
        "keys": _sum(results, "keys"),
        "effects": _sum(results, "effects"),
        "unknown": _sum(results, "unknown"),
        "violations": (sum(len(r.violations) for r in results)
                       + len(broken_shares(results))),
    }


def not_counted(results):
    """The names of the classes that were played, and none of their faults
    counted."""
    return [name for name, some in _by_class(results).items()
            if not any(result.counted for result in some)]


def publish(results, folder, left_out=(), may_leave_out=True):
    """Prints the tables and writes results.tsv; returns whether nothing was
    violated, everything was checked, and a fault of every class counted.
    `left_out` are lines on classes that can't be played here."""
    print()
    print_classes(results)
    for line in left_out:
        print(line)
    counts = ledger_counts(results)
    recoveries = _recoveries(results)
    without = not_counted(results)
    unchecked = [r for r in results if not r.counts]
    rows = [
        Row("violations", counts["violations"], "", "<= 0"),
        Row("rounds", len(results), "", ">= 1"),
        Row("rounds_unchecked", len(unchecked), "", "<= 0"),
        Row("classes_not_counted", len(without), "", "<= 0"),
        Row("classes_left_out", len(left_out), "",
            None if may_leave_out else "<= 0"),
        Row("faults_not_counted", counts["not_counted"], ""),
        Row("recovery_max_ms", max(recoveries, default=0), "ms", "<= 30000"),
        Row("internal_errors", sum(r.internal_errors for r in results), "",
            "<= 0"),
        Row("classes", len(counts["classes"]), ""),
        Row("recovery_p50_ms", statistics.median(recoveries or [0]), "ms"),
    ]
    rows += [Row("share_" + name, some / max(all_, 1), f"of {all_}")
             for name, some, all_, _ in _shares(results)]
    rows += [Row(name, counts[name], "") for name in (
        "faults", "operations", "keys", "effects", "unknown")]
    path = os.path.join(folder, "results.tsv")
    report.write_tsv(rows, path)
    report.check_tsv(path)
    print()
    report.print_table(rows)
    print(f"\nWritten: {path}")
    for line in broken_shares(results):
        print("fault: VIOLATION " + line, file=sys.stderr)
    for result in unchecked:
        print(f"fault: round {result.number} was not checked: "
              f"{(result.problems or ['it broke off'])[0]}", file=sys.stderr)
    for name in without:
        print(f"fault: no fault of the class {name} counted", file=sys.stderr)
    return all(row.reached() != "no" for row in rows)
