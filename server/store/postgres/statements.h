// The statements of the record table. Each takes a batch as one array a column
// and is committed by itself, or runs within a transaction of a caller's.
//
// Rules they all keep:
//   - an array is joined on the whole primary key, so that every item is one
//     descent of its index; items come sorted, so that batches lock rows in
//     one order;
//   - time is statement_timestamp(), the moment the statement arrived. now()
//     is that of the transaction, which may have begun long before.
//     clock_timestamp() is volatile, and Citus refuses volatile functions in
//     an UPDATE;
//   - durations are whole microseconds: `us * interval '1 microsecond'` is
//     exact up to 285 years and knows no months and no summer time;
//   - times leave as timestamptz_send(), see pg_row.h.
#ifndef IDEMPOTENCY_SERVER_STORE_POSTGRES_STATEMENTS_H_
#define IDEMPOTENCY_SERVER_STORE_POSTGRES_STATEMENTS_H_

#include "server/store/postgres/statement_runner.h"

namespace idempotency::statements {

// NewRecord() of transitions.h, for keys without a row. DO NOTHING writes
// nothing for a key that has one, not even a lock; who is refused is read in a
// second statement, since this one's snapshot may be older than the row.
inline constexpr Statement kInsertNew = {"insert_new", R"sql(
INSERT INTO idempotency_records (
  scope, key, request_hash, claim_token, owner,
  checkpoint, checkpoint_number,
  policy, policy_lease_us, policy_max_lease_us,
  policy_retention_us, policy_retention_after_finalize_us,
  on_abandoned, on_server_error, held,
  in_flight, attempt, fencing_token, version,
  created_at, claimed_at, lease_us, lease_expires_at,
  expires_at)
SELECT
  c.scope, c.key, c.request_hash, c.claim_token, c.owner,
  c.checkpoint, c.checkpoint_number,
  c.policy, c.policy_lease_us, c.policy_max_lease_us,
  c.retention_us, c.retention_after_finalize_us,
  c.on_abandoned, c.on_server_error, c.on_abandoned = 1,
  true, 1, clock.us, clock.us,
  clock.at, clock.at, c.lease_us,
  clock.at + c.lease_us * interval '1 microsecond',
  coalesce(
    clock.at + (c.lease_us + c.retention_us) * interval '1 microsecond',
    'infinity')
FROM unnest(
    $1::text[], $2::text[], $3::bytea[], $4::uuid[], $5::text[],
    $6::bytea[], $7::bigint[],
    $8::text[], $9::bigint[], $10::bigint[],
    $11::bigint[], $12::bigint[],
    $13::smallint[], $14::smallint[],
    $15::bigint[])
  AS c (
    scope, key, request_hash, claim_token, owner,
    checkpoint, checkpoint_number,
    policy, policy_lease_us, policy_max_lease_us,
    retention_us, retention_after_finalize_us,
    on_abandoned, on_server_error,
    lease_us)
-- OFFSET keeps the arithmetic from being repeated for every row.
CROSS JOIN (
  SELECT
    statement_timestamp() AS at,
    (extract(epoch FROM statement_timestamp()) * 1000000)::bigint AS us
  OFFSET 0) AS clock
ON CONFLICT (scope, key) DO NOTHING
RETURNING scope, key, fencing_token
)sql",
                                         Effect::kWrite, Plan::kKept};

