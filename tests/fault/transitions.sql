-- A log of every change of idempotency_records, for fault-checker. Applied once
-- after the migration, by the role that the servers connect as; never dropped.
-- PostgreSQL 15 and later.
--
-- The log's row is written in the transaction of the change, by an AFTER
-- trigger that runs while the record is locked: it is there exactly if the
-- change is, and for one key the order of seq is the order of the changes.
--
-- Headers and bodies are left out; a digest stands for them.

CREATE SEQUENCE fault_transitions_seq AS bigint;

CREATE TABLE fault_transitions AS
SELECT
  0::bigint AS seq,
  clock_timestamp() AS at,
  -- insert, update or delete
  ''::text AS change,
  -- of the row that was replaced or deleted
  0::bigint AS old_version,
  -- of headers and body as they are stored
  ''::bytea AS stored_digest,
  -- The row afterwards; of a deleted one, what it was.
  r.*
FROM idempotency_records AS r
WITH NO DATA;

-- Rounds have a scope of their own, and are forgotten by scope.
CREATE INDEX ON fault_transitions (scope);

CREATE FUNCTION fault_log_transition() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
  changed idempotency_records := CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
  stored bytea;
BEGIN
  IF changed.body IS NOT NULL THEN
    stored := sha256(changed.headers || '\x00'::bytea || changed.body);
    changed.headers := ''::bytea;
    changed.body := ''::bytea;
  END IF;
  INSERT INTO fault_transitions
  SELECT
    nextval('fault_transitions_seq'),
    clock_timestamp(),
    lower(TG_OP),
    CASE WHEN TG_OP <> 'INSERT' THEN OLD.version END,
    stored,
    changed.*;
  RETURN NULL;
END
$$;

CREATE TRIGGER fault_log_transition
  AFTER INSERT OR UPDATE OR DELETE ON idempotency_records
  FOR EACH ROW EXECUTE FUNCTION fault_log_transition();

-- What fault-checker reads, in ONE snapshot, so that log and table agree.
-- `psql -X -q -v ON_ERROR_STOP=1`, with the round's scopes as a pattern:
--
--   SET timezone = 'UTC'; SET datestyle = 'ISO';
--   BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
--   \o transitions.tsv
--   COPY (SELECT * FROM fault_transitions
--         WHERE scope ~ '^fault/r17(/|$)' ORDER BY seq)
--     TO STDOUT (FORMAT text, HEADER);
--   \o dump.tsv
--   COPY (SELECT clock_timestamp() AS at,
--           sha256(headers || '\x00'::bytea || body) AS stored_digest, r.*
--         FROM idempotency_records AS r
--         WHERE scope ~ '^fault/r17(/|$)')
--     TO STDOUT (FORMAT text, HEADER);
--   \o conflicts.tsv
--   COPY (SELECT * FROM idempotency_conflicts
--         WHERE scope ~ '^fault/r17(/|$)')
--     TO STDOUT (FORMAT text, HEADER);
--   COMMIT;
