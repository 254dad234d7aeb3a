#!/usr/bin/env python3
"""Failover under load: a primary and its synchronous standby, two servers and
their callers, again and again.

usage: failover.py --build=FOLDER [--rounds=N] [--kinds=NAME,...] [--seed=N]
                   [--out=FOLDER]

Every round the primary goes in one of the ways of failover_kinds.py and the
standby is promoted, under load; then the former primary becomes the standby.
No acknowledged call may be lost, and calls must succeed again within 30
seconds. Rounds with asynchronous replication measure what is lost.

Ends with status 0 if nothing was violated, 1 if something was (the round's
files are kept), 2 if the run could not go on.
"""

import argparse
import collections
import dataclasses
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

import failover_check
import failover_kinds
from failover_kinds import KINDS, LOSING, Pair, now
from histories import Notes, Traffic
from postgres import PostgresNode, end_on_sigterm, wait_until
import programs
from ports import free_port
from programs import ProgramError
from servers import Gate

_HERE = os.path.dirname(os.path.abspath(__file__))
_DATABASE = "fault"
_ROLE = "coordinator"
_SECOND = 1_000_000_000
_CALLERS = 2
_THREADS = 6
# A round counts only with that much traffic before its fault.
_RATE_MIN = 100
# Calls succeed again at half the rate of before within this, in seconds.
_RECOVERY_MAX = 30
_BEFORE = 2
_AFTER = 2


@dataclasses.dataclass
class Round:
    """What came of one failover."""
    kind: str
    seed: int
    acknowledged: dict = dataclasses.field(default_factory=dict)
    lost: dict = dataclasses.field(default_factory=dict)
    violations: list = dataclasses.field(default_factory=list)
    operations: int = 0
    promoting: float = 0  # seconds that the promotion took
    recovering: float = 0  # seconds from the promotion to success at half rate
    seconds: float = 0
    details: str = ""


class Replica:
    """A server with the addresses of both nodes, in the order given."""

    def __init__(self, program, ports, log, *flags):
        self.address = f"127.0.0.1:{free_port()}"
        self._admin = f"127.0.0.1:{free_port()}"
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        self._process = programs.start(
            [program, "--listen=" + self.address,
             "--admin_listen=" + self._admin,
             f"--database=postgresql://{_ROLE}@{hosts}/{_DATABASE}"
             "?sslmode=disable&connect_timeout=3", "--migrate",
             "--drain_delay=0s", "--reaper_pause=500ms", *flags], log)

    def wait_until_serving(self):
        def serves():
            self.check()
            try:
                with urllib.request.urlopen(f"http://{self._admin}/metrics",
                                            timeout=5) as page:
                    return b"\nidempotency_serving 1" in page.read()
            except OSError:
                return False
        wait_until(f"the server at {self.address} serves", serves)

    def check(self):
        if self._process.poll() is not None:
            raise ProgramError(f"the server at {self.address} ended with "
                               f"{self._process.returncode}")

    def close(self):
        programs.stop(self._process, signal.SIGKILL)


