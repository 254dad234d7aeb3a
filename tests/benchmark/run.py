"""Measures the coordinator next to its yardsticks; run.sh calls it."""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

import processes
import report
from cluster import Cluster
from processes import BenchmarkError

_PGBENCH_CLIENTS = (16, 32, 64)
_TABLES = ("idempotency_records", "idempotency_conflicts")

# rounds, seconds of a load run and of a pgbench run, passes over the plot's
# numbers of calls in flight
_PLANS = {
    "full": (7, 4.0, 5, 3),
    "quick": (5, 2.0, 3, 1),
    "smoke": (1, 0.5, 2, 1),
}
_OTHER_CPU_PERCENT_MAX = 5
_SWEEP = (16, 64, 256, 1024)


def say(text):
    print(text, flush=True)


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


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


class Bench:
    """The servers under test and the load client."""

    def __init__(self, build, cluster, seconds):
        self._build = build
        self._cluster = cluster
        self._seconds = seconds
        self._servers = {}  # name: (process, address)

    def _binary(self, *path):
        return os.path.join(self._build, *path)

    def start_echo(self, log):
        process = processes.start(
            [self._binary("tests", "benchmark", "echo_server")], log,
            stdout=subprocess.PIPE)
        address = process.stdout.readline().decode().strip()
        self._servers["echo"] = (process, address)
        self._wait_until_serving("echo")

    def start_coordinator(self, log):
        address = f"127.0.0.1:{free_port()}"
        process = processes.start(
            [self._binary("server", "idempotency-server"),
             "--database=" + self._cluster.uri("coordinator"), "--migrate",
             "--listen=" + address], log)
        self._servers["coordinator"] = (process, address)
        self._wait_until_serving("coordinator")

    def _load_command(self, server, mode, in_flight, warm_up, seconds):
        return [self._binary("tests", "benchmark", "load_client"),
                "--target=" + self._servers[server][1], "--mode=" + mode,
                f"--in_flight={in_flight}", f"--warm_up={warm_up}",
                f"--seconds={seconds}"]

    def _wait_until_serving(self, server):
        process = self._servers[server][0]
        command = self._load_command(server, "pairs", 1, 0, 0.01)
        deadline = time.monotonic() + 30
        while True:
            done = subprocess.run(command, capture_output=True, text=True,
                                  check=False)
            if done.returncode == 0:
                return
            if process.poll() is not None:
                raise BenchmarkError(f"the {server} server ended with "
                                     f"{process.returncode}; see its log")
            if time.monotonic() > deadline:
                raise BenchmarkError(f"the {server} server does not serve: "
                                     + done.stderr.strip())
            time.sleep(0.1)

    def load(self, server, mode, in_flight):
        """One run of the load client, with the CPU that it cost."""
        if server == "coordinator":
            self._cluster.start_afresh("coordinator", *_TABLES)
        pid = self._servers[server][0].pid
        readers = {"server": lambda: processes.process_cpu(pid),
                   "machine": processes.machine_cpu}
        if server == "coordinator":
            readers["database"] = self._cluster.cpu_seconds
        watch = processes.CpuWatch(readers)
        command = self._load_command(server, mode, in_flight, 0.5,
                                     self._seconds)
        client = subprocess.Popen(command, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True)
        cpu, messages = None, []
        try:
            for line in client.stderr:
                if line == "measuring\n":
                    watch.begin()
                elif line == "measured\n":
                    cpu = watch.end()
                else:
                    messages.append(line)
            output = client.stdout.read()
        finally:
            processes.stop(client)
        if client.returncode != 0 or cpu is None:
            raise BenchmarkError(f"load_client --mode={mode} failed:\n"
                                 + "".join(messages) + output)
        return self._with_cpu(json.loads(output), cpu)

    def check_alive(self):
        for name, (process, _) in self._servers.items():
            if process.poll() is not None:
                raise BenchmarkError(f"the {name} server ended with "
                                     f"{process.returncode}; see its log")

    def close(self):
        for process, _ in self._servers.values():
            processes.stop(process)

    @staticmethod
    def _with_cpu(run, cpu):
        machine = cpu.pop("machine")
        cpu["client"] = run["client_cpu_seconds"] / run["seconds"]
        run["other_share"] = processes.other_share(machine, cpu.values())
        run["cpu_us_per_call"] = {
            name: share / run["calls_per_second"] * 1e6
            for name, share in cpu.items()}
        if "pairs_per_second" in run:
            run["cpu_us_per_pair"] = {
                name: share / run["pairs_per_second"] * 1e6
                for name, share in cpu.items()}
        return run


