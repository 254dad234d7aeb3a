"""How long a call takes: when idle, when work arrives, when all want one key.
"""

from processes import Sampler
from report import Row, median, median_ratio


class Latency:
    """`peak_pairs` a second are what the coordinator does in a closed loop."""

    def __init__(self, bench, coordinator, echo, pgbench, peak_pairs, say):
        self._bench = bench
        self._coordinator = coordinator
        self._echo = echo
        self._pgbench = pgbench
        self._peak_pairs = peak_pairs
        self._say = say
        self._idle = []
        self._arrivals = {"half_peak": [], "three_quarters": []}
        self._crowds = []

    def measure(self):
        plan = self._bench.plan
        for number in range(1, plan.idle_rounds + 1):
            self._idle.append(self._measure_idle(
                f"idle {number} of {plan.idle_rounds}"))
        for number in range(1, plan.arrivals_rounds + 1):
            name = f"arrivals {number} of {plan.arrivals_rounds}"
            self._measure_arrivals(name, "half_peak", 0.5)
            self._measure_arrivals(name, "three_quarters", 0.75)
        for number in range(1, plan.crowd_rounds + 1):
            self._crowds.append(self._measure_crowd(
                f"crowd {number} of {plan.crowd_rounds}"))

    def _measure_idle(self, name):
        """One Claim at a time, and what it cannot be faster than."""
        seconds = self._bench.plan.idle_seconds

        def claim_p50(server):
            self._bench.empty(server)
            run = self._bench.load(server, "claim", 1, seconds=seconds)
            return run["claim_ms"]["p50"]

        times = {"echo": claim_p50(self._echo),
                 "insert": self._pgbench.insert_p50_ms(seconds),
                 "claim": claim_p50(self._coordinator)}
        self._say(f"{name}: p50 of " + ", ".join(
            f"{what} {ms * 1e3:.0f} us" for what, ms in times.items()))
        return times

    def _measure_arrivals(self, name, load, part):
        self._bench.empty(self._coordinator)
        rate = self._peak_pairs * part
        run = self._bench.arrivals(self._coordinator, rate,
                                   self._bench.plan.arrivals_seconds)
        self._arrivals[load].append(run)
        self._say(f"{name}: {rate:,.0f} pairs/s arrive: Claim p99 "
                  f"{run['claim_ms']['p99']:.1f} ms")

    def _measure_crowd(self, name):
        server = self._coordinator
        self._bench.empty(server)
        statements = Sampler(
            lambda: server.metric("idempotency_statement_seconds_count"),
            period=60)
        run = self._bench.load(server, "crowd", self._bench.plan.crowd,
                               sampler=statements)
        run["statements"] = run["samples"][-1][1] - run["samples"][0][1]
        self._say(f"{name}: {run['calls']:,} Claims of one key in "
                  f"{run['seconds']:.2f} s, {run['statements']:.0f} "
                  "statements")
        return run

    def rows(self):
        def floor(times):
            return times["echo"] + 1.3 * times["insert"]

        rows = [
            Row("idle_claim_p50", median_ratio(
                self._idle, lambda t: t["claim"], floor), "ratio", "<= 1.0"),
            Row("hot_key", median(self._crowds, lambda r: r["seconds"]), "s",
                "<= 0.5"),
            # The worst: this one is no matter of the machine's mood.
            Row("hot_key_statements", max(
                int(r["statements"]) for r in self._crowds), "statements",
                "<= 100"),
        ]
        for what in ("claim", "echo", "insert"):
            rows.append(Row(f"idle_{what}_time", median(
                self._idle, lambda t: t[what] * 1e3), "us"))
        for load, runs in self._arrivals.items():
            rows.append(Row(f"rate_at_{load}", median(
                runs, lambda r: r["rate"]), "pairs/s"))
            for quantile in ("p50", "p99", "p999"):
                rows.append(Row(f"claim_{quantile}_at_{load}", median(
                    runs, lambda r: r["claim_ms"][quantile]), "ms"))
        return rows