class Bench:
    """Everything that a run keeps from one round to the next."""

    def __init__(self, build, out):
        self.out = out
        self._build = build
        os.makedirs(out, exist_ok=True)
        self._log = open(os.path.join(out, "programs.log"), "ab")
        self._nodes = [
            PostgresNode(name, os.path.join(out, name + ".log"),
                         max_wal_size="256MB", wal_keep_size="128MB")
            for name in ("node1", "node2")]
        self.pair = Pair(self._nodes, self._gate_to)
        self._replicas = []
        self._number = 0
        self.checker = self._program("checker", "fault-checker")

    def _program(self, *path):
        return os.path.join(self._build, "tests", "fault", *path)

    def _gate_to(self, port):
        return Gate(self._program("gate", "fault-gate"), port, self._log)

    def start(self):
        self.pair.make()
        primary = self.pair.primary
        primary.sql(f"CREATE ROLE {_ROLE} LOGIN")
        primary.sql(f"CREATE DATABASE {_DATABASE} OWNER {_ROLE}")
        ports = [node.port for node in self._nodes]
        server = os.path.join(self._build, "server", "idempotency-server")
        for order, flags in ((ports, ()), (ports[::-1], ("--lanes=2",))):
            self._replicas.append(Replica(server, order, self._log, *flags))
            self._replicas[-1].wait_until_serving()
        with open(os.path.join(_HERE, "transitions.sql"),
                  encoding="utf-8") as file:
            primary.sql(file.read(), _DATABASE)

    def close(self):
        for replica in self._replicas:
            replica.close()
        for node in self._nodes:
            node.close()
        self._log.close()

    def play(self, kind, seed):
        self._number += 1
        name = f"{self._number:04d}-{kind}"
        folder = os.path.join(self.out, name)
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        done = Play(self, kind, seed, f"failover/{name}", folder).run()
        if not done.violations:
            shutil.rmtree(folder)
        return done

    def start_caller(self, scope, folder, number, seed):
        """The process, and the path of its history."""
        history = os.path.join(folder, f"c{number}.history")
        command = [
            self._program("caller", "fault-caller"),
            "--servers=" + ",".join(r.address for r in self._replicas),
            "--scope=" + scope, "--history=" + history,
            "--wallet=" + os.path.join(folder, f"w{number}.history"),
            f"--name=c{number}", f"--threads={_THREADS}", f"--seed={seed}"]
        return programs.start(command, self._log), history

    def check_alive(self):
        for replica in self._replicas:
            replica.check()

    def dump(self, scope, folder):
        """The paths of the scope's changes and records, as fault-checker
        reads them."""
        paths = []
        for name, query in (
                ("transitions", "SELECT * FROM fault_transitions ORDER BY seq"),
                ("dump", "SELECT * FROM idempotency_records WHERE scope = "
                 f"'{scope}' OR starts_with(scope, '{scope}/') "
                 "ORDER BY scope, key")):
            paths.append(os.path.join(folder, name + ".tsv"))
            with open(paths[-1], "w", encoding="utf-8") as file:
                text = self.pair.primary.sql(f"COPY ({query}) TO STDOUT",
                                             _DATABASE)
                file.write(text + "\n" if text else "")
        return paths

    def empty(self):
        self.pair.primary.sql(
            "SET lock_timeout = '10s'; TRUNCATE idempotency_records, "
            "idempotency_conflicts, fault_transitions", _DATABASE)


class Play:
    """One round."""

    def __init__(self, bench, kind, seed, scope, folder):
        self._bench = bench
        self._random = random.Random(seed)
        self._scope = scope
        self._folder = folder
        self._done = Round(kind, seed)
        self._callers = []
        self._traffic = Traffic()
        self._notes = Notes(os.path.join(folder, "notes.history"))

    def run(self):
        begun = time.monotonic()
        histories = []
        for number in range(1, _CALLERS + 1):
            process, history = self._bench.start_caller(
                self._scope, self._folder, number,
                self._random.randrange(1 << 31))
            self._callers.append(process)
            self._traffic.add(history)
            histories.append(history)
        try:
            self._fail_over()
        finally:
            for process in self._callers:
                process.terminate()
            for process in self._callers:
                if programs.stop(process) != 0:
                    self._done.violations.append("a caller failed")
            self._notes.close()
            self._traffic.close()
        self._check(histories)
        self._bench.empty()
        self._done.seconds = time.monotonic() - begun
        return self._done

    def _fail_over(self):
        pair = self._bench.pair
        rate = self._wait_for_traffic()
        self._notes.clock()
        self._notes.note(fault="failover_" + self._done.kind, phase="begin")
        pair.details = ""
        KINDS[self._done.kind](pair, self._random)
        self._done.details = pair.details
        self._done.promoting = (pair.promoted - pair.began) / _SECOND
        self._wait_for_recovery(pair.promoted, rate / 2)
        self._notes.note(fault="failover_" + self._done.kind, phase="end")
        end = time.monotonic() + _AFTER
        pair.rebuild(self._random)
        self._bench.check_alive()
        time.sleep(max(0.0, end - time.monotonic()))
        self._notes.clock()

    def _wait_for_traffic(self):
        """Returns the rate of answers of use in the second before."""
        def rate():
            self._traffic.read()
            found = self._traffic.good_per_second(now() - _SECOND, now())
            return found if found >= _RATE_MIN else None
        wait_until("there is traffic", rate)
        time.sleep(_BEFORE)
        return wait_until("there is traffic", rate)

    def _wait_for_recovery(self, since, rate):
        def recovered():
            self._traffic.read()
            return self._traffic.recovered_at(since, rate)
        try:
            at = wait_until("calls succeed", recovered, 2 * _RECOVERY_MAX)
        except ProgramError:
            self._done.violations.append("calls do not succeed again")
            return
        self._done.recovering = (at - since) / _SECOND
        if self._done.recovering > _RECOVERY_MAX:
            self._done.violations.append(
                f"calls succeeded {self._done.recovering:.1f} s after the "
                "promotion")

    def _check(self, paths):
        done = self._done
        primary = self._bench.pair.primary
        histories = failover_check.Histories(paths)
        done.operations = histories.operations
        done.acknowledged = {kind: histories.count(kind) for kind in
                             ("finalize", "claim", "release")}
        lost = failover_check.find_lost(histories, *failover_check.read_records(
            primary, _DATABASE, self._scope))
        done.lost = {kind: len(lines) for kind, lines in lost.items()}
        if done.kind in LOSING:
            return
        for lines in lost.values():
            done.violations += lines
        dump = self._bench.dump(self._scope, self._folder)
        done.violations += self._check_histories(paths, dump)

    def _check_histories(self, paths, dump):
        """What fault-checker finds."""
        others = [os.path.join(self._folder, name)
                  for name in sorted(os.listdir(self._folder))
                  if name.endswith(".history")]
        checked = subprocess.run(
            [self._bench.checker, "--transitions=" + dump[0],
             "--dump=" + dump[1], *others],
            capture_output=True, text=True, timeout=300, check=False)
        if checked.returncode == 0:
            return []
        return [line for line in checked.stdout.splitlines()
                if not line.startswith("checked")] or [
                    f"fault-checker ended with {checked.returncode}: "
                    + checked.stderr.strip()]