def measure_round(bench, cluster, pgbench_seconds, name):
    """One run of everything, yardsticks and coordinator taking turns."""
    measured = {"pgbench": {}, "pairs": {}, "echo": {}}

    def pgbench(clients):
        run = cluster.pgbench(clients, pgbench_seconds)
        measured["pgbench"][clients] = run
        say(f"{name}: pgbench, {clients} clients: "
            f"{run['pairs_per_second']:,.0f} pairs/s")

    def pairs(in_flight):
        run = bench.load("coordinator", "pairs", in_flight)
        measured["pairs"][in_flight] = run
        say(f"{name}: unary, {in_flight} in flight: "
            f"{run['pairs_per_second']:,.0f} pairs/s, Claim p99 "
            f"{run['claim_ms']['p99']:.1f} ms")

    def echo(in_flight):
        run = bench.load("echo", "echo", in_flight)
        measured["echo"][in_flight] = run
        say(f"{name}: echo, {in_flight} in flight: "
            f"{run['calls_per_second']:,.0f} calls/s")

    pgbench(_PGBENCH_CLIENTS[0])
    pairs(64)
    echo(64)
    pgbench(_PGBENCH_CLIENTS[1])
    pairs(256)
    echo(256)
    pgbench(_PGBENCH_CLIENTS[2])
    return measured


def check_other_modes(bench):
    for mode in ("claim", "replay"):
        run = bench.load("coordinator", mode, 64)
        say(f"{mode}, 64 in flight: {run['calls_per_second']:,.0f} calls/s, "
            f"{run['checked']:,} answers checked")


def measure(plan, build, folder):
    count, seconds, pgbench_seconds, passes = _PLANS[plan]
    with contextlib.ExitStack() as stack:
        def log(name):
            return stack.enter_context(
                open(os.path.join(folder, name), "w", encoding="utf-8"))

        say("Starting PostgreSQL, the coordinator and the echo server.")
        cluster = stack.enter_context(
            contextlib.closing(Cluster(log("postgresql.log"))))
        bench = Bench(build, cluster, seconds)
        # Also stops what was started when a later start fails.
        stack.callback(bench.close)
        bench.start_coordinator(log("server.log"))
        bench.start_echo(log("echo.log"))

        rounds = [measure_round(bench, cluster, pgbench_seconds,
                                f"round {i + 1} of {count}")
                  for i in range(count)]
        sweep = {n: [] for n in _SWEEP}
        for n in _SWEEP * passes:
            run = bench.load("coordinator", "pairs", n)
            sweep[n].append(run)
            say(f"sweep: unary, {n} in flight: "
                f"{run['pairs_per_second']:,.0f} pairs/s")
        if plan == "smoke":
            check_other_modes(bench)
        bench.check_alive()
        return rounds, sweep


def publish(rounds, sweep, folder):
    """Prints the table and writes the files."""
    rows = report.make_rows(rounds)
    rows.append(report.Row("fdatasync", fdatasync_us(), "us"))
    path = os.path.join(folder, "results.tsv")
    report.write_tsv(rows, path)
    report.check_tsv(path)
    say("")
    report.print_table(rows)
    other = report.other_cpu_percent(rounds)
    if other > _OTHER_CPU_PERCENT_MAX:
        say(f"\nOther processes had {other:.0f} % of this machine meanwhile: "
            "measure again when it is quiet.")
    say(f"\nEvery answer was checked. Written: {path}")
    for plot in report.write_plots(rounds, sweep, folder):
        say(f"Written: {plot}")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build_dir", required=True)
    parser.add_argument("--plan", choices=sorted(_PLANS), default="full")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = os.path.join(arguments.build_dir, "benchmark")
    os.makedirs(folder, exist_ok=True)
    try:
        rounds, sweep = measure(arguments.plan, arguments.build_dir, folder)
        publish(rounds, sweep, folder)
    except BenchmarkError as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
