"""The yardsticks inside PostgreSQL: pgbench with the article's statements."""

import glob
import os
import re
import statistics
import subprocess
import time

import processes
from processes import BenchmarkError

_DATABASE = "article"
_TABLE = """
CREATE TABLE idempotency_records (
  key TEXT PRIMARY KEY,
  request_hash TEXT NOT NULL,
  status_code INTEGER,
  headers JSONB,
  body BYTEA,
  in_flight BOOLEAN NOT NULL DEFAULT TRUE,
  created_at TIMESTAMPTZ NOT NULL DEFAULT NOW(),
  expires_at TIMESTAMPTZ NOT NULL
);
CREATE INDEX idx_idempotency_expires ON idempotency_records(expires_at);
"""

# Two numbers of 18 digits make a random key of 36 bytes.
_INSERT = r"""
\set a random(100000000000000000, 999999999999999999)
\set b random(100000000000000000, 999999999999999999)
INSERT INTO idempotency_records (key, request_hash, in_flight, expires_at)
VALUES (:a::text || :b::text, :hash, TRUE, now() + interval '24 hours')
ON CONFLICT (key) DO NOTHING;
"""
_UPDATE = r"""
UPDATE idempotency_records
SET status_code = :status, headers = :headers, body = :body,
    in_flight = FALSE, expires_at = now() + interval '24 hours'
WHERE key = :a::text || :b::text;
"""

_HEADERS = ('{"content-type":"application/json",'
            '"location":"/payments/pay_5f0c6a2e9b71",'
            '"x-request-id":"7d1f9a40c2e84b1f"}')
_VARIABLES = {"hash": "5f" * 16, "status": "201", "headers": _HEADERS,
              "body": r"\x" + "6e" * 200}

# Of a run, how much is left out of the CPU figures: connecting, and the end.
_CPU_BEGINS = 0.3
_CPU_ENDS = 0.2


class Pgbench:
    """Works in a database of its own, which the constructor makes."""

    def __init__(self, cluster):
        self._cluster = cluster
        self._scripts = {}
        cluster.create_database(_DATABASE)
        cluster.sql(_DATABASE, _TABLE)
        for name, script in (("pairs", _INSERT + _UPDATE),
                             ("insert", _INSERT)):
            self._scripts[name] = os.path.join(cluster.folder, name + ".sql")
            with open(self._scripts[name], "w", encoding="ascii") as file:
                file.write(script)

    def _start(self, script, clients, seconds, *flags):
        self._cluster.truncate(_DATABASE, "idempotency_records")
        self._cluster.checkpoint()
        command = [self._cluster.binary("pgbench"), "-n", "-M", "prepared",
                   "-c", str(clients), "-j", str(min(clients, 2)),
                   "-T", str(seconds), "-f", self._scripts[script], *flags]
        for name, value in _VARIABLES.items():
            command += ["-D", f"{name}={value}"]
        return subprocess.Popen(
            command + [self._cluster.uri(_DATABASE)], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True)

    @staticmethod
    def _finish(process, seconds):
        output, errors = process.communicate(timeout=seconds + 60)
        if process.returncode != 0:
            raise BenchmarkError("pgbench failed: " + errors)
        return output

    def pairs(self, clients, seconds):
        """Pairs of both statements from so many clients at once."""
        process = self._start("pairs", clients, seconds)
        try:
            watch = processes.CpuWatch({
                "database": self._cluster.cpu_seconds,
                "client": lambda: processes.process_cpu(process.pid),
                "machine": processes.machine_cpu})
            # The rate that pgbench prints leaves connecting out too.
            time.sleep(_CPU_BEGINS)
            watch.begin()
            time.sleep(seconds - _CPU_BEGINS - _CPU_ENDS)
            cpu = watch.end()
            output = self._finish(process, seconds)
        except FileNotFoundError:
            self._finish(process, seconds)
            raise BenchmarkError("pgbench ended early") from None
        finally:
            processes.stop(process)
        rate = float(re.search(r"^tps = ([0-9.]+)", output, re.M).group(1))
        self._check_pairs(
            int(re.search(r"processed: (\d+)", output).group(1)))
        machine = cpu.pop("machine")
        return {"clients": clients, "pairs_per_second": rate,
                "other_share": processes.other_share(machine, cpu.values()),
                "cpu_us_per_pair": {name: share / rate * 1e6
                                    for name, share in cpu.items()}}

    def _check_pairs(self, done):
        rows = self._cluster.sql(
            _DATABASE, "SELECT count(*), count(*) FILTER (WHERE NOT in_flight "
            "AND length(key) = 36 AND length(body) = 200) "
            "FROM idempotency_records")
        if rows != f"{done}|{done}":
            raise BenchmarkError(f"pgbench did {done} pairs, but the table "
                                 f"has {rows} rows and finished rows")

    def insert_p50_ms(self, seconds):
        """Median of the first statement by itself, one at a time."""
        prefix = os.path.join(self._cluster.folder, "latency")
        process = self._start("insert", 1, max(1, round(seconds)), "--log",
                              "--log-prefix=" + prefix)
        try:
            self._finish(process, seconds)
        finally:
            processes.stop(process)
        times = []
        for path in glob.glob(prefix + ".*"):
            with open(path, encoding="ascii") as file:
                times += [int(line.split()[2]) for line in file]
            os.remove(path)
        if not times:
            raise BenchmarkError("pgbench inserted nothing")
        return statistics.median(times) / 1e3
