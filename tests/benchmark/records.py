"""Records in bulk, made by SQL: copies of one that the coordinator wrote."""

import concurrent.futures

from processes import BenchmarkError

_TABLE = "idempotency_records"
# What differs between the copies; `i` counts them.
_OWN = {
    "key": "gen_random_uuid()::text",
    "claim_token": "gen_random_uuid()",
    "request_hash": "sha256(random()::text::bytea)",
    "fencing_token": "r.fencing_token + i",
}
_SESSIONS = 2
# A tree that grew by random keys is about so full.
_GROWN_TREE_PERCENT = 70
# Nine records of this size fill so much of a page, which is what a page of the
# coordinator's, that takes nine claims, holds when all are finalized.
_GROWN_HEAP_PERCENT = 75


def insert(cluster, database, count, expires_at):
    """`expires_at` is SQL; it may use `i`. One finished record must be there.
    """
    columns = cluster.sql(
        database, "SELECT string_agg(column_name, ',' ORDER BY "
        "ordinal_position) FROM information_schema.columns "
        f"WHERE table_name = '{_TABLE}'").split(",")
    own = dict(_OWN, expires_at=expires_at)
    values = ", ".join(own.get(name, "r." + name) for name in columns)
    edges = [count * part // _SESSIONS for part in range(_SESSIONS + 1)]

    def insert_part(first, last):
        cluster.sql(
            database, f"INSERT INTO {_TABLE} ({', '.join(columns)}) "
            f"SELECT {values} FROM (SELECT * FROM {_TABLE} WHERE NOT "
            "in_flight AND status_code IS NOT NULL LIMIT 1) AS r, "
            f"generate_series({first + 1}, {last}) AS i", seconds=1800)

    with concurrent.futures.ThreadPoolExecutor(_SESSIONS) as pool:
        list(pool.map(insert_part, edges[:-1], edges[1:]))


def grow(cluster, database, count):
    """Until the table has `count` records, none of which expires soon, in the
    state of one that has grown so far. Nobody else may use it meanwhile."""
    def sql(*statements):
        return cluster.sql(database, *statements, seconds=1800)

    indexes = sql("SELECT indexdef FROM pg_indexes WHERE tablename = "
                  f"'{_TABLE}' ORDER BY indexname").splitlines()
    options = sql("SELECT option_value FROM pg_class, "
                  "pg_options_to_table(reloptions) WHERE relname = "
                  f"'{_TABLE}' AND option_name = 'fillfactor'")
    # Built at the end, which takes a fraction of the time.
    sql(f"ALTER TABLE {_TABLE} DROP CONSTRAINT {_TABLE}_pkey",
        f"ALTER TABLE {_TABLE} SET (fillfactor = {_GROWN_HEAP_PERCENT})")
    for index in indexes:
        name = index.split(" INDEX ")[1].split()[0]
        sql(f"DROP INDEX IF EXISTS {name}")
    missing = count - int(sql(f"SELECT count(*) FROM {_TABLE}"))
    insert(cluster, database, missing,
           "now() + interval '1 day' + i * interval '1 ms'")
    for index in indexes:
        index = index.partition(" WITH ")[0]  # from when it grew before
        full = (f" WITH (fillfactor = {_GROWN_TREE_PERCENT})"
                if f" {_TABLE}_pkey " in index else "")
        sql(f"SET maintenance_work_mem = '512MB'; {index}{full}")
    sql(f"ALTER TABLE {_TABLE} ADD CONSTRAINT {_TABLE}_pkey "
        f"PRIMARY KEY USING INDEX {_TABLE}_pkey",
        f"ALTER TABLE {_TABLE} SET (fillfactor = {options})",
        f"VACUUM ANALYZE {_TABLE}")
    if int(sql(f"SELECT count(*) FROM {_TABLE}")) != count:
        raise BenchmarkError(f"{database} has not the {count} records that "
                             "were to be made")
