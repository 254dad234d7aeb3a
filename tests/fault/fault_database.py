"""Faults of what PostgreSQL runs on and of who else uses it."""

import contextlib
import time

from faults import fault
from postgres import wait_until
from programs import ProgramError

_TABLE = "idempotency_records"


def _lacks_small(deployment):
    return (None if deployment.database.small_data else
            "no filesystem can be mounted here")


@fault("disk_full", "no room on the disk of the records", lacks=_lacks_small)
def _(r):
    since = r.database.logged()
    # What is there already has room in its pages; new pages are needed soon.
    with r.database.full(r.database.small_data):
        r.hold(1, 3)
        r.expect_soon(lambda: r.database.has_logged("No space left on device",
                                                    since), "there was no room")


@fault("disk_full_wal", "no room on the disk of the WAL: PostgreSQL panics",
       injections=1, lacks=_lacks_small)
def _(r):
    since = r.database.logged()
    with r.database.full(r.database.small_wal):
        # The segments that it keeps for later are used up first.
        with contextlib.suppress(ProgramError):
            for _ in range(40):
                r.database.sql("SELECT pg_switch_wal(); INSERT INTO rival_rows "
                               "SELECT 1, 1 WHERE false; SELECT txid_current()")
        r.hold(0.5, 1.5)
    r.expect(r.database.has_logged("PANIC:", since), "PostgreSQL panicked")
    if not r.database.node.is_running():
        r.database.node.launch()
    r.database.node.wait_until_up()


@fault("read_only", "default_transaction_read_only switched on for a while")
def _(r):
    r.database.node.set(default_transaction_read_only="on")
    r.hold(0.5, 2.5)
    r.database.node.set(default_transaction_read_only="off")


@fault("connections_used_up", "no connection left, and the servers lose theirs")
def _(r):
    # Their places are taken as soon as they are free.
    for _ in range(24):
        r.database.rival(["SELECT pg_sleep(60)"], role="coordinator")
    r.hold(0.5, 0.6)
    r.database.end_sessions()
    for _ in range(12):
        r.database.rival(["SELECT pg_sleep(60)"], role="coordinator")
    r.expect_soon(r.database.is_full, "no connection was left")
    r.hold(1, 2)
    r.database.end_rivals()


@fault("role_locked_out", "the servers' role may not log in for a while")
def _(r):
    r.database.sql("ALTER ROLE coordinator NOLOGIN")
    r.database.end_sessions()
    r.hold(0.5, 2)
    r.database.sql("ALTER ROLE coordinator LOGIN")


def _rows(r, count, order):
    return (f"SELECT ctid FROM {_TABLE} WHERE scope = '{r.scope}' "
            f"ORDER BY {order} LIMIT {count}")


@fault("rows_locked", "a rival holds row locks, beyond lock_timeout too",
       injections=3)
def _(r):
    seconds = r.random.choice((0.05, 0.3, 1, 2.5))
    r.expect(r.rival([
        f"DO $$ BEGIN PERFORM 1 FROM {_TABLE} WHERE ctid = ANY(ARRAY("
        f"{_rows(r, 200, 'claimed_at DESC')})) FOR UPDATE; "
        "IF NOT FOUND THEN RAISE 'no rows'; END IF; "
        f"PERFORM pg_sleep({seconds}); END $$"]), "rows were locked")


@fault("deadlocks", "a rival locks rows in the opposite order")
def _(r):
    descending = (
        "DO $$ DECLARE row record; BEGIN FOR row IN SELECT key FROM "
        f"(SELECT key FROM {_TABLE} WHERE scope = '{r.scope}' AND in_flight "
        "ORDER BY claimed_at DESC LIMIT 12) AS late ORDER BY key DESC LOOP "
        f"PERFORM 1 FROM {_TABLE} WHERE scope = '{r.scope}' AND "
        "key = row.key FOR UPDATE; PERFORM pg_sleep(0.03); END LOOP; END $$")
    before = r.database.deadlocks()
    # Before servers give up waiting (lock_timeout, 100 ms).
    r.database.node.set(deadlock_timeout="20ms")
    end = time.monotonic() + 15
    while time.monotonic() < end and r.database.deadlocks() == before:
        rivals = [r.database.rival([descending] * 3) for _ in range(3)]
        for rival in rivals:
            r.database.wait_for(rival)
        r.hold(0.2, 0.5)
    r.database.node.set(deadlock_timeout="200ms")
    r.expect(r.database.deadlocks() > before, "there was a deadlock")


@fault("table_locked", "LOCK TABLE … ACCESS EXCLUSIVE for up to 3 s")
def _(r):
    r.expect(r.rival([
        f"BEGIN; LOCK TABLE {_TABLE} IN ACCESS EXCLUSIVE MODE; "
        f"SELECT pg_sleep({r.random.uniform(0.3, 3):.2f}); COMMIT"]),
        "the table was locked")


@fault("evidence_locked", "LOCK TABLE of the refused responses for up to 3 s")
def _(r):
    r.expect(r.rival([
        "BEGIN; LOCK TABLE idempotency_conflicts IN ACCESS EXCLUSIVE MODE; "
        f"SELECT pg_sleep({r.random.uniform(1, 3):.2f}); COMMIT"]),
        "the table was locked")


