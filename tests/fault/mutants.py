"""Servers with planted bugs, under faults until the checker shows each."""

import contextlib
import dataclasses
import os
import subprocess
import sys
import time

_PLANTED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "planted")
sys.path.append(_PLANTED)
import failover
import ledger
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


class _Caught:
    def __init__(self, bug):
        self.bug = bug
        self.by = None  # the first invariants, in words
        self.fault_class = "-"
        self.seconds = 0.0
        self.operations = 0

    def line(self):
        if self.by is None:
            return (f"{self.bug:40} NOT CAUGHT  {self.seconds:6.0f} s "
                    f"{self.operations:9,} operations")
        return (f"{self.bug:40} {self.by:14} {self.fault_class:28} "
                f"{self.seconds:5.0f} s {self.operations:9,} operations")


def _server(build, bug):
    return os.path.join(build, "tests", "fault", "planted",
                        "idempotency-server-" + bug)


def _classes(bug):
    names = bug.fault_classes()
    return [dataclasses.replace(CLASSES[name], injections=1)
            for name in (_ALL if names == ["all"] else names)]


def _tells(broken, bug):
    """Slowness alone, on a busy machine, is not to pass for finding a bug that
    has nothing to do with progress."""
    return not broken.startswith("L") or broken in bug.all("invariant")[0].split()


class _Hunt:
    """Rounds with servers that have one bug, until one is a violation."""

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
        for turn in range(_ROUNDS_MAX):
            fault_class = classes[turn % len(classes)]
            counts, broken, problem = self._play(fault_class)
            caught.operations += counts.get("operations", 0)
            caught.seconds = time.monotonic() - begun
            shown = [name for name in broken if _tells(name, bug)]
            if shown:
                caught.by = " ".join(shown)
                caught.fault_class = fault_class.name
                break
            if problem:
                self._say(f"  {bug.name}, {fault_class.name}: {problem}")
        self._say(caught.line())
        return caught

    def _play(self, fault_class):
        """(the checker's counts, promises that were broken, what went wrong
        otherwise)"""
        self._number += 1
        round_ = Round(self._number, fault_class, self._deployment,
                       self._arguments.seed,
                       os.path.join(self._folder, f"m{self._number:06}"))
        problem = None
        try:
            self._deployment.heal()
            round_.play()
        except (ProgramError, OSError) as error:
            problem = str(error)
        self._deployment.database.heal()
        check = round_.start_check()
        counts, violations, trouble = check.finish()
        check.forget()
        broken = {INVARIANT.match(line).group() for line in violations}
        if round_.traffic.internal_errors:
            broken.add("INTERNAL")
        return counts, sorted(broken), trouble or problem


def _hunt(arguments, folder, say, bugs):
    with contextlib.ExitStack() as stack:
        deployment = Deployment(Programs.of(arguments.build_dir), folder)
        stack.callback(deployment.close)
        hunt = _Hunt(deployment, arguments, folder, say)
        return [hunt.hunt(bug) for bug in bugs]


def _fail_over(arguments, folder, bug, say):
    """By failovers that show what the standby never had."""
    caught = _Caught(bug.name)
    begun = time.monotonic()
    rounds = failover.run(
        arguments.build_dir, os.path.join(folder, bug.name), _ROUNDS_MAX,
        ["cancelled_wait", "restarted"], arguments.seed, lambda text: None,
        _server(arguments.build_dir, bug.name))
    with contextlib.closing(rounds):
        for done in rounds:
            caught.operations += done.operations
            caught.seconds = time.monotonic() - begun
            if any(done.lost.values()):
                caught.by = "lost"
                caught.fault_class = "failover_" + done.kind
                break
    say(caught.line())
    return caught


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


def run(arguments, folder, say):
    """Every bug, or those of --only; the status for the shell."""
    names = list(filter(None, arguments.only.split(",")))
    bugs = read_bugs(names)
    by_faults = [bug for bug in bugs if bug.fault_classes()]
    caught = _hunt(arguments, folder, say, by_faults)
    by_failover = [bug for bug in bugs if bug not in by_faults
                   and "failover" in bug.all("caught-by")]
    caught += [_fail_over(arguments, folder, bug, say) for bug in by_failover]
    caught += [_prove(arguments, bug, say) for bug in bugs
               if bug not in by_faults + by_failover]
    missed = [one for one in caught if one.by is None]
    print()
    for one in caught:
        print(one.line())
    print(f"\n{len(caught) - len(missed)} of {len(caught)} planted bugs were "
          "caught")
    if not names:
        ledger.append("mutants", say.minutes(), seed=arguments.seed,
                      mutants=len(caught), caught=len(caught) - len(missed),
                      operations=sum(one.operations for one in caught))
    return 1 if missed else 0


def run_one(arguments, folder, say, name):
    """Is that one caught?"""
    (caught,) = _hunt(arguments, folder, say, read_bugs([name]))
    return caught.by is not None
