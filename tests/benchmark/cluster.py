"""A private PostgreSQL cluster, and pgbench with the article's statements."""

import glob
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

import processes
from processes import BenchmarkError

# Where the durability of a commit means what it says: not in memory.
_DATA_PARENT = "/var/tmp"
_SETTINGS = {
    "listen_addresses": "",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "max_connections": "200",
}

_ARTICLE_TABLE = """
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
_ARTICLE_SCRIPT = r"""
\set a random(100000000000000000, 999999999999999999)
\set b random(100000000000000000, 999999999999999999)
INSERT INTO idempotency_records (key, request_hash, in_flight, expires_at)
VALUES (:a::text || :b::text, :hash, TRUE, now() + interval '24 hours')
ON CONFLICT (key) DO NOTHING;
UPDATE idempotency_records
SET status_code = :status, headers = :headers, body = :body,
    in_flight = FALSE, expires_at = now() + interval '24 hours'
WHERE key = :a::text || :b::text;
"""

_HEADERS = ('{"content-type":"application/json",'
            '"location":"/payments/pay_5f0c6a2e9b71",'
            '"x-request-id":"7d1f9a40c2e84b1f"}')


def find_binaries():
    """The folder of the newest PostgreSQL that is installed."""
    found = glob.glob("/usr/lib/postgresql/*/bin/postgres")
    if found:
        newest = max(found, key=lambda path: int(path.split("/")[4]))
        return os.path.dirname(newest)
    path = shutil.which("postgres")
    if path is None:
        raise BenchmarkError("PostgreSQL is not installed")
    return os.path.dirname(path)


class Cluster:
    """Made by the constructor, gone after close()."""

    def __init__(self, log):
        self._binaries = find_binaries()
        self._user = processes.unprivileged_user()
        self._postmaster = None
        self._folder = tempfile.mkdtemp(prefix="idempotency-benchmark-",
                                        dir=_DATA_PARENT)
        try:
            self._start(log)
            self._create_databases()
        except BaseException:
            self.close()
            raise

    def _start(self, log):
        if self._user is not None:
            os.chown(self._folder, self._user.pw_uid, self._user.pw_gid)
        data = os.path.join(self._folder, "data")
        processes.run([self._binary("initdb"), "-D", data, "-U", "postgres",
                       "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8",
                       "--no-sync"], user=self._user)
        command = [self._binary("postgres"), "-D", data, "-k", self._folder]
        for name, value in _SETTINGS.items():
            command += ["-c", f"{name}={value}"]
        self._postmaster = processes.start(
            command, log, stop_signal=signal.SIGINT, user=self._user)
        self._wait_until_ready()

    def _wait_until_ready(self):
        deadline = time.monotonic() + 60
        command = [self._binary("pg_isready"), "-q", "-h", self._folder]
        while subprocess.run(command, check=False).returncode != 0:
            if self._postmaster.poll() is not None:
                raise BenchmarkError("PostgreSQL did not start")
            if time.monotonic() > deadline:
                raise BenchmarkError("PostgreSQL did not get ready")
            time.sleep(0.05)

    def _create_databases(self):
        self.sql("postgres", "CREATE DATABASE article")
        self.sql("postgres", "CREATE DATABASE coordinator")
        self.sql("article", _ARTICLE_TABLE)
        with open(os.path.join(self._folder, "article.sql"), "w",
                  encoding="ascii") as file:
            file.write(_ARTICLE_SCRIPT)

    def _binary(self, name):
        return os.path.join(self._binaries, name)

    def uri(self, database):
        return f"postgresql:///{database}?host={self._folder}&user=postgres"

    def sql(self, database, *statements):
        """Runs each statement by itself; returns what the last one printed."""
        output = ""
        for statement in statements:
            output = processes.run(
                [self._binary("psql"), "-X", "-q", "-t", "-A", "-v",
                 "ON_ERROR_STOP=1", "-d", self.uri(database), "-c", statement])
        return output.strip()

    def cpu_seconds(self):
        return processes.tree_cpu(self._postmaster.pid)

    def start_afresh(self, database, *tables):
        """Empties the tables, so that every measurement begins alike, and
        checkpoints, so that no checkpoint falls into it."""
        self.sql(database, "SET lock_timeout = '10s'; "
                 f"TRUNCATE {', '.join(tables)}", "CHECKPOINT")

    def pgbench(self, clients, seconds):
        """Pairs of the article's statements from so many clients at once."""
        self.start_afresh("article", "idempotency_records")
        command = [
            self._binary("pgbench"), "-n", "-M", "prepared", "-c",
            str(clients), "-j", "2", "-T", str(seconds),
            "-f", os.path.join(self._folder, "article.sql"),
            "-D", "hash=" + "5f" * 16, "-D", "status=201",
            "-D", "headers=" + _HEADERS, "-D", r"body=\x" + "6e" * 200,
            self.uri("article")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        try:
            watch = processes.CpuWatch({
                "database": self.cpu_seconds,
                "client": lambda: processes.process_cpu(process.pid),
                "machine": processes.machine_cpu})
            # The sleeping keeps the connecting and the end out of the CPU
            # figures; the rate that pgbench prints leaves connecting out too.
            time.sleep(0.6)
            watch.begin()
            time.sleep(seconds - 0.8)
            cpu = watch.end()
            output, errors = process.communicate(timeout=60)
        except FileNotFoundError:
            output, errors = process.communicate(timeout=60)
            raise BenchmarkError("pgbench ended early: " + errors) from None
        finally:
            processes.stop(process)
        if process.returncode != 0:
            raise BenchmarkError("pgbench failed: " + errors)
        return self._pgbench_result(clients, output, cpu)

    def _pgbench_result(self, clients, output, cpu):
        rate = float(re.search(r"^tps = ([0-9.]+)", output, re.M).group(1))
        done = int(re.search(r"processed: (\d+)", output).group(1))
        rows = self.sql("article", "SELECT count(*), count(*) FILTER (WHERE "
                        "NOT in_flight AND length(key) = 36 AND "
                        "length(body) = 200) FROM idempotency_records")
        if rows != f"{done}|{done}":
            raise BenchmarkError(f"pgbench did {done} pairs, but the table "
                                 f"has {rows} rows and finished rows")
        machine = cpu.pop("machine")
        return {"clients": clients, "pairs_per_second": rate,
                "other_share": processes.other_share(machine, cpu.values()),
                "cpu_us_per_pair": {name: share / rate * 1e6
                                    for name, share in cpu.items()}}

    def close(self):
        if self._postmaster is not None:
            processes.stop(self._postmaster, signal.SIGINT)
        shutil.rmtree(self._folder, ignore_errors=True)