// RecordResponse() of transitions.cc, where DecideFinalize() would call it.
inline constexpr Statement kFinalizeOwned = {"finalize_owned", R"sql(
UPDATE idempotency_records AS r
SET
  in_flight = false,
  status_code = f.status_code,
  headers = f.headers,
  body = f.body,
  body_omitted = f.body_omitted,
  headers_omitted = f.headers_omitted,
  response_digest = f.response_digest,
  finalized_at = statement_timestamp(),
  gave_up = 0,
  gave_up_at = NULL,
  gave_up_status_code = NULL,
  version = r.version + 1,
  expires_at = CASE
    WHEN r.policy_retention_us IS NULL THEN coalesce(
      statement_timestamp()
        + r.policy_retention_after_finalize_us * interval '1 microsecond',
      'infinity')
    -- A parked record: its expiry is not what its policy said.
    WHEN r.expires_at = 'infinity' THEN
      statement_timestamp() + r.policy_retention_us * interval '1 microsecond'
    -- Mostly left as it is, which spares the index an entry.
    ELSE greatest(
      r.expires_at,
      statement_timestamp() + r.policy_retention_us * interval '1 microsecond')
  END
FROM unnest(
    $1::text[], $2::text[], $3::uuid[],
    $4::integer[], $5::bytea[], $6::bytea[],
    $7::boolean[], $8::boolean[], $9::bytea[])
  AS f (
    scope, key, claim_token,
    status_code, headers, body,
    body_omitted, headers_omitted, response_digest)
WHERE r.scope = f.scope
  AND r.key = f.key
  AND r.claim_token = f.claim_token
  AND r.in_flight
  AND (r.expires_at > statement_timestamp() OR r.held)
  AND (f.status_code < 500 OR r.on_server_error = 1)
RETURNING r.scope, r.key, timestamptz_send(r.expires_at) AS expires_at
)sql",
                                             Effect::kWrite, Plan::kKept};

// Both in one: kInsertNew's parameters, then kFinalizeOwned's. Rows: scope, key
// and, of an insert, the fencing token, else the expiry. The inserts come
// first in every such statement, so that two lock in one order. Not for Citus.
const Statement& InsertAndFinalize();

// $3: with headers and bodies. A body above $4 bytes is left out; its length
// is told. The columns are those of record_row.h.
inline constexpr Statement kReadRecords = {"read_records", R"sql(
SELECT
  timestamptz_send(statement_timestamp()),
  r.scope, r.key,
  r.in_flight, r.request_hash, r.claim_token,
  r.fencing_token, r.attempt, r.version,
  r.policy, r.policy_lease_us, r.policy_max_lease_us,
  r.policy_retention_us, r.policy_retention_after_finalize_us,
  r.on_abandoned, r.on_server_error,
  r.held, r.freed_count,
  timestamptz_send(r.created_at), timestamptz_send(r.claimed_at),
  r.lease_us, timestamptz_send(r.lease_expires_at),
  timestamptz_send(r.expires_at),
  r.owner, r.checkpoint, r.checkpoint_number,
  r.gave_up, timestamptz_send(r.gave_up_at), r.gave_up_status_code,
  r.abandoned_attempt, r.abandoned_fencing_token,
  timestamptz_send(r.abandoned_claimed_at), timestamptz_send(r.abandoned_at),
  r.abandoned_reason, r.abandoned_status_code,
  r.abandoned_owner, r.abandoned_checkpoint,
  timestamptz_send(r.finalized_at), r.status_code, r.response_digest,
  r.body_omitted, r.headers_omitted,
  CASE WHEN $3::boolean THEN r.headers END,
  CASE WHEN $3::boolean AND octet_length(r.body) <= $4::bigint THEN r.body END,
  octet_length(r.body)
FROM unnest($1::text[], $2::text[]) AS k (scope, key)
JOIN idempotency_records AS r
  ON r.scope = k.scope
  AND r.key = k.key
)sql",
                                           Effect::kRead, Plan::kKept};

// Where kReadRecords found no row to tell the time with.
inline constexpr Statement kReadClock = {
    "read_clock", "SELECT timestamptz_send(statement_timestamp())",
    Effect::kRead, Plan::kFresh};

// The version makes sure that the body belongs to the record that was read.
inline constexpr Statement kReadBodies = {"read_bodies", R"sql(
SELECT r.scope, r.key, r.body
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS k (scope, key, version)
JOIN idempotency_records AS r
  ON r.scope = k.scope
  AND r.key = k.key
  AND r.version = k.version
)sql",
                                          Effect::kRead, Plan::kKept};

// Of records that are waited for, those that are still as they were seen. To
// ask for the others takes an outer join, which Citus can't leave to its nodes.
inline constexpr Statement kFindUnchanged = {"find_unchanged", R"sql(
SELECT w.scope, w.key
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS w (scope, key, version)
JOIN idempotency_records AS r
  ON r.scope = w.scope
  AND r.key = w.key
  AND r.version = w.version
  AND r.lease_expires_at > statement_timestamp()
)sql",
                                             Effect::kRead, Plan::kKept};

