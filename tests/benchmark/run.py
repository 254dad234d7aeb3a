"""Measures the coordinator next to its yardsticks; run.sh calls it."""

import argparse
import contextlib
import os
import signal
import statistics
import sys
import tempfile
import time

import plots
import report
from cluster import Cluster
from guards import Guards
from latency import Latency
from pgbench import Pgbench
from plans import PLANS
from processes import BenchmarkError
from reaper import Reaper
from redis_yardstick import Redis
from servers import Bench
from stress import Stress
from tables import Tables
from throughput import Throughput

_OTHER_CPU_PERCENT_MAX = 5


class Progress:
    """Says what has been done, and when."""

    def __init__(self):
        self._begun = time.monotonic()

    def __call__(self, text):
        minutes, seconds = divmod(int(time.monotonic() - self._begun), 60)
        print(f"[{minutes:2}:{seconds:02}] {text}", flush=True)


def fdatasync_us():
    """What one durable write costs on the disk that the database uses."""
    block = b"x" * 8192
    with tempfile.TemporaryFile(dir="/var/tmp", buffering=0) as file:
        file.write(block * 128)
        os.fsync(file.fileno())
        times = []
        for i in range(100):
            os.pwrite(file.fileno(), block, i * len(block))
            begun = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - begun)
    return sorted(times)[50] * 1e6


def start(plan, build, folder, stack):
    """The database, Redis and what drives them, until `stack` ends."""
    def open_log(name):
        return stack.enter_context(open(
            os.path.join(folder, name + ".log"), "a", encoding="utf-8"))

    cluster = stack.enter_context(
        contextlib.closing(Cluster(open_log("postgresql"))))
    redis = stack.enter_context(contextlib.closing(Redis(open_log("redis"))))
    bench = Bench(build, cluster, plan, open_log)
    # Also stops what was started when a later start fails.
    stack.callback(bench.close)
    return bench, redis, open_log


def measure(plan, build, folder, say):
    """Returns the rows of the table, the paths of the plots, and what failed.
    """
    with contextlib.ExitStack() as stack:
        say("starting PostgreSQL, Redis, the coordinator and the echo server")
        bench, redis, open_log = start(plan, build, folder, stack)
        coordinator = bench.start_coordinator("coordinator")
        echo = bench.start_echo()
        pgbench = Pgbench(bench.cluster)

        throughput = Throughput(bench, coordinator, echo, pgbench, redis, say)
        throughput.measure()
        rows, failures = throughput.ratio_rows(), []
        peak = throughput.peak_pairs
        tables = Tables(bench, coordinator, say)
        for part in (Latency(bench, coordinator, echo, pgbench, peak, say),
                     Guards(bench, coordinator, echo, say),
                     tables, Reaper(bench, peak, say),
                     Stress(bench, peak, open_log, say)):
            try:
                part.measure()
                bench.check_alive()
                rows += part.rows()
            except BenchmarkError as error:
                # What else was measured, for minutes, is not lost.
                say(f"failed: {error}")
                failures.append(error)

        rows += throughput.absolute_rows()
        rows += [
            report.Row("fdatasync", fdatasync_us(), "us"),
            report.Row("other_cpu",
                       100 * statistics.median(bench.other_shares), "%")]
        return rows, plots.write(throughput, tables, folder), failures


def publish(rows, pictures, failures, plan, folder):
    """Prints the table and writes the file; what has a goal comes first."""
    if not plan.goals:
        rows = [report.Row(row.name, row.value, row.unit) for row in rows]
    rows = sorted(rows, key=lambda row: row.goal is None)
    path = os.path.join(folder, "results.tsv")
    report.write_tsv(rows, path)
    report.check_tsv(path)
    print()
    report.print_table(rows)
    other = next(row.value for row in rows if row.name == "other_cpu")
    if other > _OTHER_CPU_PERCENT_MAX:
        print(f"\nOther processes had {other:.0f} % of this machine meanwhile: "
              "measure again when it is quiet.")
    if not plan.goals:
        print("\nSo short a run shows that everything works; its figures mean "
              "nothing.")
    print("\nEvery answer was checked.")
    for written in (path, *pictures):
        print(f"Written: {written}")
    for failure in failures:
        print(f"benchmark: rows are missing: {failure}", file=sys.stderr)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build_dir", required=True)
    parser.add_argument("--plan", choices=sorted(PLANS), default="full")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    plan = PLANS[arguments.plan]
    folder = os.path.join(arguments.build_dir, "benchmark")
    os.makedirs(folder, exist_ok=True)
    for log in os.listdir(folder):
        if log.endswith(".log"):
            os.remove(os.path.join(folder, log))
    say = Progress()
    say(f"this takes about {plan.minutes:g} minutes on two quiet cores")
    try:
        rows, pictures, failures = measure(plan, arguments.build_dir, folder,
                                           say)
        publish(rows, pictures, failures, plan, folder)
    except BenchmarkError as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
