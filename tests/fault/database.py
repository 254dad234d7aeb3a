"""The PostgreSQL that the servers of a fault run share, with the trigger that
logs every change of a record, and what a fault does to it."""

import contextlib
import os
import shutil
import signal
import subprocess

import programs
from postgres import PostgresNode, send_signal, wait_until
from programs import ProgramError
from servers import has_logged

NAME = "fault"
_CONNECTIONS = 30
_RESERVED = 8  # of them for us
# What a fault may change, as it is otherwise.
_USUAL = {"default_transaction_read_only": "off", "deadlock_timeout": "200ms"}
ROLE = "coordinator"
_SMALL_BYTES = 320 << 20
_RIVAL = "fault-rival"
_SERVERS = "application_name = 'idempotency-server'"
# As transitions.sql says.
_DUMP = """\
SET timezone = 'UTC'; SET datestyle = 'ISO';
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
\\o {transitions}
COPY (SELECT * FROM fault_transitions WHERE scope ~ '^{scope}(/|$)'
      ORDER BY seq) TO STDOUT (FORMAT text, HEADER);
\\o {dump}
COPY (SELECT clock_timestamp() AS at,
        sha256(headers || '\\x00'::bytea || body) AS stored_digest, r.*
      FROM idempotency_records AS r WHERE scope ~ '^{scope}(/|$)')
  TO STDOUT (FORMAT text, HEADER);
\\o {conflicts}
COPY (SELECT * FROM idempotency_conflicts WHERE scope ~ '^{scope}(/|$)')
  TO STDOUT (FORMAT text, HEADER);
COMMIT;
"""
# What left_keys.h says: the keys of a scope whose operations have no end.
_LEFT = """\
COPY (SELECT encode(convert_to(scope, 'UTF8'), 'hex'),
        encode(convert_to(key, 'UTF8'), 'hex'), encode(request_hash, 'hex'),
        CASE WHEN gave_up <> 0 THEN 0 ELSE ceil(1000 * extract(
          epoch FROM lease_expires_at - clock_timestamp()))::bigint END
      FROM idempotency_records
      WHERE in_flight AND scope ~ '^{scope}(/|$)'
      ORDER BY random() LIMIT {most}) TO STDOUT;
"""


def apply(node, path):
    """A file of SQL, by the role of the servers."""
    with open(path, encoding="utf-8") as file:
        node.sql(f"SET ROLE {ROLE}; " + file.read(), NAME)


