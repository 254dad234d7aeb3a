"""What a service pays for middleware or sidecar before it."""

import wrk
from processes import BenchmarkError
from report import Row, median, median_ratio

_CONNECTIONS = 64
_RULES = {
    "http": {"routes": [
        {"match": "POST /bare", "scope": "benchmark/sidecar_http"}]},
    "grpc": {"routes": [
        {"methods": "/idempotency.v1.IdempotencyService/Claim",
         "scope": "benchmark/sidecar_grpc"}]},
}
# By runs that leave a record for each request.
_RECORDED_SCOPES = {"middleware": "benchmark/middleware",
                    "sidecar": "benchmark/sidecar_http"}


class Guards:
    """Each round has `latency_us`, the median of requests one at a time, and
    `rates`, requests a second over 64 connections, both by name."""

    def __init__(self, bench, coordinator, echo, say):
        self._bench = bench
        self._coordinator = coordinator
        self._echo = echo
        self._say = say
        self._service = None
        self._sidecar = None
        self._answer = None
        self._rounds = []

    def measure(self):
        bench = self._bench
        self._service = bench.start_http_service(self._coordinator)
        # For gRPC the echo server is the service.
        self._sidecar = bench.start_sidecar(
            self._coordinator, self._service, self._echo, _RULES)
        self._answer = wrk.record(self._service.http_address, "/bare")
        for number in range(1, bench.plan.guard_rounds + 1):
            self._rounds.append(self._measure_round(
                f"guards {number} of {bench.plan.guard_rounds}"))
        bench.stop(self._sidecar)
        bench.stop(self._service)

    def _measure_round(self, name):
        runs = {"latency_us": self._latencies(), "rates": self._rates()}
        self._say(f"{name}: p50 of " + ", ".join(
            f"{what} {us:.0f} us" for what, us in runs["latency_us"].items()))
        self._say(f"{name}: " + ", ".join(
            f"{what} {rate:,.0f}/s" for what, rate in runs["rates"].items()))
        return runs

    def _latencies(self):
        times = {name: self._http(name, 1)["p50_us"] for name in (
            "bare", "middleware", "sidecar", "hop", "middleware_replay",
            "sidecar_replay")}
        for name, server in (("grpc_bare", self._echo),
                             ("grpc_sidecar", self._sidecar)):
            run = self._grpc(server, 1)
            times[name] = run["claim_ms"]["p50"] * 1e3
        # As middleware and sidecar call.
        self._bench.empty(self._coordinator)
        run = self._bench.load(self._coordinator, "pairs", 1, bulk="auto",
                               seconds=self._bench.plan.guard_seconds)
        for call in ("claim", "finalize"):
            times[call] = run[call + "_ms"]["p50"] * 1e3
        return times

    def _rates(self):
        rates = {name: self._http(name, _CONNECTIONS)["requests_per_second"]
                 for name in ("bare", "middleware", "sidecar", "hop",
                              "middleware_replay", "sidecar_replay")}
        for name, server in (("grpc_bare", self._echo),
                             ("grpc_sidecar", self._sidecar)):
            run = self._grpc(server, _CONNECTIONS)
            rates[name] = run["calls_per_second"]
        return rates

    def _http(self, name, connections):
        """A run by name: bare, middleware, sidecar, either of them with
        "_replay", or "hop": through the sidecar, which has to do nothing."""
        bench = self._bench
        guard, _, replay = name.partition("_")
        address, path = {
            "bare": (self._service.http_address, "/bare"),
            "middleware": (self._service.http_address, "/guarded"),
        }.get(guard, (self._sidecar.http_address, "/bare"))
        keys = replay or ("none" if name == "hop" else "fresh")
        if replay:
            wrk.record(address, path)
        elif name in _RECORDED_SCOPES:
            bench.empty(self._coordinator)
        run = wrk.load(address, path, keys, connections,
                       bench.plan.guard_seconds, self._answer)
        if name in _RECORDED_SCOPES:
            # What the end of the run cut off is recorded all the same.
            self._check_records(_RECORDED_SCOPES[name], run["requests"],
                                run["requests"] + connections)
        return run

    def _grpc(self, server, in_flight):
        """Calls with keys, which the echo server takes no notice of."""
        self._bench.empty(server)
        run = self._bench.load(server, "claim", in_flight,
                               seconds=self._bench.plan.guard_seconds,
                               idempotency_keys="true")
        if server is self._sidecar:
            self._check_records("benchmark/sidecar_grpc", run["checked"],
                                run["checked"])
        return run

    def _check_records(self, scope, least, most):
        """That as many requests were executed as were answered."""
        records = int(self._bench.cluster.sql(
            self._coordinator.database, "SELECT count(*) FROM "
            f"idempotency_records WHERE scope = '{scope}'"))
        if not least <= records <= most:
            raise BenchmarkError(f"{scope} has {records} records of {least} "
                                 "requests")

    def rows(self):
        def us(name):
            return lambda r: r["latency_us"][name]

        def added(row, name, bare="bare"):
            return Row(row, median(
                self._rounds, lambda r: us(name)(r) - us(bare)(r)), "us")

        def rate(name):
            return lambda r: r["rates"][name]

        def ratio(row, name, bare="bare"):
            return Row(row, median_ratio(self._rounds, rate(name), rate(bare)),
                       "ratio")

        return [
            added("http_added_latency_middleware", "middleware"),
            added("http_added_latency_sidecar", "sidecar"),
            Row("http_added_latency_claim", median(
                self._rounds, us("claim")), "us"),
            Row("http_added_latency_finalize", median(
                self._rounds, us("finalize")), "us"),
            added("http_added_latency_hop", "hop"),
            added("http_replay_added_latency_middleware", "middleware_replay"),
            added("http_replay_added_latency_sidecar", "sidecar_replay"),
            added("grpc_added_latency_sidecar", "grpc_sidecar", "grpc_bare"),
            ratio("http_throughput_middleware_vs_bare", "middleware"),
            ratio("http_throughput_sidecar_vs_bare", "sidecar"),
            ratio("http_throughput_hop_vs_bare", "hop"),
            ratio("http_replay_throughput_middleware_vs_bare",
                  "middleware_replay"),
            ratio("http_replay_throughput_sidecar_vs_bare", "sidecar_replay"),
            ratio("grpc_throughput_sidecar_vs_bare", "grpc_sidecar",
                  "grpc_bare"),
            Row("http_bare_p50", median(self._rounds, us("bare")), "us"),
            Row("http_bare_rate", median(self._rounds, rate("bare")),
                "requests/s"),
        ]
