"""One round: traffic, faults of one class, traffic, and what the checker says
of all of it."""

import contextlib
import dataclasses
import os
import random
import re
import shutil
import signal
import subprocess
import time
import traceback

import database
import programs
from crew import Crew
from histories import Notes, now
from programs import ProgramDied, ProgramError

_SECOND = 1_000_000_000
_CALLERS = 3
# Ten threads share a key at most.
_CALLER_FLAGS = ("--threads=9", "--threads_per_key=3", "--calls_per_key=90",
                 "--rate=400")
_BEFORE_SECONDS = 2
_AFTER_SECONDS = 2
# After the last fault of a round longer, since from the end of recovery on
# nearly all calls have to be decided, and keys must not stay stuck.
_LAST_AFTER_SECONDS = 4
_SETTLE_SECONDS = 1
_WARM_UP_SECONDS = 20
_RECOVERY_SECONDS = 30
_RATE_MIN = 100
# Recovered: half of what was done before is done again.
_RECOVERED_SHARE = 0.5
# So many of the keys that callers leave unfinished are asked for at the end,
# and half of that is enough.
_LEFT_KEYS_MAX = 200
LEFT_MIN_FLAG = f"--left_min={_LEFT_KEYS_MAX // 2}"
_CHECK_SECONDS = 90
# Machines that run this are busy, and callers set some deadlines so short that
# they must pass.
_CHECKER_FLAGS = (f"--budget={_CHECK_SECONDS}s", "--late=2s",
                  "--decided=0.95", "--after_min=20")
# Of a line of the checker that says what was violated.
INVARIANT = re.compile(r"([SL]\d+|ORDER|DEFECT)\b")


@dataclasses.dataclass
class Injection:
    """One fault: its time, and the calls before, during and after it."""

    begin: int
    end: int = 0
    rate_before: float = 0
    during: int = 0
    after: int = 0
    recovered_ms: float | None = None

    def is_outage(self):
        """It worked before, and did not again: a violation of its own (L4)."""
        return (self.end > 0 and self.rate_before >= _RATE_MIN
                and self.recovered_ms is None)

    def why_not_counted(self):
        if self.rate_before < _RATE_MIN:
            return f"only {self.rate_before:.0f} calls/s before the fault"
        if self.during == 0:
            return "no call overlapped the fault"
        if self.recovered_ms is None:
            return f"no recovery within {_RECOVERY_SECONDS} s"
        if self.after == 0:
            return "no call succeeded after the fault"
        return None


def ask_for_left_keys(crew, notes, node, scope, folder, addresses):
    """What the callers, which have been stopped, have left unfinished has to be
    had now: the checker says whether it was (L1, L2). Returns why it could not
    be asked for."""
    notes.clock()
    path = os.path.join(folder, "left_keys.tsv")
    database.write_left_keys(node, scope, path, _LEFT_KEYS_MAX)
    notes.note(phase="closing")
    return crew.ask_for(path, addresses)


@contextlib.contextmanager
def noting(round_, what):
    """Goes on behind an error, which is a problem of the round, and a violation
    unless it is known to happen."""
    try:
        yield
    except Exception as error:
        if isinstance(error, ProgramDied):
            round_.violations.append(f"L2: {error}")
        elif not isinstance(error, (ProgramError, OSError,
                                    subprocess.SubprocessError)):
            traceback.print_exc()
            round_.violations.append(f"DEFECT: the harness raised {error!r}")
        round_.problems.append(f"{what}: {error}")