def dump(node, scope, folder):
    """Writes the changes, the records and the evidence of a scope, as they are
    at one moment; returns the paths, for flags of those names."""
    paths = {name: os.path.join(folder, name + ".tsv")
             for name in ("transitions", "dump", "conflicts")}
    done = subprocess.run(
        _psql(node), input=_DUMP.format(scope=scope, **paths),
        capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise ProgramError("the dump failed: " + done.stderr.strip())
    return paths


def write_left_keys(node, scope, path, most):
    """The keys of a scope that callers have left unfinished."""
    with open(path, "w", encoding="ascii") as file:
        done = subprocess.run(
            _psql(node), input=_LEFT.format(scope=scope, most=most),
            stdout=file, stderr=subprocess.PIPE, text=True, timeout=60,
            check=False)
    if done.returncode != 0:
        raise ProgramError("no list of the keys left unfinished: "
                           + done.stderr.strip())


def _psql(node, role="postgres"):
    return [os.path.join(programs.postgres_binaries(), "psql"), "-X", "-q",
            "-v", "ON_ERROR_STOP=1", "-h", node.folder, "-p", str(node.port),
            "-d", f"dbname={NAME} user={role} application_name={_RIVAL}"]


class Database:
    """Up from the constructor to close(). Servers are its role `coordinator`,
    which is no superuser, so that used up connections leave one for us."""

    def __init__(self, log):
        self.node = PostgresNode(
            "fault", log, max_connections=str(_CONNECTIONS),
            superuser_reserved_connections=str(_RESERVED),
            max_wal_size="96MB", min_wal_size="32MB", wal_keep_size="0",
            autovacuum_naptime="5s", **_USUAL)
        self._mounts = []
        self._rivals = []
        try:
            self.node.make()
            # Folders on filesystems that are so small that they can be filled.
            self.small_data = self._mount_small("small_data")
            self.small_wal = self._mount_small("small_wal")
            if self.small_wal is not None:
                self._move_wal()
            self.node.start()
            self._make_database()
        except BaseException:
            self.close()
            raise

    @property
    def port(self):
        return self.node.port

    def uri_by(self, port):
        return (f"postgresql://{ROLE}@127.0.0.1:{port}/{NAME}"
                "?sslmode=disable&connect_timeout=3")

    def _mount_small(self, name):
        """The folder, or None where nothing can be mounted."""
        folder = os.path.join(self.node.folder, name)
        os.mkdir(folder)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={_SMALL_BYTES}", "tmpfs",
             folder], capture_output=True, check=False)
        if done.returncode != 0:
            return None
        self._mounts.append(folder)
        inner = os.path.join(folder, "postgresql")
        os.mkdir(inner, 0o700)
        self._give(inner)
        return inner

    def _give(self, path):
        user = programs.unprivileged_user()
        if user is not None:
            os.chown(path, user.pw_uid, user.pw_gid)

    def _move_wal(self):
        wal = os.path.join(self.node.data, "pg_wal")
        target = os.path.join(self.small_wal, "wal")
        shutil.copytree(wal, target)
        for folder, _, files in os.walk(target):
            os.chmod(folder, 0o700)
            for path in [folder, *(os.path.join(folder, f) for f in files)]:
                self._give(path)
        shutil.rmtree(wal)
        os.symlink(target, wal)

    def _make_database(self):
        self.node.sql(f"CREATE ROLE {ROLE} LOGIN")
        if self.small_data is not None:
            self.node.sql("CREATE TABLESPACE small LOCATION "
                          f"'{self.small_data}'")
            self.node.sql(f"CREATE DATABASE {NAME} OWNER {ROLE} "
                          "TABLESPACE small")
        else:
            self.node.sql(f"CREATE DATABASE {NAME} OWNER {ROLE}")
        # Away from the data, which may be full when they are needed.
        self.sql("CREATE TABLE rival_rows(id int PRIMARY KEY, n int)")

    def apply(self, path):
        apply(self.node, path)

    def sql(self, statement, seconds=30):
        return self.node.sql(statement, NAME, seconds)

    def rows(self, statement):
        """The same as lists of texts."""
        return self.node.rows(statement, NAME)

    def empty(self):
        """Between rounds, so that the small filesystem stays large enough."""
        self.sql("SET lock_timeout = '10s'; TRUNCATE idempotency_records, "
                 "idempotency_conflicts, fault_transitions")

    def sessions(self):
        """The pids of the servers' sessions, of which there is one at least."""
        return wait_until("servers have sessions",
                          lambda: self.node.backends(_SERVERS))

    def is_full(self):
        """Whether there is no connection left but for us."""
        return (len(self.node.backends(f"usename = '{ROLE}'"))
                >= _CONNECTIONS - _RESERVED)

    def deadlocks(self):
        """How many there have been; sessions tell it some time later."""
        return int(self.sql("SELECT deadlocks FROM pg_stat_database WHERE "
                            f"datname = '{NAME}'"))

    def logged(self):
        """The bytes of PostgreSQL's log, for has_logged()."""
        return os.path.getsize(self.node.log)

    def has_logged(self, words, since):
        return has_logged(self.node.log, words, since)

    def end_sessions(self):
        """All servers have to connect anew."""
        self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE "
                 + _SERVERS)

    def cancel_statements(self):
        self.sql("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE "
                 + _SERVERS)

    # Rivals: sessions that do something beside the servers.

    def rival(self, script, role="postgres"):
        """A session that runs these statements, one after the other, and ends;
        for wait_for()."""
        session = programs.start(
            _psql(self.node, role)
            + [part for line in script for part in ("-c", line)],
            subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self._rivals.append(session)
        return session

    def wait_for(self, rival, seconds=30):
        """Returns whether it did all that it was told to."""
        try:
            return rival.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            return False

    def end_rivals(self):
        for session in self._rivals:
            programs.stop(session)
        self._rivals.clear()
        # A statement does not notice that nobody waits for it any more.
        with contextlib.suppress(ProgramError):
            self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                     f"WHERE application_name = '{_RIVAL}'")

    @contextlib.contextmanager
    def full(self, folder):
        """The small filesystem of `folder` is full; whatever is written
        meanwhile finds no room."""
        path = os.path.join(os.path.dirname(folder), "filler")
        try:
            with open(path, "wb", buffering=0) as filler:
                self._fill(filler)
                yield filler
        finally:
            os.remove(path)

    @staticmethod
    def _fill(filler):
        for block in (1 << 20, 4096):
            with contextlib.suppress(OSError):
                while True:
                    filler.write(bytes(block))

    def heal(self):
        """Up, resumed, alone and with the settings that it was made with."""
        self.node.resume()
        for pid in self.node.processes():
            send_signal(pid, signal.SIGCONT)
        if not self.node.is_running():
            self.node.launch()
        self.node.wait_until_up()
        self.end_rivals()
        self.node.set(**_USUAL)

    def undo(self):
        """What a fault that broke off has left in the database."""
        self.sql(f"""
            ALTER ROLE {ROLE} LOGIN;
            ALTER TABLE idempotency_records DROP COLUMN IF EXISTS fault_extra;
            ALTER TABLE fault_transitions DROP COLUMN IF EXISTS fault_extra;
            DROP INDEX IF EXISTS fault_index;
            DELETE FROM scope_policies WHERE scope LIKE 'fault/%'""")

    def dump(self, scope, folder):
        return dump(self.node, scope, folder)

    def close(self):
        self.end_rivals()
        with contextlib.suppress(ProgramError):
            self.node.kill()
        for folder in self._mounts:
            subprocess.run(["umount", "-l", folder], check=False)
        self.node.close()