// $4 and $5 are the guard beside the name. Every time is a parameter: the
// decision was made at the time of the read.
inline constexpr Statement kReplace = {"replace", R"sql(
UPDATE idempotency_records AS r
SET
  in_flight = u.in_flight,
  request_hash = u.request_hash,
  claim_token = u.claim_token,
  fencing_token = u.fencing_token,
  attempt = u.attempt,
  version = u.version,
  policy = u.policy,
  policy_lease_us = u.policy_lease_us,
  policy_max_lease_us = u.policy_max_lease_us,
  policy_retention_us = u.policy_retention_us,
  policy_retention_after_finalize_us = u.policy_retention_after_finalize_us,
  on_abandoned = u.on_abandoned,
  on_server_error = u.on_server_error,
  held = u.held,
  freed_count = u.freed_count,
  created_at = u.created_at,
  claimed_at = u.claimed_at,
  lease_us = u.lease_us,
  lease_expires_at = u.lease_expires_at,
  expires_at = u.expires_at,
  owner = u.owner,
  checkpoint = u.checkpoint,
  checkpoint_number = u.checkpoint_number,
  gave_up = u.gave_up,
  gave_up_at = u.gave_up_at,
  gave_up_status_code = u.gave_up_status_code,
  abandoned_attempt = u.abandoned_attempt,
  abandoned_fencing_token = u.abandoned_fencing_token,
  abandoned_claimed_at = u.abandoned_claimed_at,
  abandoned_at = u.abandoned_at,
  abandoned_reason = u.abandoned_reason,
  abandoned_status_code = u.abandoned_status_code,
  abandoned_owner = u.abandoned_owner,
  abandoned_checkpoint = u.abandoned_checkpoint,
  finalized_at = u.finalized_at,
  -- A recorded response stays where it is: it is neither sent nor rewritten.
  status_code = CASE WHEN u.same_response THEN r.status_code
                     ELSE u.status_code END,
  response_digest = CASE WHEN u.same_response THEN r.response_digest
                         ELSE u.response_digest END,
  body_omitted = CASE WHEN u.same_response THEN r.body_omitted
                      ELSE u.body_omitted END,
  headers_omitted = CASE WHEN u.same_response THEN r.headers_omitted
                         ELSE u.headers_omitted END,
  headers = CASE WHEN u.same_response THEN r.headers ELSE u.headers END,
  body = CASE WHEN u.same_response THEN r.body ELSE u.body END
FROM unnest(
    $1::text[], $2::text[],
    $3::uuid[], $4::bigint[], $5::bigint[], $6::boolean[],
    $7::boolean[], $8::bytea[], $9::uuid[],
    $10::bigint[], $11::integer[], $12::bigint[],
    $13::text[], $14::bigint[], $15::bigint[],
    $16::bigint[], $17::bigint[],
    $18::smallint[], $19::smallint[],
    $20::boolean[], $21::integer[],
    $22::timestamptz[], $23::timestamptz[],
    $24::bigint[], $25::timestamptz[],
    $26::timestamptz[],
    $27::text[], $28::bytea[], $29::bigint[],
    $30::smallint[], $31::timestamptz[], $32::integer[],
    $33::integer[], $34::bigint[],
    $35::timestamptz[], $36::timestamptz[],
    $37::smallint[], $38::integer[],
    $39::text[], $40::bytea[],
    $41::timestamptz[], $42::integer[], $43::bytea[],
    $44::boolean[], $45::boolean[],
    $46::bytea[], $47::bytea[])
  AS u (
    scope, key,
    before_claim_token, before_fencing_token, before_version, same_response,
    in_flight, request_hash, claim_token,
    fencing_token, attempt, version,
    policy, policy_lease_us, policy_max_lease_us,
    policy_retention_us, policy_retention_after_finalize_us,
    on_abandoned, on_server_error,
    held, freed_count,
    created_at, claimed_at,
    lease_us, lease_expires_at,
    expires_at,
    owner, checkpoint, checkpoint_number,
    gave_up, gave_up_at, gave_up_status_code,
    abandoned_attempt, abandoned_fencing_token,
    abandoned_claimed_at, abandoned_at,
    abandoned_reason, abandoned_status_code,
    abandoned_owner, abandoned_checkpoint,
    finalized_at, status_code, response_digest,
    body_omitted, headers_omitted,
    headers, body)
WHERE r.scope = u.scope
  AND r.key = u.key
  AND r.claim_token = u.before_claim_token
  AND r.fencing_token = u.before_fencing_token
  AND r.version = u.before_version
RETURNING r.scope, r.key
)sql",
                                       Effect::kWrite, Plan::kKept};

