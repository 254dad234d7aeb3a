"""A private PostgreSQL cluster."""

import os
import shutil
import signal
import subprocess
import tempfile
import time

import processes
from processes import BenchmarkError

# Where the durability of a commit means what it says: not in memory.
DATA_PARENT = "/var/tmp"
_SETTINGS = {
    "listen_addresses": "",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "max_connections": "200",
}


class Cluster:
    """Made by the constructor, gone after close(). `folder` holds its socket.
    """

    def __init__(self, log):
        self._binaries = processes.postgres_binaries()
        self._user = processes.unprivileged_user()
        self._postmaster = None
        self.folder = tempfile.mkdtemp(prefix="idempotency-benchmark-",
                                        dir=DATA_PARENT)
        try:
            self._start(log)
        except BaseException:
            self.close()
            raise

    def _start(self, log):
        if self._user is not None:
            os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
        data = os.path.join(self.folder, "data")
        processes.run([self.binary("initdb"), "-D", data, "-U", "postgres",
                       "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8",
                       "--no-sync"], user=self._user)
        command = [self.binary("postgres"), "-D", data, "-k", self.folder]
        for name, value in _SETTINGS.items():
            command += ["-c", f"{name}={value}"]
        self._postmaster = processes.start(
            command, log, stop_signal=signal.SIGINT, user=self._user)
        self._wait_until_ready()

    def _wait_until_ready(self):
        deadline = time.monotonic() + 60
        command = [self.binary("pg_isready"), "-q", "-h", self.folder]
        while subprocess.run(command, check=False).returncode != 0:
            if self._postmaster.poll() is not None:
                raise BenchmarkError("PostgreSQL did not start")
            if time.monotonic() > deadline:
                raise BenchmarkError("PostgreSQL did not get ready")
            time.sleep(0.05)

    def binary(self, name):
        return os.path.join(self._binaries, name)

    def uri(self, database, folder=None):
        """`folder` is that of another socket that leads to the cluster."""
        return (f"postgresql:///{database}?host={folder or self.folder}"
                "&user=postgres")

    def create_database(self, name):
        self.sql("postgres", f"CREATE DATABASE {name}")

    def drop_database(self, name):
        """Whoever is connected to it is thrown out."""
        self.sql("postgres", f"DROP DATABASE {name} WITH (FORCE)",
                 seconds=1800)

    def sql(self, database, *statements, seconds=120):
        """Runs each statement by itself; returns what the last one printed."""
        output = ""
        for statement in statements:
            output = processes.run(
                [self.binary("psql"), "-X", "-q", "-t", "-A", "-v",
                 "ON_ERROR_STOP=1", "-d", self.uri(database), "-c", statement],
                seconds=seconds)
        return output.strip()

    def cpu_seconds(self):
        return processes.tree_cpu(self._postmaster.pid)

    def checkpoint(self):
        """So that none falls into the next measurement."""
        self.sql("postgres", "CHECKPOINT", seconds=1800)

    def truncate(self, database, *tables):
        """Empties the tables, so that every measurement begins alike."""
        self.sql(database, "SET lock_timeout = '10s'; "
                 f"TRUNCATE {', '.join(tables)}")

    def close(self):
        if self._postmaster is not None:
            processes.stop(self._postmaster, signal.SIGINT)
        shutil.rmtree(self.folder, ignore_errors=True)
