#!/usr/bin/env python3
"""Failover under load: a primary and its synchronous standby, two servers and
their callers, again and again.

usage: failover.py --build_dir=FOLDER [--rounds=N] [--kinds=NAME,...]
                   [--seed=N]

Every round the primary goes in one of the ways of failover_kinds.py and the
standby is promoted, under load; then the former primary becomes the standby.
No acknowledged call may be lost, and calls must succeed again within 30
seconds. Rounds with asynchronous replication measure what is lost: they are no
faults that count, and nothing else of them is checked. A round that breaks off
is a violation; the next one begins with nodes and servers made anew. Appends a
row to ledger.tsv, also if the run is ended early.

Ends with status 0 if nothing was violated, 1 if something was (the round's
files are kept in FOLDER/fault/failover), 2 if the run could not go on, 128 and
the signal's number if it was ended by one.
"""

import argparse
import contextlib
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
import programs
from crew import Crew
from deployment import Programs
from failover_kinds import KINDS, LOSING, Pair
from failover_results import Round, describe, summarize, write_down
from histories import Notes, now
from ports import free_port
from postgres import PostgresNode, end_on_sigterm, wait_until
from programs import ProgramError
from rounds import LEFT_MIN_FLAG, Check, Injection, ask_for_left_keys
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
_CHECK_FLAGS = ("--late=2s", "--settle=1s", "--decided=0.9", LEFT_MIN_FLAG)
_BEFORE = 2
_AFTER = 3


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
             "--drain_delay=0s", "--reaper_pause=500ms",
             "--body_bytes_max=10000", *flags], log)

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

    def play(self, number, kind, seed):
        name = f"{number:04d}-{kind}"
        folder = os.path.join(self.out, name)
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        done = Play(self, kind, seed, f"failover/{name}", folder).run()
        if not done.violations:
            shutil.rmtree(folder)
        return done

    def crew(self, scope, folder):
        return Crew(self.programs, scope, folder, self._nodes[0].folder,
                    self.log)

    @property
    def addresses(self):
        return [replica.address for replica in self._replicas]

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
        self._crew = bench.crew(scope, folder)
        self._traffic = self._crew.traffic
        self._shown = set()
        self._recovered = None
        self._notes = Notes(os.path.join(folder, "harness.history"))

    def run(self):
        begun = time.monotonic()
        self._notes.clock()
        try:
            try:
                self._start_callers()
                self._fail_over()
                self._stop_callers()
                if self._recovered is not None:
                    self._ask_for_left_keys()
            finally:
                self._end()
            self._check()
            self._bench.empty()
        # Whatever it was: the rounds before it still count.
        except Exception as error:
            self._done.broke_off = True
            self._done.fail(f"broke off: {error!r}")
        self._done.seconds = time.monotonic() - begun
        return self._done

    def _start_callers(self):
        self._crew.start_wallet()
        for _ in range(_CALLERS):
            self._crew.add(self._bench.addresses, self._random, *_CALLER_FLAGS)

    def _stop_callers(self):
        for text in self._crew.stop():
            self._done.fail(text)

    def _ask_for_left_keys(self):
        for text in ask_for_left_keys(
                self._crew, self._notes, self._bench.pair.primary, self._scope,
                self.folder, self._bench.addresses):
            self._done.fail(text)

    def _end(self):
        self._stop_callers()
        self._crew.close()
        self._notes.clock()
        self._notes.close()

    def _fail_over(self):
        pair = self._bench.pair
        rate = self._wait_for_traffic()
        self._notes.clock()
        injection = self._done.injection = Injection(self._note("begin"),
                                                     rate_before=rate)
        pair.details, pair.lag = "", None
        pair.before_end = self._keep_what_is_shown
        KINDS[self._done.kind](pair, self._random)
        injection.end = pair.promoted
        self._done.details, self._done.lag = pair.details, pair.lag
        self._done.promoting = (pair.promoted - pair.began) / _SECOND
        self._wait_for_recovery(injection)
        pair.rebuild(self._random)
        self._note("end")
        self._bench.check_alive()
        time.sleep(_AFTER)
        self._traffic.read()
        injection.during = self._traffic.overlapping(injection.begin,
                                                     injection.end)
        injection.after = self._traffic.good_between(injection.end, now())

    def _note(self, phase):
        return self._notes.note(fault="failover_" + self._done.kind,
                                phase=phase)

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

    def _wait_for_recovery(self, injection):
        def recovered():
            self._traffic.read()
            return self._traffic.recovered_at(injection.end,
                                              injection.rate_before / 2)
        try:
            at = wait_until("calls succeed", recovered, 2 * _RECOVERY_MAX)
        except ProgramError:
            self._done.violations.append("calls do not succeed again")
            return
        self._recovered = at
        self._done.recovering = (at - injection.end) / _SECOND
        if self._done.recovering <= _RECOVERY_MAX:
            injection.recovered_ms = self._done.recovering * 1000
        else:
            self._done.violations.append(
                f"calls succeeded {self._done.recovering:.1f} s after the "
                "promotion")

    def _check(self):
        done = self._done
        primary = self._bench.pair.primary
        histories = failover_check.Histories(self._crew.histories)
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
        """What fault-checker finds; the counts only of a check to its end."""
        paths = database.dump(self._bench.pair.primary, self._scope,
                              self.folder)
        counts, violations, why = Check(self, [
            self._bench.programs.checker, *_CHECK_FLAGS,
            *(f"--{name}={path}" for name, path in paths.items()),
            *(os.path.join(self.folder, name)
              for name in sorted(os.listdir(self.folder))
              if name.endswith(".history"))]).finish()
        if why is None:
            self._done.counts = counts
        else:
            self._done.fail(why)
        return violations


def run(build, out, count, kinds, seed, say=print, server=None):
    """Plays `count` rounds, kind after kind; yields each as it ends. `server`
    is the program if it is another one."""
    number = 0
    while number < count:
        bench = Bench(build, out, server)
        try:
            bench.start()
            while number < count:
                number += 1
                kind = kinds[(number - 1) % len(kinds)]
                done = bench.play(number, kind, seed + number)
                say(describe(number, count, done))
                yield done
                if done.broke_off:
                    break
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
        with contextlib.closing(run(
                flags.build_dir,
                os.path.join(flags.build_dir, "fault", "failover"),
                flags.rounds, kinds, flags.seed,
                lambda text: print(text, flush=True))) as playing:
            for done in playing:
                rounds.append(done)
    except ProgramError as error:
        print(f"the run ended early: {error}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except SystemExit as ended:
        status = ended.code
    finally:
        if rounds:
            print("\n".join(summarize(rounds)))
            write_down(rounds, (time.monotonic() - begun) / 60, flags.seed)
    if status > 128:
        print("interrupted; the last round does not count")
    return 1 if any(done.violations for done in rounds) else status


if __name__ == "__main__":
    sys.exit(main())
