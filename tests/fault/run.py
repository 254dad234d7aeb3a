"""Breaks things around running servers and checks what callers saw; run.sh
calls it."""

import argparse
import contextlib
import dataclasses
import os
import random
import shutil
import signal
import sys
import time
import traceback

import failover
import fault_callers  # fills the registry
import fault_database
import fault_network
import fault_postgres
import fault_servers
import ledger
import mutants
import summary
from deployment import Deployment, Programs
from faults import CLASSES
from planted import read_bugs  # mutants has its folder
from postgres import end_on_sigterm
from programs import ProgramError
from rounds import Round, noting

# One of each kind, and quick ones.
_QUICK = ("server_killed", "owner_killed", "postgres_stopped_immediate",
          "database_cut_after_commit", "calls_replies_swallowed",
          "rows_locked")
_FAILED_MAX = 3
_QUICK_MUTANT = "01_finalize_without_token"


class Runner:
    """Plays rounds one after the other, with the check of each beside the
    next. Appends to `results`."""

    def __init__(self, deployment, folder, seed, say, results):
        self._deployment = deployment
        self._folder = folder
        self._seed = seed
        self._say = say
        self._keep_in = os.path.join(folder, "violations")
        os.makedirs(self._keep_in, exist_ok=True)
        self._check = None
        self._number = 0
        self._failed = 0  # rounds that did not even begin, in a row
        self._results = results

    def play(self, fault_class):
        self._number += 1
        round_ = Round(self._number, fault_class, self._deployment, self._seed,
                       os.path.join(self._folder, f"r{self._number:06}"))
        with noting(round_, "broke off"):
            self._deployment.heal()
            round_.play()
        check = None
        with noting(round_, "not checked"):
            self._deployment.database.heal()
            if round_.problems:
                self._deployment.database.undo()
            if round_.began:
                check = round_.start_check()
        self.finish()
        if check is None:
            self._done(round_, {}, [])
        self._check = check
        self._failed = 0 if round_.began else self._failed + 1
        if self._failed == _FAILED_MAX:
            raise ProgramError(f"{self._failed} rounds in a row did not begin: "
                               + round_.problems[0])

    def finish(self):
        """Waits for the last check."""
        if self._check is None:
            return
        check, self._check = self._check, None
        counts, violations = {}, []
        with noting(check.round, "not checked"):
            counts, violations, trouble = check.finish()
            if trouble:
                check.round.problems.append(trouble)
        self._done(check.round, counts, violations)

    def _done(self, round_, counts, violations):
        result = summary.Result(round_, counts, violations)
        self._results.append(result)
        self._say(result.line())
        for line in result.violations[:20]:
            self._say("  VIOLATION " + line)
        if result.violations or result.is_suspect():
            kept = os.path.join(self._keep_in, os.path.basename(round_.folder))
            shutil.rmtree(kept, ignore_errors=True)
            shutil.move(round_.folder, kept)
            self._say(f"  kept in {kept}")
        else:
            shutil.rmtree(round_.folder, ignore_errors=True)


class Progress:
    """Says what has been done, and when."""

    def __init__(self):
        self._begun = time.monotonic()

    def minutes(self):
        return (time.monotonic() - self._begun) / 60

    def __call__(self, text):
        minutes, seconds = divmod(int(time.monotonic() - self._begun), 60)
        print(f"[{minutes:2}:{seconds:02}] {text}", flush=True)


def choose(deployment, names, quick):
    """(the classes to play, lines on those that can't be played here)"""
    chosen, left_out = [], []
    for fault_class in (CLASSES[name] for name in names):
        lacking = fault_class.lacks(deployment)
        if lacking:
            left_out.append(f"{fault_class.name} is left out: {lacking}")
        else:
            chosen.append(dataclasses.replace(fault_class, injections=1)
                          if quick else fault_class)
    return chosen, left_out


class Failovers:
    """Rounds of failover.py, which have nodes and servers of their own."""

    def __init__(self, arguments, folder, say):
        self._arguments = arguments
        self._folder = os.path.join(folder, "failover")
        self._say = say
        self.minutes = 0.0
        self.rounds = []

    def play(self):
        """Each kind once."""
        begun = time.monotonic()
        rounds = failover.run(
            self._arguments.build_dir, self._folder,
            len(failover.KINDS), list(failover.KINDS),
            self._arguments.seed + len(self.rounds), self._say)
        try:
            with contextlib.closing(rounds):
                for done in rounds:
                    self.rounds.append(done)
        finally:
            self.minutes += (time.monotonic() - begun) / 60

    def write_down(self):
        """A row of the ledger of their own."""
        if self.rounds:
            failover.write_down(self.rounds, self.minutes,
                                self._arguments.seed)

    def publish(self):
        """Whether nothing was violated."""
        for line in failover.summarize(self.rounds):
            print(line)
        return not any(done.violations for done in self.rounds)


