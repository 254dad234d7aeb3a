"""How fast the server's reaper deletes expired records, and what that costs its
callers."""

import records
from processes import BenchmarkError, Sampler
from report import Row, median, median_ratio

_DATABASE = "reaper"


class Reaper:
    """`peak_pairs` a second are what the coordinator does in a closed loop."""

    def __init__(self, bench, peak_pairs, say):
        self._bench = bench
        self._pairs_per_second = peak_pairs / 2
        self._say = say
        self._rounds = []

    def measure(self):
        plan = self._bench.plan
        # Its server makes the table and the record that the others copy.
        self._bench.stop(self._bench.start_coordinator(_DATABASE))
        for number in range(1, plan.reaper_rounds + 1):
            calm, reaping = self._run(0), self._run(round(
                plan.reaper_rows_per_second
                * (plan.reaper_seconds + plan.warm_up)))
            self._rounds.append({"calm": calm, "reaping": reaping})
            self._say(f"reaper {number} of {plan.reaper_rounds}: "
                      f"{reaping['deleted_per_second']:,.0f} rows/s; Claim p99 "
                      f"{reaping['claim_ms']['p99']:.1f} ms, without it "
                      f"{calm['claim_ms']['p99']:.1f} ms")

    def _run(self, expired):
        """Half the peak arrives, beside the deletion of so many records."""
        cluster = self._bench.cluster
        # What the round before has left of them.
        cluster.sql(_DATABASE, "DELETE FROM idempotency_records "
                    "WHERE expires_at < now()")
        if expired > 0:
            records.insert(cluster, _DATABASE, expired,
                           "now() - interval '1 hour' + i * interval '1 us'")
        cluster.sql(_DATABASE, "VACUUM ANALYZE idempotency_records")
        cluster.checkpoint()
        # The reaper begins when its server does.
        server = self._bench.start_coordinator(_DATABASE)
        run = self._bench.arrivals(
            server, self._pairs_per_second, self._bench.plan.reaper_seconds,
            sampler=Sampler(
                lambda: server.metric("idempotency_reaper_rows_total")))
        self._bench.stop(server)
        if expired > 0:
            run["deleted_per_second"] = self._rate_of(run["samples"])
        return run

    def _rate_of(self, samples):
        """Deleted rows a second, while there was something to delete."""
        done = samples[-1][1]
        end = next(i for i, (_, rows) in enumerate(samples) if rows == done)
        deleted, seconds = (done - samples[0][1],
                            samples[end][0] - samples[0][0])
        if deleted == 0:
            raise BenchmarkError("the reaper deleted nothing, or was done "
                                 "before the measuring began")
        measured = samples[-1][0] - samples[0][0]
        if seconds < 0.8 * measured:
            self._say(f"the expired records were gone after {seconds:.1f} of "
                      f"{measured:.1f} seconds")
        return deleted / seconds

    def rows(self):
        return [
            Row("reaper", median(
                self._rounds, lambda r: r["reaping"]["deleted_per_second"]),
                "rows/s", ">= 20000"),
            Row("reaper_claim_p99", median_ratio(
                self._rounds, lambda r: r["reaping"]["claim_ms"]["p99"],
                lambda r: r["calm"]["claim_ms"]["p99"]), "ratio", "<= 2"),
        ]
