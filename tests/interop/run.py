#!/usr/bin/env python3
"""Plays scenarios.json in every language; see run.sh, which builds them first.

usage: run.py --build_dir=DIR [--leave_out=LANGUAGE,...] [--only=TEXT]
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

import grpc

from gate import Gate
from idempotency.v1 import idempotency_pb2 as pb
from idempotency.v1 import idempotency_pb2_grpc
from processes import InteropError, Process, coordinator, free_port
from scenario import Miss, Player

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
VECTORS = os.path.join(ROOT, "tests", "vectors", "request_hash.tsv")
# Short, so that a scenario can outlive it; longer than a user's patience, which
# is 3 s in every example.
LEASE_MS = 8000
PRINTING = threading.Lock()


def programs(build):
    """How each language's service is started."""
    out = os.path.join(build, "interop")
    return {
        "cpp": [os.path.join(build, "client", "examples", "cpp", "payments")],
        "go": [os.path.join(out, "go", "payments")],
        "python": [os.path.join(out, "python", "venv", "bin", "python"),
                   os.path.join(out, "python", "payments.py")],
        "node": ["node", os.path.join(out, "node", "payments.js")],
        "java": ["java", "-jar", os.path.join(out, "java", "target", "payments.jar")],
        "rust": [os.path.join(out, "rust", "target", "debug", "payments")],
    }


def say(line):
    with PRINTING:
        print(line, flush=True)


class Run:
    """What is up, and which scenarios held where."""

    def __init__(self, build, languages, stack):
        self._out = os.path.join(build, "interop")
        self._programs = {name: programs(build)[name] for name in languages}
        self._stack = stack
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="interop-"))
        self.coordinator = coordinator(build, folder, self._log("coordinator"))
        stack.callback(self.coordinator.stop)
        self.gate = None
        self.direct, self.gated = {}, {}  # language: Process
        self.results = {}  # (scenario's name, language): Miss, or None

    def _log(self, name):
        log = os.path.join(self._out, name + ".log")
        open(log, "wb").close()
        return log

    def check_vectors(self):
        """A row of its own: the shared examples of the request hash."""
        for name, program in self._programs.items():
            done = subprocess.run([*program, "--check_vectors", VECTORS], text=True,
                                  capture_output=True, timeout=60, check=False)
            with open(VECTORS, encoding="ascii") as file:
                wanted = f"{len(file.readlines()) - 1} vectors"
            miss = None
            if done.returncode != 0 or done.stdout.strip() != wanted:
                miss = Miss(f"{done.returncode} {done.stdout} {done.stderr}")
                say(f"{name}: request hash vectors: {miss}")
            self.results["request hash vectors", name] = miss

    def start(self):
        self.start_coordinator()
        target = f"127.0.0.1:{self.coordinator.port}"
        self.gate = Gate(target)
        self._stack.callback(self.gate.stop)
        for name in self._programs:
            self.direct[name] = self._start_service(name, name, target)
            self.gated[name] = self._start_service(name, name + "-gated",
                                                   self.gate.address)
        for process in [*self.direct.values(), *self.gated.values()]:
            process.wait_until_listening()

    def start_coordinator(self):
        self.coordinator.start()
        with grpc.insecure_channel(f"127.0.0.1:{self.coordinator.port}") as channel:
            stub = idempotency_pb2_grpc.IdempotencyServiceStub(channel)
            deadline = time.monotonic() + 60
            while True:
                try:
                    stub.Lookup(pb.LookupRequest(scope="interop", key="none"), timeout=5)
                except grpc.RpcError as error:
                    if error.code() == grpc.StatusCode.NOT_FOUND:
                        return
                    if time.monotonic() > deadline:
                        raise InteropError("the coordinator does not serve") from error
                self.coordinator.check_alive()
                time.sleep(0.1)

    def _start_service(self, language, name, target):
        port = free_port()
        process = Process(name, [*self._programs[language], "--listen",
                                 f"127.0.0.1:{port}", "--coordinator", target,
                                 "--lease_ms", str(LEASE_MS)], port, self._log(name))
        process.start()
        self._stack.callback(process.stop)
        return process

    def play(self, scenarios):
        """All languages side by side, each one scenario after the other."""
        with concurrent.futures.ThreadPoolExecutor(len(self.direct)) as threads:
            for done in [threads.submit(self._play_in, name, scenarios)
                         for name in self.direct]:
                done.result()

    def _play_in(self, language, scenarios):
        """Those with a gate beside those without."""
        started = time.monotonic()
        lanes = [[scenario for scenario in scenarios
                  if scenario.get("gated", False) == gated] for gated in (False, True)]
        with concurrent.futures.ThreadPoolExecutor(len(lanes)) as threads:
            missed = sum(threads.map(lambda lane: self._play_lane(language, lane), lanes))
        say(f"{language}: {missed} of {len(scenarios)} scenarios missed, "
            f"{time.monotonic() - started:.0f} s")

    def _play_lane(self, language, scenarios):
        """How many missed."""
        missed = 0
        others = {name: process.port for name, process in self.direct.items()
                  if name != language}
        for scenario in scenarios:
            if language in scenario.get("left_out", ()):
                continue
            own = self.gated if scenario.get("gated") else self.direct
            miss = None
            try:
                Player(scenario, language, own[language].port, others, self.gate).play()
            except Miss as why:
                miss = why
                missed += 1
                say(f"{language}: {scenario['name']}: {miss}")
            self.results[scenario["name"], language] = miss
        return missed

    def check_alive(self):
        for process in [*self.direct.values(), *self.gated.values()]:
            process.check_alive()

    def print_table(self, scenarios):
        rows = [("request hash vectors", "the digests that all languages share")]
        rows += [(scenario["name"], scenario["says"]) for scenario in scenarios]
        languages = list(self._programs)
        print("\n| scenario | " + " | ".join(languages) + " | what must hold |")
        print("|---" * (len(languages) + 2) + "|")
        for name, says in rows:
            cells = ["-" if (name, language) not in self.results
                     else "ok" if self.results[name, language] is None else "MISS"
                     for language in languages]
            print(f"| {name} | " + " | ".join(cells) + f" | {says} |")