def _describe(number, count, done):
    text = (f"failover {number} of {count}: {done.kind}, {done.seconds:.0f} s, "
            f"promoted in {done.promoting:.2f} s, recovered after "
            f"{done.recovering:.1f} s; acknowledged "
            + ", ".join(f"{n} {kind}s" for kind, n in done.acknowledged.items())
            + "; lost " + (", ".join(f"{n} {kind}s" for kind, n in
                                     done.lost.items()) or "none"))
    if done.details:
        text += f" ({done.details})"
    return text + "".join("\n  " + line for line in done.violations[:20])


def summarize(rounds):
    """Lines for people: rounds, losses and times by kind."""
    by_kind = collections.defaultdict(list)
    for done in rounds:
        by_kind[done.kind].append(done)
    lines = []
    for kind, some in by_kind.items():
        recovered = sorted(done.recovering for done in some)
        lost = sum(sum(done.lost.values()) for done in some)
        lines.append(
            f"{kind}: {len(some)} rounds, "
            f"{sum(sum(done.acknowledged.values()) for done in some)} "
            f"acknowledged, {lost} lost, recovered after "
            f"{recovered[len(recovered) // 2]:.1f} s (median), "
            f"{recovered[-1]:.1f} s (longest), "
            f"{sum(len(done.violations) for done in some)} violations")
    return lines


def run(build, out, count, kinds, seed, say=print):
    """Plays `count` rounds, kind after kind; returns them."""
    bench = Bench(build, out)
    rounds = []
    try:
        bench.start()
        for number in range(1, count + 1):
            kind = kinds[(number - 1) % len(kinds)]
            rounds.append(bench.play(kind, seed + number))
            say(_describe(number, count, rounds[-1]))
    finally:
        bench.close()
    return rounds


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("--rounds", type=int, default=len(KINDS))
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--seed", type=int,
                        default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--out")
    flags = parser.parse_args()
    kinds = flags.kinds.split(",")
    for kind in kinds:
        if kind not in KINDS:
            parser.error(f"there is no kind {kind}; there are "
                         + ", ".join(KINDS))
    end_on_sigterm()
    print(f"seed {flags.seed}", flush=True)
    try:
        rounds = run(flags.build, flags.out or os.path.join(
            flags.build, "fault", "failover"), flags.rounds, kinds, flags.seed,
            lambda text: print(text, flush=True))
    except ProgramError as error:
        print(f"the run ended early: {error}", file=sys.stderr)
        return 2
    print("\n".join(summarize(rounds)))
    return 1 if any(done.violations for done in rounds) else 0


if __name__ == "__main__":
    sys.exit(main())
