"""Servers with planted bugs, under faults until the checker shows each.

Before that, the server as it is has to stay silent under the same faults. A bug
is caught by the rules that its header names, and by no others.
"""

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
import time

_PLANTED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "planted")
sys.path.append(_PLANTED)
import failover
import ledger
import summary
from deployment import Deployment, Programs
from faults import CLASSES
from planted import read_bugs
from programs import ProgramError
from rounds import INVARIANT, Round

# Of a bug that any traffic should show: what makes owners lapse, answers get
# lost and replicas differ.
_ALL = ("owner_stopped_long", "database_cut_after_commit", "server_stopped_long",
        "calls_replies_swallowed", "owner_killed", "backends_cancelled",
        "rows_locked", "expired_by_thousands", "calls_race", "server_killed")
_ROUNDS_MAX = 10
# The failovers that show what the standby never had.
_SHOWING = ("cancelled_wait", "restarted")


class _Caught:
    def __init__(self, bug):
        self.bug = bug
        self.by = None  # the first rules of its header that were broken
        self.others = set()  # other rules that were
        self.fault_class = "-"
        self.seconds = 0.0
        self.operations = 0

    def line(self):
        if self.by is None:
            others = " ".join(sorted(self.others))
            return (f"{self.bug:40} NOT CAUGHT  {self.seconds:6.0f} s "
                    f"{self.operations:9,} operations"
                    + f"; by another rule: {others}" * bool(others))
        return (f"{self.bug:40} {self.by:14} {self.fault_class:28} "
                f"{self.seconds:5.0f} s {self.operations:9,} operations")


def _server(build, bug):
    return os.path.join(build, "tests", "fault", "planted",
                        "idempotency-server-" + bug)


def _classes(bug):
    names = bug.fault_classes()
    return [dataclasses.replace(CLASSES[name], injections=1)
            for name in (_ALL if names == ["all"] else names)]


class _Hunt:
    """Rounds with servers that have one bug, until one shows it."""

    def __init__(self, deployment, arguments, folder, say):
        self._deployment = deployment
        self._arguments = arguments
        self._folder = folder
        self._say = say
        self._number = 0

    def hunt(self, bug):
        caught = _Caught(bug.name)
        begun = time.monotonic()
        self._deployment.use_server(_server(self._arguments.build_dir,
                                            bug.name))
        classes = _classes(bug)
        rules = bug.rules()
        for turn in range(_ROUNDS_MAX):
            fault_class = classes[turn % len(classes)]
            counts, broken, problem = self._play(fault_class)
            caught.operations += counts.get("operations", 0)
            caught.seconds = time.monotonic() - begun
            caught.others.update(broken - rules)
            if broken & rules:
                caught.by = " ".join(sorted(broken & rules))
                caught.fault_class = fault_class.name
                break
            if problem:
                self._say(f"  {bug.name}, {fault_class.name}: {problem}")
        self._say(caught.line())
        return caught

    def hear_silence(self, bugs):
        """What the server without bugs breaks under the faults of those, a
        line a class."""
        heard = []
        classes = {fault_class.name: fault_class for bug in bugs
                   for fault_class in _classes(bug)}
        for name, fault_class in classes.items():
            _, broken, problem = self._play(fault_class)
            noises = [problem] if problem else []
            if broken:
                noises.append(" ".join(sorted(broken)))
            self._say(f"without a bug, {name}: "
                      + ("; ".join(noises) or "silent"))
            heard += [f"without a bug, {name}: {noise}" for noise in noises]
        return heard

    def _play(self, fault_class):
        """(the checker's counts, rules that were broken, what went wrong
        otherwise)"""
        self._number += 1
        round_ = Round(self._number, fault_class, self._deployment,
                       self._arguments.seed,
                       os.path.join(self._folder, f"m{self._number:06}"))
        counts, violations, problem = {}, [], None
        try:
            self._deployment.heal()
            round_.play()
        except (ProgramError, OSError) as error:
            problem = str(error)
        try:
            self._deployment.database.heal()
            if round_.began:
                counts, violations, trouble = round_.start_check().finish()
                problem = trouble or problem
        except (ProgramError, OSError) as error:
            problem = problem or str(error)
        broken = {INVARIANT.match(line).group() for line
                  in summary.Result(round_, counts, violations).violations}
        if round_.traffic.internal_errors:
            broken.add("INTERNAL")
        shutil.rmtree(round_.folder, ignore_errors=True)
        return counts, broken, problem