class Round:
    """What a fault class is given: servers, callers, the database, and its own
    random numbers. hold() and the like go on reading what callers write."""

    def __init__(self, number, fault_class, deployment, seed, folder):
        self.number = number
        self.fault_class = fault_class
        self.deployment = deployment
        self.database = deployment.database
        self.servers = deployment.servers
        self.random = random.Random(f"{seed}/{number}/{fault_class.name}")
        self.scope = f"fault/r{number:06}"
        self.folder = folder
        self.injections = []
        self.problems = []  # why the round as a whole does not count
        self.violations = []  # those that the checker cannot see
        self._crew = Crew(deployment.programs, self.scope, folder,
                          deployment.database.node.folder, deployment.log)
        self._checker_flags = _CHECKER_FLAGS
        self._notes = None
        # An earlier run that was killed may have left one.
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)

    @property
    def began(self):
        """Whether there is anything to check."""
        return self._notes is not None and self.wallet is not None

    @property
    def traffic(self):
        return self._crew.traffic

    # For fault classes.

    @property
    def callers(self):
        return self._crew.callers

    @property
    def wallet(self):
        return self._crew.wallet

    def one_server(self):
        return self.random.choice(self.servers)

    def one_caller(self):
        return self.random.choice(self.callers)

    def hold(self, low, high):
        """Waits so many seconds."""
        end = time.monotonic() + self.random.uniform(low, high)
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))
            self.traffic.read()
            # The more often it is read, the less time a step of it blurs.
            self._notes.clock()

    def expect_soon(self, condition, what, seconds=5):
        """expect() of what may need a moment more."""
        end = time.monotonic() + seconds
        while not (holds := condition()) and time.monotonic() < end:
            self.hold(0.1, 0.1)
        self.expect(holds, what)

    def kill(self, caller):
        """SIGKILL of one of the callers, which is one no more."""
        self._crew.kill(caller)

    def start(self, *servers):
        for server in servers:
            server.start()
        for server in servers:
            server.wait_until_listening()

    def rival(self, script):
        """Waits for a session that runs these statements; returns whether it
        did all of them."""
        session = self.database.rival(script)
        end = time.monotonic() + _RECOVERY_SECONDS
        while session.poll() is None and time.monotonic() < end:
            self.hold(0.05, 0.05)
        return session.poll() == 0

    def expect(self, truth, what):
        """Part of the fault that must have worked for it to be one."""
        if not truth:
            self.problems.append("not so: " + what)

    @contextlib.contextmanager
    def noted(self, callers):
        """What these callers do late meanwhile proves nothing."""
        names = [caller.name for caller in callers]
        for name in names:
            self._notes.note(fault=self.fault_class.name, phase="begin",
                             caller=name)
        yield
        for name in names:
            self._notes.note(fault=self.fault_class.name, phase="end",
                             caller=name)

    def add_caller(self):
        self._crew.add(self.random.sample(self._addresses(),
                                          len(self.servers)),
                       self.random, *_CALLER_FLAGS,
                       "--mix=" + self.fault_class.mix)

    def _addresses(self):
        return [server.address for server in self.servers]

    # The round itself.

    def play(self):
        """Everything but the check. A ProgramError says why it broke off, a
        ProgramDied if that is a violation; the callers are stopped in any
        case."""
        self._notes = Notes(os.path.join(self.folder, "harness.history"))
        self._notes.clock()
        try:
            self._crew.start_wallet()
            for _ in range(_CALLERS):
                self.add_caller()
            self._warm_up()
            for left in reversed(range(self.fault_class.injections)):
                self._inject(_AFTER_SECONDS if left else _LAST_AFTER_SECONDS)
                if self.injections[-1].recovered_ms is None:
                    break
            self._require_all_running()
            self._stop_callers()
            if self.injections[-1].recovered_ms is not None:
                self._ask_for_left_keys()
        finally:
            self._stop_callers()
            self._crew.close()
            self._notes.clock()
            self._notes.close()
        for server in self.servers:
            server.require_running()

    def _require_all_running(self):
        """A class has started again what it has ended."""
        for program in (*self.servers, *self.callers, self.wallet):
            program.require_running()

    def _warm_up(self):
        """Until calls have been answered for long enough, often enough."""
        window = _BEFORE_SECONDS * _SECOND
        end = time.monotonic() + _WARM_UP_SECONDS
        self.hold(_BEFORE_SECONDS, _BEFORE_SECONDS)
        while time.monotonic() < end:
            self.hold(0.1, 0.1)
            if self.traffic.good_per_second(now() - window, now()) > _RATE_MIN:
                return

    def _inject(self, seconds_after):
        self._require_all_running()
        begin = self._notes.note(fault=self.fault_class.name, phase="begin")
        self._notes.clock()
        injection = Injection(begin)
        self.injections.append(injection)
        self.fault_class.inject(self)
        injection.end = self._notes.note(fault=self.fault_class.name,
                                         phase="end")
        self._wait_for_recovery(injection)
        self.hold(seconds_after, seconds_after)
        injection.during = self.traffic.overlapping(begin, injection.end)
        injection.after = self.traffic.good_between(injection.end, now())

    def _wait_for_recovery(self, injection):
        self.traffic.read()
        injection.rate_before = self.traffic.good_per_second(
            injection.begin - _BEFORE_SECONDS * _SECOND, injection.begin)
        end = injection.end + _RECOVERY_SECONDS * _SECOND
        while now() < end:
            recovered = self.traffic.recovered_at(
                injection.end, injection.rate_before * _RECOVERED_SHARE)
            if recovered is not None:
                injection.recovered_ms = (recovered - injection.end) / 1e6
                return
            self.hold(0.05, 0.05)

    def _ask_for_left_keys(self):
        self._checker_flags += (LEFT_MIN_FLAG,)
        self.problems += ask_for_left_keys(
            self._crew, self._notes, self.database.node, self.scope,
            self.folder, self._addresses())

    def _stop_callers(self):
        self.violations += ["L2: " + text for text in self._crew.stop()]

    def start_check(self):
        """Dumps what is left and starts the checker; finish_check() waits."""
        paths = self.database.dump(self.scope, self.folder)
        histories = [path for path in
                     [*self._crew.histories, self.wallet.history,
                      self._notes.path]
                     if os.path.exists(path)]
        recovered_ms = max((injection.recovered_ms or 0
                            for injection in self.injections), default=0)
        settle = _SETTLE_SECONDS + recovered_ms / 1000
        return Check(self, [self.deployment.programs.checker,
                            f"--settle={settle:.2f}s", *self._checker_flags,
                            *(f"--{name}={path}" for name, path
                              in paths.items()), *histories])


