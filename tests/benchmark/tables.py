"""What depends on the table: how long its rows become, how many they are."""

import time

import records
from processes import BenchmarkError
from report import Row, median_ratio

_BODIES = {"": 200, "_1k": 1024, "_16k": 16 * 1024}
_IN_FLIGHT = 256
# Backends tell their counts at the first commit that is a second after they
# last did.
_COUNTS_LAG_SECONDS = 1.1


class Tables:
    """`sizes` has the rounds of each number of records: runs with a table of
    that size ("big") and with one that was empty ("empty")."""

    def __init__(self, bench, coordinator, say):
        self._bench = bench
        self._coordinator = coordinator
        self._say = say
        self._hot_percent = {}
        self.sizes = {}

    def measure(self):
        before = self._updates()
        for name, size in _BODIES.items():
            before = self._measure_hot(name, size, before)
        for rows in self._bench.plan.table_rows:
            self.sizes[rows] = self._measure_size(rows)
        self._bench.drop_database("big")

    def _measure_hot(self, name, body_bytes, before):
        """`before`: the updates by then. Returns those afterwards."""
        self._bench.empty(self._coordinator)
        self._bench.load(self._coordinator, "pairs", _IN_FLIGHT,
                         seconds=self._bench.plan.body_seconds,
                         body_bytes=body_bytes)
        after = self._updates()
        updates, hot = (now - then for now, then in zip(after, before))
        if updates == 0:
            raise BenchmarkError("PostgreSQL has counted no update")
        self._hot_percent[name] = 100 * hot / updates
        self._say(f"bodies of {body_bytes:,} bytes: "
                  f"{self._hot_percent[name]:.1f} % of {updates:,} updates "
                  "were HOT")
        return after

    def _updates(self):
        """Updates of the table since it was made, and those that were HOT."""
        time.sleep(_COUNTS_LAG_SECONDS)
        self._bench.load(self._coordinator, "pairs", 64, seconds=0.01,
                         warm_up=0.02)
        counts = self._bench.cluster.sql(
            self._coordinator.database, "SELECT n_tup_upd, n_tup_hot_upd FROM "
            "pg_stat_user_tables WHERE relname = 'idempotency_records'")
        return [int(count) for count in counts.split("|")]

    def _measure_size(self, rows):
        plan, cluster = self._bench.plan, self._bench.cluster
        self._say(f"making {rows:,} records")
        # Its server makes the table and the record that the others copy.
        self._bench.stop(self._bench.start_coordinator("big"))
        records.grow(cluster, "big", rows)
        big = self._bench.start_coordinator("big")
        # The only one: a page's first change after a checkpoint costs a copy of
        # the page, which is not what the size of a table costs all the time.
        cluster.checkpoint()
        self._bench.load(big, "pairs", _IN_FLIGHT, seconds=plan.table_warm_up)
        rounds = []
        for number in range(1, plan.table_rounds + 1):
            cluster.truncate(self._coordinator.database, "idempotency_records")
            runs = {"empty": self._bench.load(self._coordinator, "pairs",
                                              _IN_FLIGHT),
                    "big": self._bench.load(big, "pairs", _IN_FLIGHT)}
            rounds.append(runs)
            self._say(f"table {number} of {plan.table_rounds}: {rows:,} "
                      f"records: {runs['big']['pairs_per_second']:,.0f} "
                      "pairs/s; empty: "
                      f"{runs['empty']['pairs_per_second']:,.0f} pairs/s")
        self._bench.stop(big)
        return rounds

    def rows(self):
        rows = [Row("hot_updates", self._hot_percent[""], "%", ">= 95")]
        for rounds_rows, rounds in self.sizes.items():
            rows.append(self._size_row(rounds_rows, rounds))
        return rows + [Row("hot_updates" + name, percent, "%")
                       for name, percent in self._hot_percent.items() if name]

    @staticmethod
    def _size_row(count, rounds):
        """The goal is set for ten million."""
        ratio = median_ratio(rounds, lambda r: r["big"]["pairs_per_second"],
                             lambda r: r["empty"]["pairs_per_second"])
        if count == 10_000_000:
            return Row("big_table", ratio, "ratio", ">= 0.85")
        short = (f"{count // 1_000_000}m" if count >= 1_000_000
                 else f"{count // 1000}k")
        return Row("big_table_" + short, ratio, "ratio")
