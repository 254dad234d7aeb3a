"""Calls a second and what they cost, beside the yardsticks."""

from report import Row, median, median_ratio


class Throughput:
    """`rounds` has, for each round, the runs by name; `sweep` has the runs of
    other numbers of calls in flight, by that number."""

    def __init__(self, bench, coordinator, echo, pgbench, redis, say):
        self._bench = bench
        self._coordinator = coordinator
        self._echo = echo
        self._pgbench = pgbench
        self._redis = redis
        self._say = say
        self.rounds = []
        self.sweep = {}

    def measure(self):
        plan = self._bench.plan
        for number in range(1, plan.rounds + 1):
            self.rounds.append(self._round(f"round {number} of {plan.rounds}"))
        self._measure_sweep()

    @property
    def peak_pairs(self):
        """What the open loops take as the most that the coordinator does."""
        return median(self.rounds, lambda r: r["pairs_256"]["pairs_per_second"])

    @property
    def pgbench_clients(self):
        return _best(self.rounds, "pgbench", "pairs_per_second")

    @property
    def redis_clients(self):
        return _best(self.rounds, "redis", "claims_per_second")

    def yardstick(self, round_):
        return round_["pgbench"][self.pgbench_clients]

    def _round(self, name):
        """One run of everything, yardsticks and coordinator taking turns."""
        plan = self._bench.plan
        runs = {"pgbench": {}, "redis": {}}

        def load(key, mode, in_flight, **flags):
            self._load(name, runs, key, mode, in_flight, **flags)

        def pgbench(turn):
            for clients in self._turn(turn, plan.pgbench_clients, "pgbench"):
                self._run_pgbench(name, runs, clients)

        def redis(turn):
            for clients in self._turn(turn, plan.redis_clients, "redis"):
                self._run_redis(name, runs, clients)

        pgbench(0)
        load("pairs_64", "pairs", 64)
        load("echo_64", "echo", 64)
        pgbench(1)
        load("pairs_256", "pairs", 256)
        load("echo_256", "echo", 256)
        load("grpc_client", "pairs", 256, bulk="never")
        load("bulk", "pairs", 1024, bulk="auto")
        pgbench(2)
        load("replays", "replay", 256)
        redis(0)
        load("claims", "claim", 256)
        redis(1)
        load("bulk_claims", "claim", 1024, bulk="auto")
        redis(2)
        return runs

    def _turn(self, turn, clients, kind):
        """Which numbers of clients of a yardstick run in this turn of three:
        one each, or the best of the first round in the second turn."""
        if self._bench.plan.every_yardstick or not self.rounds:
            return clients[turn:turn + 1]
        if turn != 1:
            return ()
        return (self.pgbench_clients if kind == "pgbench"
                else self.redis_clients,)

    def _run_pgbench(self, name, runs, clients):
        run = self._pgbench.pairs(clients, self._bench.plan.pgbench_seconds)
        self._bench.other_shares.append(run["other_share"])
        runs["pgbench"][clients] = run
        self._say(f"{name}: pgbench, {clients} clients: "
                  f"{run['pairs_per_second']:,.0f} pairs/s")

    def _run_redis(self, name, runs, clients):
        run = self._redis.claims(clients, self._bench.plan.redis_seconds)
        runs["redis"][clients] = run
        self._say(f"{name}: Redis, {clients} clients: "
                  f"{run['claims_per_second']:,.0f} claims/s")

    def _load(self, name, runs, key, mode, in_flight, **flags):
        server = self._echo if mode == "echo" else self._coordinator
        self._bench.empty(server)
        run = self._bench.load(server, mode, in_flight, **flags)
        runs[key] = run
        done = (f"{run['pairs_per_second']:,.0f} pairs/s"
                if mode == "pairs"
                else f"{run['calls_per_second']:,.0f} calls/s")
        self._say(f"{name}: {key}, {in_flight} in flight: {done}")

    def _measure_sweep(self):
        plan = self._bench.plan
        for in_flight in (64, 256):
            self.sweep[in_flight] = [r[f"pairs_{in_flight}"]
                                     for r in self.rounds]
        for in_flight in plan.sweep_in_flight * plan.sweep_passes:
            runs = {}
            self._load("sweep", runs, "pairs", "pairs", in_flight)
            self.sweep.setdefault(in_flight, []).append(runs["pairs"])

    def ratio_rows(self):
        def pgbench(r):
            return self.yardstick(r)["pairs_per_second"]

        def pgbench_cpu(r):
            return self.yardstick(r)["cpu_us_per_pair"]["database"]

        def redis(r):
            return r["redis"][self.redis_clients]["claims_per_second"]

        def pairs(name):
            return lambda r: r[name]["pairs_per_second"]

        def calls(name):
            return lambda r: r[name]["calls_per_second"]

        def server(name):
            return lambda r: r[name]["cpu_us_per_call"]["server"]

        def database(name):
            return lambda r: r[name]["cpu_us_per_pair"]["database"]

        def row(name, over, under, goal=None):
            return Row(name, median_ratio(self.rounds, over, under), "ratio",
                       goal)

        return [
            row("unary_pairs_vs_pgbench", pairs("pairs_256"), pgbench,
                ">= 2.0"),
            row("unary_pairs_vs_pgbench_at_64", pairs("pairs_64"), pgbench,
                ">= 1.6"),
            row("unary_pairs_grpc_client_vs_pgbench", pairs("grpc_client"),
                pgbench, ">= 1.5"),
            row("bulk_pairs_vs_pgbench", pairs("bulk"), pgbench, ">= 5"),
            row("server_cpu_per_call_vs_echo", server("pairs_256"),
                server("echo_256"), "<= 1.2"),
            row("server_cpu_per_call_vs_echo_at_64", server("pairs_64"),
                server("echo_64")),
            row("pg_cpu_per_pair_vs_pgbench", database("pairs_256"),
                pgbench_cpu, "<= 0.2"),
            row("pg_cpu_per_pair_vs_pgbench_at_64", database("pairs_64"),
                pgbench_cpu),
            row("pg_cpu_per_pair_vs_pgbench_bulk", database("bulk"),
                pgbench_cpu),
            row("claims_vs_redis", calls("claims"), redis, ">= 1.0"),
            row("claims_vs_redis_bulk", calls("bulk_claims"), redis, ">= 2"),
            row("replay_vs_echo", calls("replays"), calls("echo_256"),
                ">= 0.9"),
        ]

    def absolute_rows(self):
        rows = []
        for name in ("pairs_256", "pairs_64", "grpc_client", "bulk"):
            rows += self._pair_rows(name)
        for name in ("claims", "bulk_claims", "replays", "echo_256",
                     "echo_64"):
            rows += [
                Row(name + "_rate", self._median(
                    name, lambda r: r["calls_per_second"]), "calls/s"),
                Row(name + "_server_cpu", self._median(
                    name, lambda r: r["cpu_us_per_call"]["server"]),
                    "us/call")]
        return rows + self._yardstick_rows()

    def _pair_rows(self, name):
        rows = [Row(name + "_rate", self._median(
            name, lambda r: r["pairs_per_second"]), "pairs/s")]
        for call in ("claim", "finalize"):
            for quantile in ("p50", "p99"):
                rows.append(Row(f"{name}_{call}_{quantile}", self._median(
                    name, lambda r: r[call + "_ms"][quantile]), "ms"))
        for part, short in (("server", "server"), ("database", "pg"),
                            ("client", "client")):
            rows.append(Row(f"{name}_{short}_cpu", self._median(
                name, lambda r: r["cpu_us_per_pair"][part]), "us/pair"))
        return rows

    def _yardstick_rows(self):
        def pgbench(value):
            return median(self.rounds, lambda r: value(self.yardstick(r)))

        return [
            Row("pgbench_clients", self.pgbench_clients, "clients"),
            Row("pgbench_rate", pgbench(lambda r: r["pairs_per_second"]),
                "pairs/s"),
            Row("pgbench_pg_cpu", pgbench(
                lambda r: r["cpu_us_per_pair"]["database"]), "us/pair"),
            Row("pgbench_client_cpu", pgbench(
                lambda r: r["cpu_us_per_pair"]["client"]), "us/pair"),
            Row("redis_clients", self.redis_clients, "clients"),
            Row("redis_rate", median(
                self.rounds, lambda r: r["redis"][self.redis_clients][
                    "claims_per_second"]), "claims/s"),
        ]

    def _median(self, name, value):
        return median(self.rounds, lambda r: value(r[name]))


def _best(rounds, kind, rate):
    """The number of clients that did best, of those that every round has."""
    return max(rounds[-1][kind], key=lambda clients: median(
        rounds, lambda r: r[kind][clients][rate]))