def main():
    flags = argparse.ArgumentParser(usage=__doc__)
    flags.add_argument("--build_dir", required=True)
    flags.add_argument("--leave_out", default="")
    flags.add_argument("--only", default="", help="scenarios whose name holds this")
    flags = flags.parse_args()
    left_out = flags.leave_out.split(",")
    languages = [name for name in programs("") if name not in left_out]
    if len(languages) < 2:
        raise InteropError("with one language, nothing is shown between two")
    with open(os.path.join(HERE, "scenarios.json"), encoding="utf-8") as file:
        scenarios = [scenario for scenario in json.load(file)
                     if flags.only in scenario["name"]]
    with contextlib.ExitStack() as stack:
        run = Run(os.path.abspath(flags.build_dir), languages, stack)
        run.check_vectors()
        run.start()
        phases = {phase: [scenario for scenario in scenarios
                          if scenario.get("phase") == phase]
                  for phase in (None, "down", "back")}
        run.play(phases[None])
        say("the coordinator is stopped")
        run.coordinator.stop()
        run.play(phases["down"])
        say("the coordinator is started again")
        run.start_coordinator()
        run.play(phases["back"])
        run.check_alive()
        run.print_table(scenarios)
        missed = sum(miss is not None for miss in run.results.values())
    print(f"\n{len(run.results)} played in {len(languages)} languages, {missed} missed"
          + (f"; left out: {flags.leave_out}" if flags.leave_out else ""))
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    try:
        main()
    except InteropError as error:
        sys.exit(f"interop: {error}")
