#!/usr/bin/env python3
"""Failover under load: a primary and its synchronous standby, two servers and
their callers, again and again.

usage: failover.py --build_dir=FOLDER [--rounds=N] [--kinds=NAME,...]
                   [--seed=N]

Every round the primary goes in one of the ways of failover_kinds.py and the
standby is promoted, under load; then the former primary becomes the standby.
No acknowledged call may be lost, and calls must succeed again within 30
seconds. Rounds with asynchronous replication measure what is lost. Appends a
row to ledger.tsv.

Ends with status 0 if nothing was violated, 1 if something was (the round's
files are kept in FOLDER/fault/failover), 2 if the run could not go on.
"""

import argparse
import collections
import dataclasses
import os
import random
import shutil
import signal
import sys
import time
import urllib.request

_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(_HERE, "..", "support"))
import database
import failover_check
import ledger
import programs
from deployment import Programs, Wallet
from failover_kinds import KINDS, LOSING, Pair
from histories import Notes, Traffic, now
from ports import free_port
from postgres import PostgresNode, end_on_sigterm, wait_until
from programs import ProgramError
from rounds import Caller, Check
from servers import Gate

_SECOND = 1_000_000_000
_CALLERS = 2
_CALLER_FLAGS = ("--threads=12", "--threads_per_key=3", "--calls_per_key=90",
                 "--rate=300")
# A round counts only with that much traffic before its fault.
_RATE_MIN = 100
# Calls succeed again at half the rate of before within this, in seconds.
_RECOVERY_MAX = 30
# Fault runs look closer at how late calls end, and how many are decided.
_CHECK_FLAGS = ("--late=2s", "--settle=1s", "--decided=0.9")
_BEFORE = 2
_AFTER = 3


@dataclasses.dataclass
class Round:
    """What came of one failover."""
    kind: str
    seed: int
    acknowledged: dict = dataclasses.field(default_factory=dict)
    lost: dict = dataclasses.field(default_factory=dict)
    phantoms: int = 0  # changes that were shown and are gone
    phantom_reads: int = 0  # answers that only they explain
    violations: list = dataclasses.field(default_factory=list)
    operations: int = 0
    counts: dict = dataclasses.field(default_factory=dict)  # fault-checker's
    promoting: float = 0  # seconds that the promotion took
    recovering: float = 0  # seconds from the promotion to success at half rate
    seconds: float = 0
    lag: float | None = None  # of an asynchronous standby, in seconds
    details: str = ""

    @property
    def name(self):
        return self.kind if self.lag is None else f"{self.kind} {self.lag} s"