@contextlib.contextmanager
def _hunting(arguments, folder, say):
    deployment = Deployment(Programs.of(arguments.build_dir), folder)
    with contextlib.closing(deployment):
        yield _Hunt(deployment, arguments, folder, say)


def _fail_over(arguments, folder, bug, say):
    """By failovers that show what the standby never had."""
    caught = _Caught(bug.name)
    begun = time.monotonic()
    with _failovers(arguments, folder, _ROUNDS_MAX, bug.name,
                    _server(arguments.build_dir, bug.name)) as rounds:
        for done in rounds:
            caught.operations += done.operations
            caught.seconds = time.monotonic() - begun
            if any(done.lost.values()):
                caught.by = "lost"
                caught.fault_class = "failover_" + done.kind
                break
    say(caught.line())
    return caught


def _failovers(arguments, folder, count, name, server=None):
    return contextlib.closing(failover.run(
        arguments.build_dir, os.path.join(folder, name), count,
        list(_SHOWING), arguments.seed, lambda text: None, server))


def _prove(arguments, bug, say):
    """By the tests that the patch names."""
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, os.path.join(_PLANTED, "planted.py"), "prove",
         arguments.build_dir, bug.name], capture_output=True, text=True,
        check=False)
    caught = _Caught(bug.name)
    caught.seconds = time.monotonic() - begun
    if done.returncode == 0:
        caught.by = "by tests"
        caught.fault_class = " ".join(bug.all("caught-by"))
    say(caught.line())
    return caught


class _Run:
    """What came of it so far, also if something ends it early."""

    def __init__(self, arguments, folder, say, bugs):
        self._arguments = arguments
        self._folder = folder
        self._say = say
        self._bugs = bugs
        self.heard = []  # of the server without bugs
        self.caught = []

    def play(self):
        by_faults = [bug for bug in self._bugs if bug.fault_classes()]
        by_failover = [bug for bug in self._bugs if bug not in by_faults
                       and "failover" in bug.all("caught-by")]
        if by_faults:
            with _hunting(self._arguments, self._folder, self._say) as hunt:
                self._hear(hunt.hear_silence(by_faults))
                for bug in by_faults:
                    self.caught.append(hunt.hunt(bug))
        if by_failover:
            with _failovers(self._arguments, self._folder, len(_SHOWING),
                            "no_bug") as rounds:
                self._hear([f"without a bug, failover_{done.kind}: {line}"
                            for done in rounds for line in done.violations])
        for bug in by_failover:
            self.caught.append(_fail_over(self._arguments, self._folder, bug,
                                          self._say))
        for bug in self._bugs:
            if bug not in by_faults + by_failover:
                self.caught.append(_prove(self._arguments, bug, self._say))

    def _hear(self, lines):
        self.heard += lines
        for line in lines or ["without a bug: silence"]:
            self._say(line)

    def publish(self):
        """Returns whether all were caught, amid silence."""
        found = self._found()
        print()
        for line in [*self.heard, *(one.line() for one in self.caught)]:
            print(line)
        print(f"\n{found} of {len(self._bugs)} planted bugs were caught")
        return found == len(self._bugs) and not self.heard

    def _found(self):
        return sum(one.by is not None for one in self.caught)

    def write_down(self):
        ledger.append("mutants", self._say.minutes(),
                      seed=self._arguments.seed, mutants=len(self._bugs),
                      caught=self._found(), violations=len(self.heard),
                      operations=sum(one.operations for one in self.caught))


def run(arguments, folder, say):
    """Every bug, or those of --only; the status for the shell."""
    names = list(filter(None, arguments.only.split(",")))
    run_ = _Run(arguments, folder, say, read_bugs(names))
    try:
        run_.play()
    finally:
        all_caught = run_.publish()
        if not names and (run_.caught or run_.heard):
            run_.write_down()
    return 0 if all_caught else 1


def run_one(arguments, folder, say, name):
    """Is that one caught? By one who has heard the server without bugs."""
    (bug,) = read_bugs([name])
    with _hunting(arguments, folder, say) as hunt:
        return hunt.hunt(bug).by is not None
