#!/usr/bin/env python3
"""Bugs that are planted, one a patch of this folder, to see that they are found.

usage: planted.py check                    every patch is whole and goes on the tree
       planted.py prove BUILD [NAME...]    runs the tests that are to catch each bug
       planted.py list [NAME...]           name, instruments, what it breaks

A patch is a unified diff of files below server/, under a header of lines
"word: text" (a line that begins with blanks goes on with the one before):
  breaks        what goes wrong for whom
  invariant     which of the checker's rules shows it, or which rule of the
                contract
  shown-by      further rules of the checker that show it: one that it breaks
                as well, INTERNAL for an answer with that code
  compiled-too  sources that the patch leaves alone, but not a header of theirs
  caught-by     an instrument that must fail, several times:
    faults classes=NAME,...    the fault run, in rounds of these classes
    failover                   rounds of failover to a synchronous standby
    linked PROGRAM [FILTER]    a test program, linked with the bug's objects
    server PROGRAM [FILTER]    a test program whose servers have the bug

prove prints one line an instrument of the last two kinds: the bug, what caught
it and after how many seconds. It needs the target planted_tests of a build with
-DIDEMPOTENCY_PLANTED_BUGS=ON. The status is 1 if anything is amiss.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[2]
WORDS = {"breaks", "invariant", "shown-by", "compiled-too", "caught-by"}
RULE = re.compile(r"\b(?:[SL]\d+|ORDER|DEFECT|INTERNAL)\b")
INSTRUMENT = re.compile(
    r"faults classes=(?P<classes>[a-z0-9_,]+)"
    r"|failover"
    r"|(?P<how>linked|server) (?P<program>[a-z0-9_]+)( (?P<filter>\S+))?")
SECONDS_MAX = 300


class Bug:
    """One patch: its name and what its header says."""

    def __init__(self, path):
        self.path = path
        self.name = path.stem
        head, separator, self.diff = path.read_text().partition("\n\n--- ")
        self.diff = "--- " + self.diff if separator else ""
        self.lines = []
        for line in head.splitlines():
            if line.startswith(" ") and self.lines:
                word, text = self.lines[-1]
                self.lines[-1] = (word, text + " " + line.strip())
            else:
                word, _, text = line.partition(": ")
                self.lines.append((word, text))

    def all(self, word):
        return [text for name, text in self.lines if name == word]

    def instruments(self):
        return [INSTRUMENT.fullmatch(text) for text in self.all("caught-by")]

    def rules(self):
        """Those of the checker that show it."""
        return {rule for word in ("invariant", "shown-by")
                for text in self.all(word) for rule in RULE.findall(text)}

    def fault_classes(self):
        """Those whose rounds must show the bug."""
        return [name for found in self.instruments() if found["classes"]
                for name in found["classes"].split(",")]

    def files(self):
        return re.findall(r"^\+\+\+ b/(\S+)", self.diff, re.MULTILINE)


def read_bugs(names=()):
    bugs = [Bug(path) for path in sorted(FOLDER.glob("*.patch"))]
    if names:
        unknown = set(names) - {bug.name for bug in bugs}
        if unknown:
            sys.exit("no such bug: " + ", ".join(sorted(unknown)))
        bugs = [bug for bug in bugs if bug.name in names]
    if not bugs:
        sys.exit(f"no patches in {FOLDER}")
    return bugs


# ---- check


def problems_of_header(bug):
    for word in {word for word, _ in bug.lines} - WORDS:
        yield f"'{word}' is no word of the header"
    for word in ("breaks", "invariant"):
        if len(bug.all(word)) != 1:
            yield f"{len(bug.all(word))} lines '{word}', want one"
    if bug.fault_classes() and not bug.rules():
        yield "rounds are to catch it, and no rule of the checker is named"
    if not bug.all("caught-by"):
        yield "nothing is to catch it"
    for text, found in zip(bug.all("caught-by"), bug.instruments()):
        if found is None:
            yield f"caught-by: {text}: unknown"
        elif found["program"]:
            yield from problems_of_test(found["program"], found["filter"])


def problems_of_test(program, name_filter):
    listings = "".join(p.read_text() for p in ROOT.glob("tests/*/CMakeLists.txt"))
    if f"idempotency_test({program} " not in listings:
        yield f"caught-by: no test program is called {program}"
    for pattern in (name_filter or "").split(":"):
        name = pattern.rpartition(".")[2].partition("/")[0]
        if name and not any(
                re.search(rf"^TEST\w*\(\w+,\s+{name}\)", path.read_text(), re.MULTILINE)
                for path in ROOT.glob("tests/*/*_test.cc")):
            yield f"caught-by: no test is called {name}"


def problems_of_diff(bug):
    sources = bug.files() + " ".join(bug.all("compiled-too")).split()
    if not bug.files():
        yield "it changes no file"
    for file in sources:
        if not file.startswith("server/") or not (ROOT / file).is_file():
            yield f"{file} is no file of the server"
    if not any(file.endswith(".cc") for file in sources):
        yield "nothing is compiled with it"
    tried = subprocess.run(
        ["patch", "--dry-run", "--batch", "--forward", "--strip=1", "--fuzz=0",
         f"--directory={ROOT}", f"--input={bug.path}"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if tried.returncode != 0:
        yield "does not go on the tree as it stands; plant it anew:\n" + tried.stdout


def check(bugs):
    amiss = [f"{bug.name}: {problem}" for bug in bugs
             for problem in (*problems_of_header(bug), *problems_of_diff(bug))]
    for problem in amiss:
        print(problem)
    print(f"{len(bugs)} patches, {len(amiss)} problems")
    return not amiss


# ---- prove


def run_test(program, name_filter, environment):
    """(first test that failed or None, what went wrong otherwise, seconds)."""
    command = [str(program), "--gtest_fail_fast"]
    if name_filter:
        command.append(f"--gtest_filter={name_filter}")
    began = time.monotonic()
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", env={**os.environ, **environment},
            timeout=SECONDS_MAX, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error), time.monotonic() - began
    seconds = time.monotonic() - began
    failed = re.search(r"^\[  FAILED  \] ([\w/.]+)", done.stdout, re.MULTILINE)
    if failed and done.returncode == 1:
        return failed[1], "", seconds
    ran = re.search(r"^\[==========\] Running (\d+) test", done.stdout, re.MULTILINE)
    if not ran or ran[1] == "0":
        return None, "no test ran", seconds
    if done.returncode != 0:
        return None, f"status {done.returncode}, and no test failed", seconds
    return None, "all tests passed", seconds


def programs_of(build, bug, found):
    """The program of an instrument, and what to add to its environment."""
    planted = build / "tests/fault/planted"
    if found["how"] == "linked":
        return planted / f"{bug.name}-{found['program']}", {}
    path = next(build.glob(f"tests/*/{found['program']}"), Path(found["program"]))
    return path, {
        "IDEMPOTENCY_TEST_SERVER": str(planted / f"idempotency-server-{bug.name}")}


def prove(build, bugs):
    caught = instruments = 0
    for bug in bugs:
        for found in bug.instruments():
            if not found["program"]:
                continue
            instruments += 1
            program, environment = programs_of(build, bug, found)
            test, problem, seconds = run_test(program, found["filter"], environment)
            caught += test is not None
            print(f"{bug.name:38} {'caught' if test else 'NOT CAUGHT':10} "
                  f"{seconds:6.1f} s  {found['how']} {found['program']}: "
                  f"{test or problem}", flush=True)
    print(f"{len(bugs)} bugs, {instruments} tests that are to catch them, "
          f"{instruments - caught} did not")
    return instruments > 0 and caught == instruments


def main(arguments):
    if arguments == ["check"]:
        return check(read_bugs())
    if arguments[:1] == ["list"]:
        for bug in read_bugs(arguments[1:]):
            print(bug.name, "; ".join(bug.all("caught-by")), bug.all("breaks")[0],
                  sep="\t")
        return True
    if len(arguments) >= 2 and arguments[0] == "prove":
        return prove(Path(arguments[1]).resolve(), read_bugs(arguments[2:]))
    sys.exit(__doc__)


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
