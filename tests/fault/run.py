"""Breaks things around running servers and checks what callers saw; run.sh
calls it."""

import argparse
import contextlib
import dataclasses
import os
import random
import shutil
import sys
import time

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
from postgres import end_on_sigterm
from programs import ProgramError
from rounds import Round

# One of each kind, and quick ones.
_QUICK = ("server_killed", "owner_killed", "postgres_stopped_immediate",
          "database_cut_after_commit", "calls_replies_swallowed",
          "rows_locked")
_QUICK_MUTANT = "01_finalize_without_token"


class Runner:
    """Plays rounds one after the other, with the check of each beside the
    next."""

    def __init__(self, deployment, folder, seed, say, keep_in):
        self._deployment = deployment
        self._folder = folder
        self._seed = seed
        self._say = say
        self._keep_in = keep_in  # where rounds with violations go
        self._check = None
        self._number = 0
        self.results = []

    def play(self, fault_class):
        self._number += 1
        round_ = Round(self._number, fault_class, self._deployment, self._seed,
                       os.path.join(self._folder, f"r{self._number:06}"))
        try:
            self._deployment.heal()
            round_.play()
        except (ProgramError, OSError) as error:
            round_.problems.append(f"broke off: {error}")
        check = None
        try:
            self._deployment.database.heal()
            if round_.problems:
                self._deployment.database.undo()
            check = round_.start_check() if round_.began else None
        except ProgramError as error:
            round_.problems.append(f"not checked: {error}")
        self.finish()
        if check is None:
            self._done(round_, {}, [], None)
        self._check = check

    def finish(self):
        """Waits for the last check."""
        if self._check is None:
            return
        check, self._check = self._check, None
        counts, violations, trouble = check.finish()
        if trouble:
            check.round.problems.append(trouble)
        self._done(check.round, counts, violations, check)

    def _done(self, round_, counts, violations, check):
        result = summary.Result(round_, counts, violations)
        self.results.append(result)
        self._say(result.line())
        for line in result.violations[:20]:
            self._say("  VIOLATION " + line)
        if result.violations or result.is_suspect():
            kept = os.path.join(self._keep_in, os.path.basename(round_.folder))
            shutil.rmtree(kept, ignore_errors=True)
            shutil.move(round_.folder, kept)
            self._say(f"  kept in {kept}")
        elif check is not None:
            check.forget()


class Progress:
    """Says what has been done, and when."""

    def __init__(self):
        self._begun = time.monotonic()

    def minutes(self):
        return (time.monotonic() - self._begun) / 60

    def __call__(self, text):
        minutes, seconds = divmod(int(time.monotonic() - self._begun), 60)
        print(f"[{minutes:2}:{seconds:02}] {text}", flush=True)


def choose(deployment, names, quick, say):
    """The classes to play, without those that can't be done here."""
    chosen = []
    for fault_class in (CLASSES[name] for name in names):
        lacking = fault_class.lacks(deployment)
        if lacking:
            say(f"{fault_class.name} is left out: {lacking}")
        else:
            chosen.append(dataclasses.replace(fault_class, injections=1)
                          if quick else fault_class)
    return chosen


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
        self.rounds.extend(failover.run(
            self._arguments.build_dir, self._folder,
            len(failover.KINDS), list(failover.KINDS),
            self._arguments.seed + len(self.rounds), self._say))
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


def play_classes(runner, classes, failovers, arguments, progress):
    """All of them in random order, again and again while there is time, with
    the failovers behind them each time."""
    order = random.Random(arguments.seed)
    while True:
        for fault_class in order.sample(classes, len(classes)):
            runner.play(fault_class)
            if (arguments.minutes is not None
                    and progress.minutes() >= arguments.minutes):
                return
        if failovers is not None:
            runner.finish()
            failovers.play()
        if arguments.minutes is None:
            return


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build_dir", required=True)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--classes", default="")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--mutants", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--previous")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    unknown = set(filter(None, arguments.classes.split(","))) - set(CLASSES)
    if unknown:
        parser.error("there is no class " + ", ".join(sorted(unknown)))
    if arguments.seed is None:
        arguments.seed = random.SystemRandom().randrange(1 << 31)
    return arguments


def run_faults(arguments, failovers, folder, progress):
    names = list(filter(None, arguments.classes.split(","))) or list(
        _QUICK if arguments.quick else CLASSES)
    kept = os.path.join(folder, "violations")
    os.makedirs(kept, exist_ok=True)
    with contextlib.ExitStack() as stack:
        deployment = Deployment(
            Programs.of(arguments.build_dir, arguments.previous), folder)
        stack.callback(deployment.close)
        classes = choose(deployment, names, arguments.quick, progress)
        progress(f"seed {arguments.seed}, {len(classes)} classes")
        runner = Runner(deployment, folder, arguments.seed, progress, kept)
        try:
            play_classes(runner, classes, failovers, arguments, progress)
        except KeyboardInterrupt:
            progress("interrupted; the last round does not count")
        runner.finish()
    return runner.results


def run(arguments, folder, progress):
    failovers = None
    if not arguments.quick and not arguments.classes:
        failovers = Failovers(arguments, folder, progress)
    results = run_faults(arguments, failovers, folder, progress)
    minutes = progress.minutes()
    ok = summary.publish(results, folder)
    if arguments.quick:
        ok &= mutants.run_one(arguments, folder, progress, _QUICK_MUTANT)
        return 0 if ok else 1
    if failovers is not None:
        ok &= failovers.publish()
        failovers.write_down()
        minutes -= failovers.minutes
    ledger.append("faults", minutes, seed=arguments.seed,
                  **summary.ledger_counts(results))
    return 0 if ok else 1


def main():
    arguments = parse_arguments()
    if arguments.list:
        for fault_class in CLASSES.values():
            print(f"{fault_class.name:32} {fault_class.text}")
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