// $6: the bound of rows a record; those of an earlier life of the key do not
// count. Two replicas at once may overshoot it by one row each.
inline constexpr Statement kKeepConflicts = {"keep_conflicts", R"sql(
INSERT INTO idempotency_conflicts AS k (
  scope, key, claim_token, response_digest, status_code,
  first_seen_at, last_seen_at)
SELECT
  c.scope, c.key, c.claim_token, c.response_digest, c.status_code,
  statement_timestamp(), statement_timestamp()
FROM unnest($1::text[], $2::text[], $3::uuid[], $4::bytea[], $5::integer[])
  AS c (scope, key, claim_token, response_digest, status_code)
LEFT JOIN idempotency_records AS r
  ON r.scope = c.scope
  AND r.key = c.key
WHERE (
    SELECT count(*)
    FROM idempotency_conflicts AS kept
    WHERE kept.scope = c.scope
      AND kept.key = c.key
      AND kept.last_seen_at >= coalesce(r.created_at, '-infinity')) < $6::bigint
  -- No EXISTS: it may be planned as a scan of the whole table.
  OR (
    SELECT true
    FROM idempotency_conflicts AS same
    WHERE same.scope = c.scope
      AND same.key = c.key
      AND same.claim_token = c.claim_token
      AND same.response_digest = c.response_digest)
ON CONFLICT (scope, key, claim_token, response_digest) DO UPDATE
SET
  count = k.count + 1,
  last_seen_at = excluded.last_seen_at
RETURNING scope, key
)sql",
                                             Effect::kWrite, Plan::kFresh};

// Evidence outlives its record; an earlier life of the key is left out.
inline constexpr Statement kCountConflicts = {"count_conflicts", R"sql(
SELECT r.scope, r.key, count(DISTINCT c.response_digest)
FROM unnest($1::text[], $2::text[]) AS k (scope, key)
JOIN idempotency_records AS r
  ON r.scope = k.scope
  AND r.key = k.key
JOIN idempotency_conflicts AS c
  ON c.scope = r.scope
  AND c.key = r.key
  AND c.last_seen_at >= r.created_at
GROUP BY r.scope, r.key
)sql",
                                              Effect::kRead, Plan::kFresh};

inline constexpr Statement kReadScopes = {"read_scopes", R"sql(
SELECT scope, policy, enforced
FROM scope_policies
)sql",
                                          Effect::kRead, Plan::kFresh};

inline constexpr Statement kReadPolicies = {"read_policies", R"sql(
SELECT
  name,
  (extract(epoch FROM lease) * 1000000)::bigint,
  (extract(epoch FROM max_lease) * 1000000)::bigint,
  (extract(epoch FROM retention) * 1000000)::bigint,
  (extract(epoch FROM retention_after_finalize) * 1000000)::bigint,
  on_abandoned,
  on_server_error
FROM ttl_policies
)sql",
                                            Effect::kRead, Plan::kFresh};

inline constexpr Statement kReadNamespace = {"read_namespace", R"sql(
SELECT value
FROM idempotency_settings
WHERE name = 'downstream_namespace'
)sql",
                                             Effect::kRead, Plan::kFresh};

}  // namespace idempotency::statements

#endif  // IDEMPOTENCY_SERVER_STORE_POSTGRES_STATEMENTS_H_
