"""The servers under test, and the programs that send load to them."""

import json
import os
import signal
import subprocess
import time
import urllib.request

import processes
from processes import BenchmarkError

_TABLES = ("idempotency_records", "idempotency_conflicts")
# An open loop uses as many as it must. After a hiccup of the machine more may
# be due than a server takes in without refusing; they wait at the client, and
# that counts as latency all the same.
_ARRIVALS_IN_FLIGHT_MAX = 1024


class Server:
    """A running server; `database` is that of its records, or None. `address`
    serves gRPC, `http_address` HTTP, if any does."""

    def __init__(self, name, process, address, admin=None, database=None,
                 http_address=None):
        self.name = name
        self.process = process
        self.address = address
        self.database = database
        self.http_address = http_address
        self._admin = admin

    @property
    def pid(self):
        return self.process.pid

    def metric(self, name):
        """The sum of a metric over its labels."""
        with urllib.request.urlopen(f"http://{self._admin}/metrics",
                                    timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        values = [float(line.rpartition(" ")[2]) for line in lines
                  if line.startswith((name + "{", name + " "))]
        if not values:
            raise BenchmarkError(f"the server has no metric {name}")
        return sum(values)

    def check_alive(self):
        if self.process.poll() is not None:
            raise BenchmarkError(f"the {self.name} server ended with "
                                 f"{self.process.returncode}; see its log")


class Bench:
    """Starts servers and sends load to them. `open_log` opens a log by name.
    """

    def __init__(self, build, cluster, plan, open_log):
        self.cluster = cluster
        self.plan = plan
        # The part of the machine that other processes had, for each run.
        self.other_shares = []
        self._build = build
        self._open_log = open_log
        self._servers = []
        self._databases = set()

    def _binary(self, *path):
        return os.path.join(self._build, *path)

    def _start_helper(self, name, program, *flags):
        """A program that takes a free port; returns it and its address."""
        process = processes.start(
            [self._binary("tests", "benchmark", program), *flags],
            self._open_log(name), stdout=subprocess.PIPE)
        return process, process.stdout.readline().decode().strip()

    def start_echo(self):
        process, address = self._start_helper("echo", "echo_server")
        return self._add(Server("echo", process, address))

    def start_http_service(self, coordinator):
        """It serves when this returns: it listens before it says where."""
        process, address = self._start_helper(
            "http_service", "http_service",
            "--coordinator=" + coordinator.address)
        server = Server("http_service", process, None, http_address=address)
        self._servers.append(server)
        return server

    def start_sidecar(self, coordinator, http_service, grpc_service, rules):
        """`rules` are those of its file."""
        path = os.path.join(self._build, "benchmark", "sidecar_rules.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(rules, file)
        http_address = f"127.0.0.1:{processes.free_port()}"
        address = f"127.0.0.1:{processes.free_port()}"
        process = processes.start(
            [self._binary("client", "idempotency-proxy"), "--config=" + path,
             "--coordinator=" + coordinator.address,
             "--listen=" + http_address,
             "--upstream=" + http_service.http_address,
             "--grpc_listen=" + address,
             "--grpc_upstream=" + grpc_service.address],
            self._open_log("sidecar"))
        # It takes HTTP before it takes gRPC, which _add() waits for.
        return self._add(Server("sidecar", process, address,
                                database=coordinator.database,
                                http_address=http_address))

    def start_coordinator(self, name, socket_folder=None):
        """A server with the database `name`, which is made when it is not
        there yet; `socket_folder` leads to it by another way."""
        if name not in self._databases:
            self.cluster.create_database(name)
            self._databases.add(name)
        address = f"127.0.0.1:{processes.free_port()}"
        admin = f"127.0.0.1:{processes.free_port()}"
        process = processes.start(
            [self._binary("server", "idempotency-server"),
             "--database=" + self.cluster.uri(name, socket_folder),
             "--migrate", "--listen=" + address, "--admin_listen=" + admin,
             "--drain_delay=0s"],
            self._open_log(name))
        return self._add(Server(name, process, address, admin, name))

    def drop_database(self, name):
        """With all its records, so that they are in nobody's way."""
        self._databases.remove(name)
        self.cluster.drop_database(name)

    def _add(self, server):
        self._servers.append(server)
        self._wait_until_serving(server)
        return server

    def _wait_until_serving(self, server):
        command = self._load_command(server, "pairs", 1, 0, 0.01)
        deadline = time.monotonic() + 30
        while True:
            done = subprocess.run(command, capture_output=True, text=True,
                                  check=False)
            if done.returncode == 0:
                return
            server.check_alive()
            if time.monotonic() > deadline:
                raise BenchmarkError(f"the {server.name} server does not "
                                     "serve: " + done.stderr.strip())
            time.sleep(0.05)

    def stop(self, server):
        """As a crash would, which leaves nothing undone and takes no time."""
        server.check_alive()
        processes.stop(server.process, signal.SIGKILL)
        self._servers.remove(server)

    def empty(self, server):
        """So that every measurement begins alike."""
        if server.database is not None:
            self.cluster.truncate(server.database, *_TABLES)
            self.cluster.checkpoint()

    def _load_command(self, server, mode, in_flight, warm_up, seconds,
                      bulk=None, **flags):
        program = "load_client" if bulk is None else "client_load"
        command = [self._binary("tests", "benchmark", program),
                   "--target=" + server.address, "--mode=" + mode,
                   f"--in_flight={in_flight}", f"--warm_up={warm_up}",
                   f"--seconds={seconds}"]
        if bulk is not None:
            flags["bulk"] = bulk
        return command + [f"--{name}={value}" for name, value in flags.items()]

    def load(self, server, mode, in_flight, seconds=None, warm_up=None,
             sampler=None, **flags):
        """One run of a load client, with the CPU that it cost: of the raw one,
        or with bulk="auto" or "never" of the C++ client's. `sampler` runs
        while it measures. Other flags go to the load client."""
        watch = self._cpu_watch(server)
        command = self._load_command(
            server, mode, in_flight,
            self.plan.warm_up if warm_up is None else warm_up,
            seconds or self.plan.seconds, **flags)
        client = subprocess.Popen(command, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True)
        cpu, samples, messages = None, None, []
        try:
            for line in client.stderr:
                if line == "measuring\n":
                    watch.begin()
                    if sampler is not None:
                        sampler.begin()
                elif line == "measured\n":
                    cpu = watch.end()
                    samples = sampler and sampler.end()
                else:
                    messages.append(line)
            output = client.stdout.read()
        finally:
            processes.stop(client)
        if client.returncode != 0 or cpu is None:
            raise BenchmarkError(f"{' '.join(command)} failed:\n"
                                 + "".join(messages) + output)
        run = self._with_cpu(json.loads(output), cpu)
        run["samples"] = samples
        return run

    def arrivals(self, server, rate, seconds, mode="pairs",
                 in_flight=_ARRIVALS_IN_FLIGHT_MAX, **flags):
        """An open loop: so many fresh keys arrive each second."""
        if rate <= 0:
            raise BenchmarkError("what the rate is taken from was too short")
        return self.load(server, mode, in_flight, seconds=seconds,
                         rate=f"{rate:.1f}", **flags)

    def _cpu_watch(self, server):
        readers = {"server": lambda: processes.process_cpu(server.pid),
                   "machine": processes.machine_cpu}
        if server.database is not None:
            readers["database"] = self.cluster.cpu_seconds
        return processes.CpuWatch(readers)

    def _with_cpu(self, run, cpu):
        machine = cpu.pop("machine")
        cpu["client"] = run["client_cpu_seconds"] / run["seconds"]
        self.other_shares.append(processes.other_share(machine, cpu.values()))
        for what in ("call", "pair"):
            rate = run.get(what + "s_per_second")
            if rate is not None:
                run["cpu_us_per_" + what] = {
                    name: share / rate * 1e6 if rate > 0 else 0.0
                    for name, share in cpu.items()}
        return run

    def check_alive(self):
        for server in self._servers:
            server.check_alive()

    def close(self):
        for server in self._servers:
            processes.stop(server.process)
