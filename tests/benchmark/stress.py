"""Memory under many calls, and more calls than the database can bear."""

import os
import statistics
import sys

import processes
from processes import Sampler
from report import Row, median, median_ratio

_IN_FLIGHT = 1000
_OFFERED = 3
_SLOWNESS = 4
_DEADLINE_MS = 1000
# Enough for every call that may be on its way when each takes its deadline.
_OVERLOAD_IN_FLIGHT_MAX = 32 * 1024
_OVERLOAD_CONNECTIONS = 8
_GATE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "slow_gate.py")


class Stress:
    """`peak_pairs` a second are what the coordinator does in a closed loop."""

    def __init__(self, bench, peak_pairs, open_log, say):
        self._bench = bench
        self._peak_pairs = peak_pairs
        self._open_log = open_log
        self._say = say
        self._memory = None
        self._overload = []

    def measure(self):
        self._measure_memory()
        self._measure_overload()

    def _measure_memory(self):
        """Of a server that has done nothing before."""
        server = self._bench.start_coordinator("memory")
        seconds = self._bench.plan.memory_seconds
        self._say(f"memory: {seconds} s with {_IN_FLIGHT:,} calls in flight")
        self._memory = self._bench.load(
            server, "pairs", _IN_FLIGHT, seconds=seconds,
            sampler=Sampler(lambda: processes.resident_mb(server.pid)))
        self._bench.stop(server)
        self._say(f"memory: at most {self._resident_max():.1f} MB over "
                  f"{self._memory['calls']:,} calls")

    def _resident_max(self):
        return max(mb for _, mb in self._memory["samples"])

    def _growth_per_million(self):
        """From the second quarter of the time to the last: in the first,
        pools and caches fill."""
        values = [mb for _, mb in self._memory["samples"]]
        quarter = max(1, len(values) // 4)
        growth = (statistics.mean(values[-quarter:])
                  - statistics.mean(values[quarter:2 * quarter] or values))
        return growth / (self._memory["calls"] / 2 / 1e6)

    def _measure_overload(self):
        """The database behind a gate that makes it a quarter as fast."""
        plan, cluster = self._bench.plan, self._bench.cluster
        folder = os.path.join(cluster.folder, "gate")
        os.mkdir(folder)
        gate = processes.start(
            [sys.executable, _GATE, "--listen=" + folder,
             "--target=" + cluster.folder, f"--slowness={_SLOWNESS}"],
            self._open_log("gate"))
        try:
            server = self._bench.start_coordinator("overload", folder)
            for number in range(1, plan.overload_rounds + 1):
                self._overload.append(self._overload_round(
                    server, f"overload {number} of {plan.overload_rounds}"))
            self._bench.stop(server)
        finally:
            processes.stop(gate)

    def _overload_round(self, server, name):
        seconds = self._bench.plan.overload_seconds
        self._bench.empty(server)
        capacity = self._bench.load(server, "pairs", 256, seconds=seconds,
                                    refusals_allowed=True)
        self._bench.empty(server)
        offered = self._bench.arrivals(
            server, _OFFERED * capacity["pairs_per_second"], seconds,
            warm_up=self._bench.plan.overload_warm_up,
            in_flight=_OVERLOAD_IN_FLIGHT_MAX,
            connections=_OVERLOAD_CONNECTIONS, deadline_ms=_DEADLINE_MS,
            refusals_allowed=True)
        good = offered["pairs_per_second"]
        self._say(f"{name}: of {offered['rate']:,.0f} pairs/s that arrive, "
                  f"{good:,.0f} are done; in a closed loop "
                  f"{capacity['pairs_per_second']:,.0f}; p99 of "
                  f"{offered['refused']:,} refusals ({offered['late']:,} too "
                  f"late) {offered['refused_ms']['p99']:.1f} ms")
        return {"capacity": capacity["pairs_per_second"], "good": good,
                "offered": offered}

    def rows(self):
        def refusals(quantile):
            return median(self._overload, lambda r: r["offered"]["refused_ms"][
                quantile])

        return [
            Row("rss_mb", self._resident_max(), "MB", "<= 80"),
            Row("overload", median_ratio(
                self._overload, lambda r: r["good"],
                lambda r: r["capacity"]), "ratio", ">= 0.9"),
            Row("overload_refusal_p99_ms", refusals("p99"), "ms", "<= 100"),
            Row("rss_mb_per_million_calls", self._growth_per_million(), "MB"),
            Row("rss_calls", self._memory["calls"], "calls"),
            Row("overload_refusal_p50_ms", refusals("p50"), "ms"),
            Row("overload_claim_p99", median(
                self._overload, lambda r: r["offered"]["claim_ms"]["p99"]),
                "ms"),
            Row("overload_capacity", median(
                self._overload, lambda r: r["capacity"]), "pairs/s"),
            Row("overload_capacity_vs_peak", median(
                self._overload, lambda r: r["capacity"] / self._peak_pairs),
                "ratio"),
        ]
