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
from sidecar import Sidecar

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
VECTORS = os.path.join(ROOT, "tests", "vectors", "request_hash.tsv")
# Short, so that a scenario can outlive it; longer than a user's patience, which
# is 3 s in every example.
LEASE_MS = 8000
# Scenarios of one language at a time; most of them wait most of the time.
SIDE_BY_SIDE = 3
PRINTING = threading.Lock()


def programs(build):
    """How each language's service is started: the program, followed by

      --listen 127.0.0.1:PORT --coordinator HOST:PORT --lease_ms N
          serves HTTP until SIGTERM, and claims in scope "payments" with policy
          "payment" and that lease; a user waits 3 s for the coordinator
      --check_vectors FILE
          prints "N vectors" when its request hash gives all N digests, and ends

    POST /payments {"account", "amount"} asks a wallet once for each
    Idempotency-Key, which is required, and answers 201 with JSON and two headers
    X-Receipt, 0 and 1. The header X-Wallet says what the wallet does:

      slow-MS           charges after that time, if still permitted
      throw             an exception out of the handler
      nothing-happened  503, and the handler says that it did nothing
      decline-402       that status, as an answer
      error-500         likewise
      long-BYTES        a body longer than that
      receipts-N        N headers X-Receipt

    GET /payments?account=A answers {"asked": how often the wallet was asked}.
    Problems are of type urn:idempotency:NAME, named as in
    client/http/problem.h, with members reason and field, where an error of the
    coordinator has them.
    """
    out = os.path.join(build, "interop")
    return {
        "cpp": [os.path.join(build, "tests", "interop", "interop_payments")],
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
        self._folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="interop-"))
        self.coordinator = coordinator(build, self._folder, self._log("coordinator"))
        stack.callback(self.coordinator.stop)
        self.gate = None
        self.direct, self.gated = {}, {}  # language: Process
        self.results = {}  # (scenario's name, language): Miss, or None
        self.sidecar = None

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

    def start_sidecar(self, build):
        self.sidecar = Sidecar(build, self._folder,
                               f"127.0.0.1:{self.coordinator.port}", self._log)
        self._stack.callback(self.sidecar.stop)
        self.sidecar.start()

    def play_sidecar(self, steps):
        for step in steps:
            miss = None
            try:
                step()
            except (AssertionError, grpc.RpcError) as why:
                miss = Miss(repr(why))
            say(f"sidecar: {step.__doc__}: {'ok' if miss is None else miss}")
            self.results[step.__doc__, "sidecar"] = miss

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
                                 "--lease_ms", str(LEASE_MS)], port, self._log(name),
                          self._folder)
        process.start()
        self._stack.callback(process.stop)
        return process

    def play(self, scenarios):
        """All languages side by side."""
        with concurrent.futures.ThreadPoolExecutor(len(self.direct)) as threads:
            for done in [threads.submit(self._play_in, name, scenarios)
                         for name in self.direct]:
                done.result()

    def _play_in(self, language, scenarios):
        started = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
            missed = sum(threads.map(
                lambda scenario: self._play_one(language, scenario), scenarios))
        say(f"{language}: {missed} of {len(scenarios)} scenarios missed, "
            f"{time.monotonic() - started:.0f} s")

    def _play_one(self, language, scenario):
        """Whether it missed."""
        own = self.gated if scenario.get("gated") else self.direct
        others = {name: process.port for name, process in self.direct.items()
                  if name != language}
        miss = None
        try:
            Player(scenario, language, own[language].port, others, self.gate).play()
        except Miss as why:
            miss = why
            say(f"{language}: {scenario['name']}: {miss}")
        self.results[scenario["name"], language] = miss
        return miss is not None

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
            cells = ["ok" if self.results[name, language] is None else "MISS"
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
        # The service behind it is in Go, and has to be built.
        with_sidecar = "go" in languages and not flags.only
        if with_sidecar:
            run.start_sidecar(os.path.abspath(flags.build_dir))
            run.play_sidecar(run.sidecar.steps())
        say("the coordinator is stopped")
        run.coordinator.stop()
        run.play(phases["down"])
        if with_sidecar:
            run.play_sidecar(run.sidecar.steps_without_coordinator())
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
