#!/usr/bin/env python3
"""Keeps ledger.tsv, a row for each run, and the README's table made from it.

usage: ledger.py [--check | --write]
       ledger.py begin
       ledger.py append KIND [COLUMN=VALUE...]

Prints the table. With --write it is put into README.md; with --check, the
status is 1 unless it is there already.

Every instrument of the proof appends rows, by append() or that command, except
for quick runs:
  faults      tests/fault/run.sh: faults on real processes
  failover    tests/fault/run.sh, also with --failover: primaries that go
  simulation  tests/simulation/run.sh: schedules
  fuzz        tests/fuzz/run.sh --ledger: CPU hours under the sanitizers
  model       tests/model/run.sh: states
  mutants     tests/fault/run.sh --mutants: planted bugs, and those caught

`source` is a digest of server/core, server/rpc and server/store as they were
when the run began: rows whose digest is that of the present files are the part
of the totals that was run since these folders last changed. A program that
imports this begins then; a script evaluates what the command begin prints, and
everything that it starts is of that moment.
"""

import argparse
import csv
import datetime
import hashlib
import os
import subprocess
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(os.path.dirname(_HERE))
LEDGER = os.path.join(_HERE, "ledger.tsv")
_README = os.path.join(_ROOT, "README.md")
_BEGIN, _END = "<!-- ledger -->\n", "<!-- /ledger -->\n"
_SOURCES = ("server/core", "server/rpc", "server/store")
KINDS = ("faults", "failover", "simulation", "fuzz", "model", "mutants")
COLUMNS = (
    "date",  # UTC
    "commit",  # with a + when files differed from it, or the source changed
    "source", "kind",
    "seed",  # of the run, or - where there is none
    "minutes",
    "classes",  # names of the fault classes, fuzz targets ... separated by ,
    "faults",  # that counted
    "not_counted",  # faults that did not
    "operations", "keys", "effects", "unknown", "failovers", "schedules",
    "states", "cpu_hours", "mutants", "caught", "violations",
)
_COUNTS = COLUMNS[COLUMNS.index("faults"):]
# What a script that begins a run hands down to the programs of the run.
_COMMIT_VARIABLE = "IDEMPOTENCY_LEDGER_COMMIT"
_SOURCE_VARIABLE = "IDEMPOTENCY_LEDGER_SOURCE"


def source_digest():
    digest = hashlib.sha256()
    for folder in _SOURCES:
        for path, folders, files in os.walk(os.path.join(_ROOT, folder)):
            folders.sort()
            for name in sorted(files):
                file = os.path.join(path, name)
                digest.update(os.path.relpath(file, _ROOT).encode() + b"\0")
                with open(file, "rb") as content:
                    digest.update(hashlib.sha256(content.read()).digest())
    return digest.hexdigest()[:12]


def _git(*arguments):
    return subprocess.run(
        ["git", "-C", _ROOT, "-c", "safe.directory=*", *arguments],
        capture_output=True, text=True, check=True).stdout.strip()


def commit():
    try:
        changed = _git("status", "--porcelain", "--untracked-files=no", "--",
                       ".", ":(exclude)tests/fault/ledger.tsv")
        return _git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "-"


def begin():
    """Keeps, for the rows of this process, which tree it runs; importing this
    has done it."""
    global _begun
    _begun = (os.environ.get(_COMMIT_VARIABLE) or commit(),
              os.environ.get(_SOURCE_VARIABLE) or source_digest())


def _tree():
    """(commit, digest) of the run; a + tells that it was changed meanwhile."""
    commit_, source = _begun
    if source != source_digest() and not commit_.endswith("+"):
        commit_ += "+"
    return commit_, source


