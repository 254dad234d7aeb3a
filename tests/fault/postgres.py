"""PostgreSQL nodes that a fault run starts, hurts, promotes and rebuilds.

Everything waits for at most as long as it says and raises ProgramError then.
Nodes are started by the thread that imports this, which must outlive them;
they end with the process, also by a SIGTERM if end_on_sigterm() was called.
"""

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..",
                             "support"))
import programs
from ports import free_port
from programs import ProgramDied, ProgramError

# Not in memory, so that a full disk and a slow fsync are real.
_PARENT = "/var/tmp"
_USER = "postgres"
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "shared_buffers": "64MB",
    "max_connections": "100",
    "wal_level": "replica",
    "max_wal_senders": "10",
    "max_replication_slots": "10",
    "wal_keep_size": "256MB",
    "wal_log_hints": "on",  # for pg_rewind
    # One call instead of one for each of 1,000 files.
    "recovery_init_sync_method": "syncfs",
    "hot_standby": "on",
    "wal_receiver_status_interval": "1s",
    "wal_retrieve_retry_interval": "200ms",
    "log_line_prefix": "%m [%p] ",
}
_living = set()


def _close_all():
    for node in list(_living):
        node.close()


atexit.register(_close_all)


def end_on_sigterm():
    """Lets SIGTERM end the process as sys.exit() does, nodes and all."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def wait_until(what, condition, seconds=30, pause=0.05):
    """Returns what `condition` returns once that is true of anything."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise ProgramError(f"not within {seconds} s: {what}")
        time.sleep(pause)


def _literal(text):
    return "'" + str(text).replace("'", "''") + "'"


def _children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(child) for child in file.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def send_signal(pid, which):
    """Returns whether there was such a process."""
    try:
        os.kill(pid, which)
        return True
    except ProcessLookupError:
        return False