class Replica:
    """A server with the addresses of both nodes, in the order given."""

    def __init__(self, program, ports, log, *flags):
        self.address = f"127.0.0.1:{free_port()}"
        self._admin = f"127.0.0.1:{free_port()}"
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        self._process = programs.start(
            [program, "--listen=" + self.address,
             "--admin_listen=" + self._admin,
             f"--database=postgresql://{database.ROLE}@{hosts}/{database.NAME}"
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

    def __init__(self, build, out, server=None):
        self.programs = Programs.of(build)
        self._server = server or self.programs.server
        self.out = out
        os.makedirs(out, exist_ok=True)
        self.log = open(os.path.join(out, "programs.log"), "ab")
        self._nodes = [
            # Processes die here and no machine does: what was written is read
            # again, synced or not.
            PostgresNode(name, os.path.join(out, name + ".log"), fsync="off",
                         max_wal_size="256MB", wal_keep_size="128MB")
            for name in ("node1", "node2")]
        self.pair = Pair(self._nodes, self._gate_to)
        self._replicas = []
        self._number = 0

    def _gate_to(self, port):
        return Gate(self.programs.gate, port, self.log)

    def start(self):
        self.pair.make()
        primary = self.pair.primary
        primary.sql(f"CREATE ROLE {database.ROLE} LOGIN")
        primary.sql(f"CREATE DATABASE {database.NAME} OWNER {database.ROLE}")
        ports = [node.port for node in self._nodes]
        for order, flags in ((ports, ()), (ports[::-1], ("--lanes=2",))):
            self._replicas.append(
                Replica(self._server, order, self.log, *flags))
            self._replicas[-1].wait_until_serving()
        for name in ("policies.sql", "transitions.sql"):
            database.apply(primary, os.path.join(_HERE, name))

    def close(self):
        for replica in self._replicas:
            replica.close()
        for node in self._nodes:
            node.close()
        self.log.close()

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

    def start_wallet(self, folder):
        return Wallet(self.programs.wallet,
                      os.path.join(folder, "wallet.history"),
                      os.path.join(self._nodes[0].folder, "wallet"), self.log)

    def start_caller(self, scope, folder, number, wallet, seed):
        name = f"c{number}"
        history = os.path.join(folder, name + ".history")
        return Caller(name, [
            self.programs.caller,
            "--servers=" + ",".join(r.address for r in self._replicas),
            "--scope=" + scope, "--history=" + history,
            "--wallet=" + wallet.socket, "--name=" + name, *_CALLER_FLAGS,
            f"--seed={seed}"], history, self.log)

    def check_alive(self):
        for replica in self._replicas:
            replica.check()

    def empty(self):
        self.pair.primary.sql(
            "SET lock_timeout = '10s'; TRUNCATE idempotency_records, "
            "idempotency_conflicts, fault_transitions", database.NAME)


class Play:
    """One round."""

    def __init__(self, bench, kind, seed, scope, folder):
        self._bench = bench
        self._random = random.Random(seed)
        self._scope = scope
        self.folder = folder
        self._done = Round(kind, seed)
        self._callers = []
        self._wallet = None
        self._traffic = Traffic()
        self._shown = set()
        self._recovered = None
        self._notes = Notes(os.path.join(folder, "harness.history"))

    def run(self):
        begun = time.monotonic()
        self._notes.clock()
        try:
            self._wallet = self._bench.start_wallet(self.folder)
            for number in range(1, _CALLERS + 1):
                self._callers.append(self._bench.start_caller(
                    self._scope, self.folder, number, self._wallet,
                    self._random.randrange(1 << 31)))
                self._traffic.add(self._callers[-1].history)
            self._fail_over()
        finally:
            self._stop_callers()
        self._check()
        self._bench.empty()
        self._done.seconds = time.monotonic() - begun
        return self._done

    def _stop_callers(self):
        for caller in self._callers:
            caller.ask_to_stop()
        for caller in self._callers:
            status = caller.wait()
            if status != 0:
                self._done.violations.append(
                    f"caller {caller.name} ended with {status}")
        if self._wallet is not None:
            self._wallet.stop()
        self._notes.clock()
        self._notes.close()
        self._traffic.close()

    def _fail_over(self):
        pair = self._bench.pair
        rate = self._wait_for_traffic()
        self._notes.clock()
        self._notes.note(fault="failover_" + self._done.kind, phase="begin")
        pair.details, pair.lag = "", None
        pair.before_end = self._keep_what_is_shown
        KINDS[self._done.kind](pair, self._random)
        self._done.details, self._done.lag = pair.details, pair.lag
        self._done.promoting = (pair.promoted - pair.began) / _SECOND
        self._wait_for_recovery(pair.promoted, rate / 2)
        pair.rebuild(self._random)
        self._notes.note(fault="failover_" + self._done.kind, phase="end")
        self._bench.check_alive()
        time.sleep(_AFTER)

    def _keep_what_is_shown(self, primary):
        self._shown = failover_check.read_changes(primary, database.NAME,
                                                  self._scope)

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
        self._recovered = at
        self._done.recovering = (at - since) / _SECOND
        if self._done.recovering > _RECOVERY_MAX:
            self._done.violations.append(
                f"calls succeeded {self._done.recovering:.1f} s after the "
                "promotion")

    def _check(self):
        done = self._done
        primary = self._bench.pair.primary
        histories = failover_check.Histories(
            [caller.history for caller in self._callers])
        done.operations = len(histories.calls)
        done.acknowledged = {kind: histories.count(kind) for kind in
                             ("finalize", "claim", "release")}
        lost = failover_check.find_lost(histories, failover_check.Survivors(
            primary, database.NAME, self._scope))
        done.lost = {kind: len(lines) for kind, lines in lost.items()}
        if done.kind in LOSING:
            return
        for lines in lost.values():
            done.violations += lines
        phantoms = failover_check.Phantoms(
            self._shown, failover_check.read_changes(
                primary, database.NAME, self._scope),
            self._recovered or now())
        done.phantoms = phantoms.count
        for line in self._check_histories():
            if phantoms.explain(line, histories):
                done.phantom_reads += 1
            else:
                done.violations.append(line)

    def _check_histories(self):
        """What fault-checker finds."""
        paths = database.dump(self._bench.pair.primary, self._scope,
                              self.folder)
        self._done.counts, violations, why = Check(self, [
            self._bench.programs.checker, *_CHECK_FLAGS,
            *(f"--{name}={path}" for name, path in paths.items()),
            *(os.path.join(self.folder, name)
              for name in sorted(os.listdir(self.folder))
              if name.endswith(".history"))]).finish()
        return violations + [why] * (why is not None)


def _describe(number, count, done):
    text = (f"failover {number} of {count}: {done.name}, {done.seconds:.0f} s, "
            f"promoted in {done.promoting:.2f} s, recovered after "
            f"{done.recovering:.1f} s; acknowledged "
            + ", ".join(f"{n} {kind}s" for kind, n in done.acknowledged.items())
            + "; lost " + (", ".join(f"{n} {kind}s" for kind, n in
                                     done.lost.items()) or "none"))
    if done.phantoms:
        text += (f"; {done.phantoms} changes shown that are gone, "
                 f"{done.phantom_reads} answers from them")
    if done.details:
        text += f" ({done.details})"
    return text + "".join("\n  " + line for line in done.violations[:20])


def summarize(rounds):
    """Lines for people: rounds, losses and times by kind."""
    by_name = collections.defaultdict(list)
    for done in rounds:
        by_name[done.name].append(done)
    return [f"failover {name}: " + _sums(some)
            for name, some in sorted(by_name.items())]


def _sums(some):
    recovering = sorted(done.recovering for done in some)
    parts = [f"{len(some)} rounds"]
    for kind in ("finalize", "claim", "release"):
        lost = [done.lost.get(kind, 0) for done in some]
        parts.append(
            f"{sum(done.acknowledged[kind] for done in some)} {kind}s "
            f"acknowledged, {sum(lost)} lost"
            + (f" ({max(lost)} at most in a round)" if any(lost) else ""))
    parts.append(f"recovered after {recovering[len(recovering) // 2]:.1f} s "
                 f"(median), {recovering[-1]:.1f} s (longest)")
    if shown := sum(done.phantoms for done in some):
        parts.append(f"{shown} changes shown that are gone, "
                     f"{sum(done.phantom_reads for done in some)} answers "
                     "from them")
    parts.append(f"{sum(len(done.violations) for done in some)} violations")
    return "; ".join(parts)


def write_down(rounds, minutes, seed):
    """The row of the ledger."""
    ledger.append(
        "failover", minutes, {"failover_" + done.kind for done in rounds},
        seed, faults=len(rounds),
        operations=sum(done.operations for done in rounds),
        **{name: sum(done.counts.get(name, 0) for done in rounds)
           for name in ("keys", "effects", "unknown")},
        failovers=sum(done.kind not in LOSING for done in rounds),
        violations=sum(len(done.violations) for done in rounds))


def run(build, out, count, kinds, seed, say=print, server=None):
    """Plays `count` rounds, kind after kind; yields each as it ends. `server`
    is the program if it is another one."""
    bench = Bench(build, out, server)
    try:
        bench.start()
        for number in range(1, count + 1):
            kind = kinds[(number - 1) % len(kinds)]
            done = bench.play(kind, seed + number)
            say(_describe(number, count, done))
            yield done
    finally:
        bench.close()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--build_dir", required=True)
    parser.add_argument("--rounds", type=int, default=len(KINDS))
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--seed", type=int,
                        default=random.SystemRandom().randrange(1 << 31))
    flags = parser.parse_args()
    kinds = flags.kinds.split(",")
    for kind in kinds:
        if kind not in KINDS:
            parser.error(f"there is no kind {kind}; there are "
                         + ", ".join(KINDS))
    end_on_sigterm()
    print(f"seed {flags.seed}", flush=True)
    begun, rounds, status = time.monotonic(), [], 0
    try:
        for done in run(
                flags.build_dir,
                os.path.join(flags.build_dir, "fault", "failover"),
                flags.rounds, kinds, flags.seed,
                lambda text: print(text, flush=True)):
            rounds.append(done)
    except ProgramError as error:
        print(f"the run ended early: {error}", file=sys.stderr)
        status = 2
    except (KeyboardInterrupt, SystemExit):
        print("interrupted; the last round does not count")
    if rounds:
        print("\n".join(summarize(rounds)))
        write_down(rounds, (time.monotonic() - begun) / 60, flags.seed)
    return 1 if any(done.violations for done in rounds) else status


if __name__ == "__main__":
    sys.exit(main())