def append(kind, minutes, classes=(), seed="-", **counts):
    """Adds the row of a run. `classes` are names; counts that do not apply are
    left out."""
    unknown = set(counts) - set(_COUNTS)
    if kind not in KINDS or unknown:
        raise ValueError(f"the ledger has no {kind} {sorted(unknown)}")
    commit_, source = _tree()
    row = {"date": datetime.datetime.now(datetime.timezone.utc).strftime(
               "%Y-%m-%dT%H:%MZ"),
           "commit": commit_, "source": source, "kind": kind,
           "seed": seed, "minutes": f"{minutes:.1f}",
           "classes": ",".join(sorted(classes)) or "-", **counts}
    new = not os.path.exists(LEDGER) or os.path.getsize(LEDGER) == 0
    with open(LEDGER, "a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="-", delimiter="\t",
                                lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


def read():
    if not os.path.exists(LEDGER):
        return []
    with open(LEDGER, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    for number, row in enumerate(rows, 2):
        if (set(row) != set(COLUMNS) or None in row.values()
                or row["kind"] not in KINDS):
            raise ValueError(f"line {number} of the ledger is malformed")
    return rows


class _Totals:
    """Sums over some rows."""

    def __init__(self, rows):
        self._rows = rows

    def _cells(self, column, kinds):
        return [row[column] for row in self._rows
                if row[column] != "-" and (not kinds or row["kind"] in kinds)]

    def sum(self, column, *kinds):
        total = sum(float(cell) for cell in self._cells(column, kinds))
        return f"{total:,.1f}" if column in ("cpu_hours",) else f"{total:,.0f}"

    def most(self, column, *kinds):
        return f"{max(map(float, self._cells(column, kinds)), default=0):,.0f}"

    def hours(self, *kinds):
        return f"{sum(map(float, self._cells('minutes', kinds))) / 60:,.1f}"

    def classes(self, *kinds):
        return str(len({name for cell in self._cells("classes", kinds)
                        for name in cell.split(",")}))

    def latest(self, column, *kinds):
        cells = self._cells(column, kinds)
        return f"{int(cells[-1]):,}" if cells else "0"


_LINES = (
    ("faults on real processes that counted", "10,000",
     lambda t: t.sum("faults", "faults", "failover")),
    ("classes of fault", "40", lambda t: t.classes("faults", "failover")),
    ("hours of fault runs", "", lambda t: t.hours("faults", "failover")),
    ("operations checked", "100 million",
     lambda t: t.sum("operations", "faults", "failover")),
    ("of them with an unknown outcome", "",
     lambda t: t.sum("unknown", "faults", "failover")),
    ("effects in the wallet's ledger", "",
     lambda t: t.sum("effects", "faults", "failover")),
    ("failovers to a synchronous standby", "300", lambda t: t.sum("failovers")),
    ("simulated schedules", "1 million", lambda t: t.sum("schedules")),
    ("CPU hours of fuzzing", "24 a target", lambda t: t.sum("cpu_hours")),
    ("states of the model, largest search", "",
     lambda t: t.most("states", "model")),
    ("planted bugs caught, of those planted", "all",
     lambda t: t.latest("caught", "mutants") + " of "
     + t.latest("mutants", "mutants")),
    ("violations", "0", lambda t: t.sum("violations")),
)


def table(rows):
    now = source_digest()
    total = _Totals(rows)
    since = _Totals([row for row in rows if row["source"] == now])
    lines = ["| what | in all | with the present code | goal |",
             "|---|---|---|---|"]
    lines += [f"| {text} | {value(total)} | {value(since)} | {goal} |"
              for text, goal, value in _LINES]
    return "\n".join(lines) + "\n"


def _split_readme():
    with open(_README, encoding="utf-8") as file:
        text = file.read()
    before, begin, rest = text.partition(_BEGIN)
    old, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError("README.md has no place for the ledger's table")
    return before + begin, old, end + after


def _append_words(kind, *words):
    values = dict(word.split("=", 1) for word in words)
    append(kind, float(values.pop("minutes", 0)),
           filter(None, values.pop("classes", "").split(",")), **values)


def main():
    if sys.argv[1:] == ["begin"]:
        print(f"export {_COMMIT_VARIABLE}={_begun[0]} "
              f"{_SOURCE_VARIABLE}={_begun[1]}")
        return 0
    if sys.argv[1:2] == ["append"]:
        _append_words(*sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--check", action="store_true")
    which.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    new = table(read())
    print(new, end="")
    if arguments.check or arguments.write:
        before, old, after = _split_readme()
        if old == new:
            return 0
        if arguments.check:
            print("ledger: the table in README.md is another one; run "
                  "tests/fault/ledger.py --write", file=sys.stderr)
            return 1
        with open(_README, "w", encoding="utf-8") as file:
            file.write(before + new + after)
    return 0


begin()
if __name__ == "__main__":
    sys.exit(main())