def play_classes(runner, results, classes, failovers, arguments, progress):
    """All of them in random order, again and again while there is time, with
    the failovers behind them each time. Once, without --minutes; then those
    again of which no fault counted, since the machine may have been busy."""
    def is_over():
        return (arguments.minutes is not None
                and progress.minutes() >= arguments.minutes)

    order = random.Random(arguments.seed)
    while not is_over():
        for fault_class in order.sample(classes, len(classes)):
            runner.play(fault_class)
            if is_over():
                return
        runner.finish()
        if failovers is not None:
            failovers.play()
        if arguments.minutes is None:
            break
    again = summary.not_counted(results) if arguments.minutes is None else ()
    for fault_class in classes:
        if fault_class.name in again:
            runner.play(fault_class)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build_dir", required=True)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--classes", default="")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--mutants", action="store_true")
    parser.add_argument("--only", default="")
    # Of failover.py; with --list their names are checked here.
    parser.add_argument("--kinds", default="")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--previous")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    for what, names, known in (
            ("class", arguments.classes, CLASSES),
            ("kind of failover", arguments.kinds, failover.KINDS),
            ("planted bug", arguments.only,
             {bug.name for bug in read_bugs()} if arguments.only else ())):
        unknown = set(filter(None, names.split(","))) - set(known)
        if unknown:
            parser.error(f"there is no {what} " + ", ".join(sorted(unknown)))
    if arguments.seed is None:
        arguments.seed = random.SystemRandom().randrange(1 << 31)
    return arguments


class FaultRun:
    """What was played so far, also of a run that something ends early."""

    def __init__(self, arguments, folder, say):
        self._arguments = arguments
        self._folder = folder
        self._say = say
        self.results = []
        self._left_out = []
        self.failovers = None
        if not arguments.quick and not arguments.classes:
            self.failovers = Failovers(arguments, folder, say)

    def _names(self):
        return list(filter(None, self._arguments.classes.split(","))) or list(
            _QUICK if self._arguments.quick else CLASSES)

    def play(self):
        """Returns the status for the shell, violations aside."""
        arguments = self._arguments
        with contextlib.ExitStack() as stack:
            deployment = Deployment(
                Programs.of(arguments.build_dir, arguments.previous),
                self._folder)
            stack.callback(deployment.close)
            classes, self._left_out = choose(deployment, self._names(),
                                             arguments.quick)
            self._say(f"seed {arguments.seed}, {len(classes)} classes")
            for line in self._left_out:
                self._say(line)
            if not classes:
                print("fault: there is no class to play", file=sys.stderr)
                return 2
            runner = Runner(deployment, self._folder, arguments.seed,
                            self._say, self.results)
            stack.callback(runner.finish)
            play_classes(runner, self.results, classes, self.failovers,
                         arguments, self._say)
        return 0

    def publish(self):
        """Returns whether everything was as it should be."""
        named = self._arguments.quick or self._arguments.classes
        ok = summary.publish(self.results, self._folder, self._left_out,
                             may_leave_out=not named)
        if self.failovers is not None:
            ok &= self.failovers.publish()
        return ok

    def write_down(self):
        """The rows of the ledger."""
        minutes = self._say.minutes()
        if self.failovers is not None:
            self.failovers.write_down()
            minutes -= self.failovers.minutes
        if self.results:
            ledger.append("faults", minutes, seed=self._arguments.seed,
                          **summary.ledger_counts(self.results))


def until_it_ends(play):
    """The status that play() returns, or that of what ended it early."""
    try:
        return play()
    except KeyboardInterrupt:
        print("fault: interrupted; the last round does not count",
              file=sys.stderr)
        return 128 + signal.SIGINT
    except SystemExit as end:  # by end_on_sigterm()
        print("fault: ended; the last round does not count", file=sys.stderr)
        return end.code
    except ProgramError as error:
        print(f"fault: the run ended early: {error}", file=sys.stderr)
        return 1
    except Exception:
        traceback.print_exc()
        return 1


def run(arguments, folder, progress):
    faults = FaultRun(arguments, folder, progress)
    status = until_it_ends(faults.play)
    ok = faults.publish()
    if arguments.quick:
        if status == 0:
            ok &= mutants.run_one(arguments, folder, progress, _QUICK_MUTANT)
    else:
        faults.write_down()
    return status or (0 if ok else 1)


def print_names():
    print("Classes of fault, for --classes:")
    for fault_class in CLASSES.values():
        print(f"  {fault_class.name:40} {fault_class.text}")
    print("Ways of failover, for --kinds:")
    for name, fail_over in failover.KINDS.items():
        print(f"  {name:40} {' '.join((fail_over.__doc__ or '').split())}")
    print("Planted bugs, for --only:")
    for bug in read_bugs():
        print(f"  {bug.name:40} {' '.join(bug.all('breaks'))}")


def main():
    arguments = parse_arguments()
    if arguments.list:
        print_names()
        return 0
    end_on_sigterm()
    progress = Progress()
    folder = os.path.join(arguments.build_dir, "fault")
    os.makedirs(folder, exist_ok=True)
    try:
        if arguments.mutants:
            return mutants.run(arguments, folder, progress)
        return run(arguments, folder, progress)
    except ProgramError as error:
        print(f"fault: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
