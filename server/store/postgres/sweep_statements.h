// The statements of the sweeper. Each repeats on the row it writes what the
// choice of rows asked for: a row that was claimed again in between has another
// expiry and stays.
#ifndef IDEMPOTENCY_SERVER_STORE_POSTGRES_SWEEP_STATEMENTS_H_
#define IDEMPOTENCY_SERVER_STORE_POSTGRES_SWEEP_STATEMENTS_H_

#include "server/store/postgres/statement_runner.h"

namespace idempotency::statements {

// The oldest $1 expired rows: those that are held and unfinished are parked,
// the others deleted. By ctid, which is several times as fast as by key.
inline constexpr Statement kSweep = {"sweep", R"sql(
WITH due AS MATERIALIZED (
  SELECT ctid AS place, held AND in_flight AS waits
  FROM idempotency_records
  WHERE expires_at <= now()
  ORDER BY expires_at
  LIMIT $1::bigint),
gone AS (
  DELETE FROM idempotency_records AS r
  WHERE r.ctid = ANY (ARRAY(SELECT place FROM due WHERE NOT waits))
    AND r.expires_at <= now()
    AND NOT (r.held AND r.in_flight)
  RETURNING r.policy, r.in_flight),
parked AS (
  UPDATE idempotency_records AS r
  SET
    expires_at = 'infinity',
    version = r.version + 1
  WHERE r.ctid = ANY (ARRAY(SELECT place FROM due WHERE waits))
    AND r.expires_at <= now()
    AND r.held
    AND r.in_flight
  RETURNING r.policy)
SELECT 'gone', policy, in_flight, count(*)
FROM gone
GROUP BY policy, in_flight
UNION ALL
SELECT 'parked', policy, true, count(*)
FROM parked
GROUP BY policy
)sql",
                                     Effect::kWrite, Plan::kInOrder};

// kSweep, past the rows that others have locked. It locks what it takes, which
// doubles what it writes.
const Statement& SweepUnlocked();

// Citus has no ctid across shards, and refuses two tables' changes in one
// statement.
inline constexpr Statement kParkByKey = {"park_by_key", R"sql(
WITH due AS (
  SELECT scope, key
  FROM idempotency_records
  WHERE expires_at <= now()
    AND held
    AND in_flight
  ORDER BY expires_at
  LIMIT $1::bigint)
UPDATE idempotency_records AS r
SET
  expires_at = 'infinity',
  version = r.version + 1
FROM due
WHERE r.scope = due.scope
  AND r.key = due.key
  AND r.expires_at <= now()
  AND r.held
  AND r.in_flight
RETURNING 'parked', r.policy, true, 1
)sql",
                                         Effect::kWrite, Plan::kInOrder};

inline constexpr Statement kDeleteByKey = {"delete_by_key", R"sql(
WITH due AS (
  SELECT scope, key
  FROM idempotency_records
  WHERE expires_at <= now()
    AND NOT (held AND in_flight)
  ORDER BY expires_at
  LIMIT $1::bigint)
DELETE FROM idempotency_records AS r
USING due
WHERE r.scope = due.scope
  AND r.key = due.key
  AND r.expires_at <= now()
  AND NOT (r.held AND r.in_flight)
RETURNING 'gone', r.policy, r.in_flight, 1
)sql",
                                           Effect::kWrite, Plan::kInOrder};

// $2: microseconds that a row is kept for after it was last seen.
inline constexpr Statement kSweepConflicts = {"sweep_conflicts", R"sql(
WITH gone AS (
  DELETE FROM idempotency_conflicts AS c
  WHERE c.ctid = ANY (ARRAY(
      SELECT ctid
      FROM idempotency_conflicts
      WHERE last_seen_at < now() - $2::bigint * interval '1 microsecond'
      ORDER BY last_seen_at
      LIMIT $1::bigint))
    AND c.last_seen_at < now() - $2::bigint * interval '1 microsecond'
  RETURNING 1)
SELECT count(*)
FROM gone
)sql",
                                              Effect::kWrite, Plan::kInOrder};

}  // namespace idempotency::statements

#endif  // IDEMPOTENCY_SERVER_STORE_POSTGRES_SWEEP_STATEMENTS_H_