def _again(command, folder):
    """A script that does it wherever the folder is by then."""
    words = [word.replace(folder + os.sep, "") for word in command]
    words[0] = os.path.abspath(words[0])
    return ('#!/bin/sh\ncd "$(dirname "$0")" &&\n  exec '
            + " \\\n    ".join(words) + "\n")


def _trouble(status, counts, violations, lines):
    """Why a checker that ended so is no check, or None."""
    if status is None:
        return "the checker did not end"
    if status not in (0, 1) or not counts:
        return f"the checker ended with {status}: " + " ".join(lines[-2:])
    if (status == 1) != bool(violations):
        return "the checker contradicts itself"
    return None


class Check:
    """fault-checker at work on a round, beside the next one."""

    def __init__(self, round_, command):
        self.round = round_
        self._begun = time.monotonic()
        self._output = os.path.join(round_.folder, "checker.log")
        with open(os.path.join(round_.folder, "check.sh"), "w",
                  encoding="utf-8") as file:
            file.write(_again(command, round_.folder))
        with open(self._output, "w", encoding="utf-8") as log:
            self._process = programs.start(["nice", "-n", "5", *command], log)

    def finish(self):
        """Waits for it; returns (counts, lines that say violations, why it is
        no check). There are counts of a whole check only."""
        left = self._begun + 2 * _CHECK_SECONDS - time.monotonic()
        try:
            status = self._process.wait(max(left, 0.01))
        except subprocess.TimeoutExpired:
            programs.stop(self._process, signal.SIGKILL)
            status = None
        with open(self._output, encoding="utf-8") as file:
            lines = file.read().splitlines()
        counts = {}
        for line in lines:
            if line.startswith("checked "):
                counts = {name: int(value) for name, _, value in
                          (word.partition("=") for word in line.split()[1:])
                          if value.isdigit()}
        violations = [line for line in lines if INVARIANT.match(line)]
        trouble = _trouble(status, counts, violations, lines)
        return {} if trouble else counts, violations, trouble

    def forget(self):
        """The files of a round without violations are of no further use."""
        shutil.rmtree(self.round.folder, ignore_errors=True)