def _has_ended(pid):
    """Also of one that nobody has reaped yet."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii",
                  errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


class PostgresNode:
    """One node in a folder of its own, on 127.0.0.1:`port` and on the socket in
    `folder`. Made without data: make() or clone() it, then start() it.

    `log` is the path of its log. `parent` is where its folder goes.
    """

    def __init__(self, name, log, parent=_PARENT, **settings):
        self.name = name
        self.port = free_port()
        self._binaries = programs.postgres_binaries()
        self._user = programs.unprivileged_user()
        self.log = log
        self._settings = {**_SETTINGS, **settings}
        self._postmaster = None
        self._stopped = False  # by pause()
        self.folder = tempfile.mkdtemp(prefix=f"idempotency-{name}-",
                                       dir=parent)
        self.data = os.path.join(self.folder, "data")
        if self._user is not None:
            os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
        _living.add(self)

    # Making and rebuilding.

    def make(self):
        """An empty cluster, as initdb makes it."""
        self._run("initdb", "-D", self.data, "-U", _USER, "-A", "trust", "-E",
                  "UTF8", "--locale=C.UTF-8", "--no-sync")
        self._write(os.path.join(self.data, "postgresql.conf"),
                    "include 'node.conf'\n", mode="a")
        self._write_settings()

    def clone(self, primary, application_name, host=None, port=None):
        """Becomes a standby of `primary`, whose data it copies; what it had is
        gone. It reaches the primary by its socket, or by `host` and `port`,
        behind which a gate may be. Not started yet."""
        shutil.rmtree(self.data, ignore_errors=True)
        primary.make_slot(application_name)
        self._run("pg_basebackup", "-h", primary.folder, "-p",
                  str(primary.port), "-U", _USER, "-D", self.data, "-X",
                  "stream", "-S", application_name, "-c", "fast", "--no-sync")
        self._follow(primary, application_name, host, port)

    def rewind(self, primary, application_name, host=None, port=None):
        """As clone() for one that was a primary, or a standby, of the same
        cluster: takes only what differs. The node must not run."""
        primary.make_slot(application_name)
        # What pg_rewind compares with must say that the timeline has changed.
        primary.sql("CHECKPOINT")
        self._run("pg_rewind", "-D", self.data, "--source-server="
                  f"host={primary.folder} port={primary.port} user={_USER} "
                  "dbname=postgres", "--no-sync")
        self._follow(primary, application_name, host, port)

    def make_slot(self, name):
        """Makes a replication slot unless there is one that nobody uses."""
        wait_until(f"the slot {name} of {self.name} is free", lambda: self.sql(
            "SELECT count(*) FROM pg_replication_slots WHERE active AND "
            f"slot_name = {_literal(name)}") == "0", seconds=60)
        self.drop_slot(name)
        self.sql("SELECT pg_create_physical_replication_slot("
                 f"{_literal(name)}, true)")

    def drop_slot(self, name):
        self.sql("SELECT pg_drop_replication_slot(slot_name) FROM "
                 "pg_replication_slots WHERE NOT active AND "
                 f"slot_name = {_literal(name)}")

    def _follow(self, primary, application_name, host, port):
        self._write(os.path.join(self.data, "standby.signal"), "")
        self._settings["primary_conninfo"] = (
            f"host={host or primary.folder} port={port or primary.port} "
            f"user={_USER} application_name={application_name} "
            "connect_timeout=3")
        self._settings["primary_slot_name"] = application_name
        self._write_settings()

    # Settings.

    def set(self, **settings):
        """Sets them, and applies them if the node runs and they can be."""
        self._settings.update(settings)
        self._write_settings()
        if not self.is_up():
            return
        self.reload()
        for name, value in settings.items():
            wait_until(f"{self.name} has {name} = {value!r}",
                       lambda: self._is_set(name, value))

    def _is_set(self, name, value):
        # current_setting() would print it with another unit.
        return self.sql(
            "SELECT count(*) FROM pg_file_settings f JOIN pg_settings s "
            "USING (name) WHERE applied AND s.sourcefile = f.sourcefile AND "
            f"s.sourceline = f.sourceline AND name = {_literal(name)} AND "
            f"f.setting = {_literal(value)}") == "1"

    def require_standby(self, application_name):
        """Commits wait for that standby from now on; None: for no one."""
        self.set(synchronous_standby_names=application_name or "")

    def reload(self):
        send_signal(self._postmaster.pid, signal.SIGHUP)

    def _write_settings(self):
        lines = {**self._settings, "port": str(self.port),
                 "unix_socket_directories": self.folder}
        self._write(os.path.join(self.data, "node.conf"), "".join(
            f"{name} = {_literal(value)}\n" for name, value in lines.items()))

    def _write(self, path, text, mode="w"):
        with open(path, mode, encoding="utf-8") as file:
            file.write(text)
        if self._user is not None:
            os.chown(path, self._user.pw_uid, self._user.pw_gid)

    # Starting and ending.

    def start(self, seconds=60):
        """Returns when it takes connections, which a standby does when it has
        replayed all that it had."""
        self.launch()
        self.wait_until_up(seconds)

    def launch(self):
        """start() that does not wait."""
        if self._postmaster is not None and self._postmaster.poll() is None:
            raise ProgramError(f"{self.name} runs already")
        with open(self.log, "ab") as log:
            self._postmaster = programs.start(
                [self._binary("postgres"), "-D", self.data], log,
                stop_signal=signal.SIGQUIT, user=self._user)
        self._stopped = False

    def wait_until_up(self, seconds=60):
        """Raises ProgramDied unless it comes up."""
        deadline = time.monotonic() + seconds
        while not self.is_up():
            if not self.is_running():
                raise ProgramDied(f"PostgreSQL {self.name} did not start; see "
                                  f"{self.log}")
            if time.monotonic() > deadline:
                raise ProgramDied(f"PostgreSQL {self.name} takes no "
                                  f"connections after {seconds} s; see "
                                  f"{self.log}")
            time.sleep(0.05)

    def is_running(self):
        return self._postmaster is not None and self._postmaster.poll() is None

    def is_up(self):
        """Does it take connections?"""
        if not self.is_running() or self._stopped:
            return False
        return subprocess.run(
            [self._binary("pg_isready"), "-q", "-t", "2", "-h", self.folder,
             "-p", str(self.port)], check=False).returncode == 0

    def stop(self, mode="fast", seconds=60):
        """`mode` is fast, which ends sessions and writes a checkpoint that the
        standby gets too; or immediate, after which the start recovers."""
        if not self.is_running():
            return
        self.resume()
        self._postmaster.send_signal({"fast": signal.SIGINT,
                                      "immediate": signal.SIGQUIT}[mode])
        try:
            self._postmaster.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ProgramError(f"{self.name} did not stop within {seconds} s; "
                               "it was killed") from None

    def kill(self):
        """SIGKILL to the postmaster and all that it started."""
        if not self.is_running():
            return
        # The postmaster first, or it would start anew what ended.
        children = self._signal_all(signal.SIGKILL)
        self._postmaster.wait(30)
        wait_until(f"the processes of {self.name} have ended",
                   lambda: all(_has_ended(pid) for pid in children))
        self._stopped = False

    def pause(self):
        """SIGSTOP to the postmaster and all that it started. Its kernel goes on
        to take connections and bytes for it."""
        self._stopped = True
        self._signal_all(signal.SIGSTOP)

    def resume(self):
        if self._stopped and self.is_running():
            self._signal_all(signal.SIGCONT)
        self._stopped = False

    def _signal_all(self, which):
        """The children are those that there are once the postmaster has got
        the signal, so that none is missed that it just starts."""
        pid = self._postmaster.pid
        if which == signal.SIGKILL:
            send_signal(pid, signal.SIGSTOP)
            children = self.processes()
        send_signal(pid, which)
        if which != signal.SIGKILL:
            children = self.processes()
        for child in children:
            send_signal(child, which)
        return children

    def processes(self):
        """The pids of what the postmaster has started."""
        return _children(self._postmaster.pid) if self.is_running() else []

    def close(self):
        """Ends it at once and deletes its folder."""
        _living.discard(self)
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    # Asking.

    def uri(self, database="postgres", host=None, port=None):
        """`host` and `port` are those of a gate before it, or of several
        nodes, separated by commas."""
        return (f"postgresql:///{database}?host={host or '127.0.0.1'}"
                f"&port={port or self.port}&user={_USER}")

    def sql(self, statement, database="postgres", seconds=30):
        """What the statement printed: a line for each row, in which fields are
        separated by tabs."""
        return self._run(
            "psql", "-X", "-q", "-t", "-A", "-F", "\t", "-v",
            "ON_ERROR_STOP=1", "-d", f"host={self.folder} port={self.port} "
            f"user={_USER} dbname={database} connect_timeout=5", "-c",
            statement, seconds=seconds, user=None).rstrip("\n")

    def rows(self, statement, database="postgres", seconds=30):
        """The same as lists of texts."""
        return [line.split("\t") for line in
                self.sql(statement, database, seconds).splitlines()]

    def backends(self, condition="true"):
        """The pids of the clients' sessions that fit a condition on
        pg_stat_activity, other than the one that asks."""
        return [int(row[0]) for row in self.rows(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = "
            "'client backend' AND pid <> pg_backend_pid() AND "
            f"({condition})")]

    def waiting_for_standby(self):
        """The pids of the sessions whose commit waits for a standby."""
        return self.backends("wait_event = 'SyncRep'")

    # Replication.

    def is_standby(self):
        return self.sql("SELECT pg_is_in_recovery()") == "t"

    def promote(self, seconds=30):
        """Returns when it takes writes. It requires no standby from now on:
        the one that it may have required was itself."""
        self.require_standby(None)
        if self.sql(f"SELECT pg_promote(true, {seconds})",
                    seconds=seconds + 5) != "t":
            raise ProgramError(f"{self.name} was not promoted")
        # What it followed must not be followed again by chance.
        for name in ("primary_conninfo", "primary_slot_name"):
            self._settings.pop(name, None)
        self._write_settings()

    def replication(self, application_name):
        """(state, sync_state, bytes that it has not written to disk yet) of a
        standby, or None."""
        rows = self.rows(
            "SELECT state, sync_state, coalesce(pg_wal_lsn_diff("
            "pg_current_wal_lsn(), flush_lsn), 1e12)::bigint "
            "FROM pg_stat_replication WHERE state <> 'backup' AND "
            f"application_name = {_literal(application_name)}")
        return (rows[0][0], rows[0][1], int(rows[0][2])) if rows else None

    def wait_until_streaming(self, application_name, lag_max=65536,
                             seconds=60):
        """Until the standby streams and lags by at most so many bytes."""
        def is_streaming():
            found = self.replication(application_name)
            return (found is not None and found[0] == "streaming"
                    and found[2] <= lag_max)
        wait_until(f"{application_name} streams from {self.name}",
                   is_streaming, seconds)

    def timeline(self):
        """Of a primary; each promotion begins a new one."""
        return int(self.sql("SELECT substr(pg_walfile_name("
                            "pg_current_wal_lsn()), 1, 8)"), 16)

    def _binary(self, name):
        return os.path.join(self._binaries, name)

    def _run(self, program, *arguments, seconds=120, **user):
        command = [self._binary(program), *arguments]
        return programs.run(command, seconds=seconds,
                            **({"user": self._user} | user))