@fault("policies_locked", "the policies' tables are locked for up to 3 s")
def _(r):
    r.expect(r.rival([
        "BEGIN; LOCK TABLE ttl_policies, scope_policies IN ACCESS EXCLUSIVE "
        f"MODE; SELECT pg_sleep({r.random.uniform(1, 3):.2f}); COMMIT"]),
        "the tables were locked")


def _maintenance(name, text, *script, injections=2):
    @fault(name, text + " under load", injections)
    def _(r):
        r.expect(r.rival(script), name + " was done")
        r.hold(0.1, 0.3)


def _column(definition):
    """Adds and drops one; the log of changes has all columns of the records."""
    def alter(what, words):
        return f"ALTER TABLE {what} {words} fault_extra"
    log = "fault_transitions"
    return (f"{alter(_TABLE, 'ADD')} {definition}; "
            f"{alter(log, 'ADD')} {definition}",
            "SELECT pg_sleep(0.5)",
            f"{alter(_TABLE, 'DROP')}; {alter(log, 'DROP')}")


_maintenance("vacuum", "VACUUM (FREEZE) and ANALYZE",
             f"VACUUM (FREEZE, ANALYZE) {_TABLE}",
             f"VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) {_TABLE}")
_maintenance("vacuum_full", "VACUUM FULL", f"VACUUM FULL {_TABLE}")
_maintenance("reindex", "REINDEX TABLE CONCURRENTLY",
             f"REINDEX TABLE CONCURRENTLY {_TABLE}")
_maintenance("column_added", "ADD COLUMN with a default, then DROP COLUMN",
             *_column("bigint NOT NULL DEFAULT 7"))
_maintenance("table_rewritten", "ADD COLUMN that rewrites the table",
             *_column("double precision DEFAULT random()"))
_maintenance("index_added", "an index made CONCURRENTLY, and dropped",
             f"CREATE INDEX CONCURRENTLY fault_index ON {_TABLE} (claimed_at)",
             "SELECT pg_sleep(0.3)",
             "DROP INDEX CONCURRENTLY fault_index")
_maintenance("checkpoints", "a storm of checkpoints",
             *("CHECKPOINT",) * 15)


@fault("old_snapshot", "a transaction stays open and holds back vacuum")
def _(r):
    r.expect(r.rival([
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT txid_current(); "
        f"SELECT count(*) FROM {_TABLE}; SELECT pg_sleep(3); COMMIT"]),
        "the transaction stayed open")


@fault("policy_changed", "the policies in use are changed under load",
       injections=1)
def _(r):
    before = r.database.rows("SELECT name, lease, retention FROM ttl_policies "
                             "WHERE name LIKE 'fault%'")

    def scale(low, high):
        for name, lease, retention in before:
            factor = r.random.uniform(low, high)
            r.database.sql(
                f"UPDATE ttl_policies SET lease = '{lease}'::interval * "
                f"{factor:.2f}, retention = {_interval(retention)}::interval "
                f"* {factor:.2f} WHERE name = '{name}'")

    for _ in range(4):
        scale(0.7, 1.4)
        r.hold(0.5, 1.5)
    scale(1, 1)


def _interval(text):
    return f"'{text}'" if text else "NULL"


@fault("policy_enforced", "the scope gets a policy that rules out all others",
       injections=1)
def _(r):
    policy = r.random.choice(r.database.rows(
        "SELECT name FROM ttl_policies WHERE name LIKE 'fault%'"))[0]
    r.database.sql("INSERT INTO scope_policies VALUES "
                   f"('{r.scope}', '{policy}', true)")
    r.hold(6, 7)
    r.database.sql(f"DELETE FROM scope_policies WHERE scope = '{r.scope}'")


@fault("expired_by_thousands", "20,000 records of another scope expire at once",
       injections=1)
def _(r):
    columns = r.database.sql(
        "SELECT string_agg(column_name, ',' ORDER BY ordinal_position) FROM "
        f"information_schema.columns WHERE table_name = '{_TABLE}'").split(",")
    other = {"scope": "'expired'", "key": "i::text",
             "claim_token": "gen_random_uuid()",
             "expires_at": "now() + interval '1 second'",
             "held": "false"}
    values = ", ".join(other.get(name, "r." + name) for name in columns)
    r.expect(r.rival([
        # The log of changes is for the scope of the round.
        "SET session_replication_role = replica",
        f"INSERT INTO {_TABLE} ({', '.join(columns)}) SELECT {values} FROM "
        f"(SELECT * FROM {_TABLE} WHERE NOT in_flight AND status_code IS NOT "
        "NULL LIMIT 1) AS r, generate_series(1, 20000) AS i"]),
        "records were made")
    wait_until("the reapers have deleted them", lambda: r.database.sql(
        f"SELECT NOT EXISTS (SELECT FROM {_TABLE} WHERE scope = 'expired')")
        == "t", seconds=25)
