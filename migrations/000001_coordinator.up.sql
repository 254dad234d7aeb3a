-- The coordinator's tables. Plain SQL without BEGIN and COMMIT: whoever applies
-- the file wraps it in one transaction. Readable guide: migrations/README.md.

CREATE TABLE idempotency_schema (
  version integer PRIMARY KEY,
  name text NOT NULL,
  -- Servers that do not know a major step must not use the database.
  major boolean NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE idempotency_schema IS
  'The migrations that were applied. Each one writes its own row, whoever runs it.';
COMMENT ON COLUMN idempotency_schema.major IS
  'A server that does not know this step refuses to serve.';

CREATE TABLE idempotency_settings (
  name text PRIMARY KEY,
  value text NOT NULL
);
COMMENT ON TABLE idempotency_settings IS
  'Values that belong to the deployment and go into its backups.';

-- Random once and kept for good: every downstream key is derived from it.
INSERT INTO idempotency_settings (name, value)
VALUES ('downstream_namespace', gen_random_uuid()::text);

-- The bounds are those that the server checks again when it reads a policy.
-- They compare seconds, as the server does: as intervals, a year is 360 days.
CREATE TABLE ttl_policies (
  name text COLLATE "C" PRIMARY KEY,
  lease interval NOT NULL,
  max_lease interval NOT NULL DEFAULT '1 hour',
  retention interval DEFAULT '24 hours',
  retention_after_finalize interval,
  on_abandoned text NOT NULL DEFAULT 'take_over',
  on_server_error text NOT NULL DEFAULT 'release',
  CONSTRAINT ttl_policies_name_is_short
    CHECK (char_length(name) BETWEEN 1 AND 128),
  CONSTRAINT ttl_policies_lease_within_bounds
    CHECK (extract(epoch FROM lease) BETWEEN 0.1 AND extract(epoch FROM max_lease)),
  CONSTRAINT ttl_policies_max_lease_within_100_years
    CHECK (extract(epoch FROM max_lease) <= 3162240000),
  CONSTRAINT ttl_policies_retention_within_100_years
    CHECK (extract(epoch FROM retention) > 0
           AND extract(epoch FROM retention) <= 3162240000),
  CONSTRAINT ttl_policies_retention_after_finalize_within_100_years
    CHECK (extract(epoch FROM retention_after_finalize) > 0
           AND extract(epoch FROM retention_after_finalize) <= 3162240000),
  CONSTRAINT ttl_policies_after_finalize_only_if_permanent
    CHECK (retention IS NULL OR retention_after_finalize IS NULL),
  CONSTRAINT ttl_policies_on_abandoned_is_known
    CHECK (on_abandoned IN ('take_over', 'hold')),
  CONSTRAINT ttl_policies_on_server_error_is_known
    CHECK (on_server_error IN ('release', 'record', 'hold'))
);
COMMENT ON TABLE ttl_policies IS
  'Leases, retention and what to do in doubt, by name. Every record keeps a copy of what its '
  'policy said, so a change touches only later grants.';
COMMENT ON COLUMN ttl_policies.lease IS 'How long a claim is held if it asks for nothing else.';
COMMENT ON COLUMN ttl_policies.max_lease IS 'A longer lease that is asked for is capped to this.';
COMMENT ON COLUMN ttl_policies.retention IS
  'How long a response is replayed after its Finalize, at least. NULL: permanent.';
COMMENT ON COLUMN ttl_policies.retention_after_finalize IS
  'Only with a permanent retention: how long after Finalize a record may be cleaned up. '
  'NULL: never.';
COMMENT ON COLUMN ttl_policies.on_abandoned IS
  'take_over: the next caller takes an abandoned claim over and is told. '
  'hold: only a caller with resolve_in_doubt may.';
COMMENT ON COLUMN ttl_policies.on_server_error IS
  'What a Finalize with a status of 500 or above does. release: gives the claim up. '
  'record: records it like any other. hold: gives it up and holds it.';

INSERT INTO ttl_policies
  (name, lease, max_lease, retention, on_abandoned, on_server_error)
VALUES
  ('default', '30 seconds', '1 hour', '24 hours', 'take_over', 'release'),
  ('payment', '30 seconds', '1 hour', '24 hours', 'hold', 'hold'),
  ('order', '30 seconds', '1 hour', '7 days', 'take_over', 'release'),
  ('form', '10 seconds', '1 hour', '1 hour', 'take_over', 'release'),
  ('task', '10 minutes', '24 hours', NULL, 'take_over', 'release');

CREATE FUNCTION idempotency_keep_default_policy() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'TRUNCATE' OR TG_OP = 'DELETE' OR NEW.name <> OLD.name THEN
    RAISE EXCEPTION 'the policy "default" cannot be deleted or renamed'
      USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END
$$;

CREATE TRIGGER keep_default_policy
  BEFORE DELETE OR UPDATE OF name ON ttl_policies
  FOR EACH ROW WHEN (OLD.name = 'default')
  EXECUTE FUNCTION idempotency_keep_default_policy();

CREATE TRIGGER keep_default_policy_on_truncate
  BEFORE TRUNCATE ON ttl_policies
  FOR EACH STATEMENT
  EXECUTE FUNCTION idempotency_keep_default_policy();

CREATE TABLE scope_policies (
  scope text COLLATE "C" PRIMARY KEY,
  policy text COLLATE "C" NOT NULL
    REFERENCES ttl_policies (name) ON DELETE RESTRICT ON UPDATE RESTRICT,
  enforced boolean NOT NULL DEFAULT false,
  CONSTRAINT scope_policies_scope_is_one
    CHECK (char_length(scope) BETWEEN 1 AND 128
           AND scope ~ '^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$')
);
COMMENT ON TABLE scope_policies IS
  'The policy of a scope and of all below it that have no row of their own.';
COMMENT ON COLUMN scope_policies.enforced IS 'A claim that names another policy is refused.';

-- Fixed-width columns come first, so that their place in a row is known
-- without reading the others. Durations are whole microseconds.
--
-- One CHECK only: PostgreSQL compiles every CHECK anew for every statement,
-- and ten of them doubled the cost of a lone claim. Lengths are checked before
-- anything reaches SQL, and a row that contradicts itself is refused when it
-- is read. (varchar(n) is no way out: it cuts trailing blanks off silently.)
CREATE TABLE idempotency_records (
  created_at timestamptz NOT NULL,
  claimed_at timestamptz NOT NULL,
  lease_expires_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  lease_us bigint NOT NULL,
  fencing_token bigint NOT NULL,
  version bigint NOT NULL,
  checkpoint_number bigint NOT NULL DEFAULT 0,
  policy_lease_us bigint NOT NULL,
  policy_max_lease_us bigint NOT NULL,
  attempt integer NOT NULL,
  freed_count integer NOT NULL DEFAULT 0,
  on_abandoned smallint NOT NULL,
  on_server_error smallint NOT NULL,
  gave_up smallint NOT NULL DEFAULT 0,
  in_flight boolean NOT NULL,
  held boolean NOT NULL,
  body_omitted boolean NOT NULL DEFAULT false,
  headers_omitted boolean NOT NULL DEFAULT false,
  claim_token uuid NOT NULL,
  scope text COLLATE "C" NOT NULL,
  key text COLLATE "C" NOT NULL,
  request_hash bytea NOT NULL,
  policy text NOT NULL,
  owner text NOT NULL DEFAULT '',
  policy_retention_us bigint,
  policy_retention_after_finalize_us bigint,
  checkpoint bytea,
  gave_up_at timestamptz,
  gave_up_status_code integer,
  abandoned_attempt integer,
  abandoned_fencing_token bigint,
  abandoned_claimed_at timestamptz,
  abandoned_at timestamptz,
  abandoned_reason smallint,
  abandoned_status_code integer,
  abandoned_owner text,
  abandoned_checkpoint bytea,
  finalized_at timestamptz,
  status_code integer,
  response_digest bytea,
  headers bytea,
  body bytea,
  PRIMARY KEY (scope, key),
  CONSTRAINT unfinished_has_a_lease
    CHECK (NOT in_flight OR lease_expires_at > claimed_at)
) WITH (
  -- Finalize writes a new, wider version of the row; the free part of its page
  -- takes it, so that no index needs a new entry. With a key of 36 bytes, three
  -- headers and a body of 200 bytes a page has room for nine rows of 250 bytes
  -- and their versions of 650.
  fillfactor = 30,
  -- Vacuum early and in small portions: a claim leaves a dead version behind.
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_insert_threshold = 10000,
  autovacuum_vacuum_insert_scale_factor = 0.02,
  autovacuum_analyze_threshold = 1000,
  autovacuum_analyze_scale_factor = 0.02,
  autovacuum_vacuum_cost_delay = 1,
  toast.autovacuum_vacuum_threshold = 1000,
  toast.autovacuum_vacuum_scale_factor = 0.02,
  toast.autovacuum_vacuum_insert_threshold = 10000,
  toast.autovacuum_vacuum_insert_scale_factor = 0.02,
  toast.autovacuum_vacuum_cost_delay = 1
);

-- The only index beside the key's. Finalize leaves expires_at alone where it
-- can; an index on anything else that it changes would end HOT updates.
CREATE INDEX idx_idempotency_expires ON idempotency_records (expires_at);

COMMENT ON TABLE idempotency_records IS
  'One row for each scope and key. in_flight: unfinished; otherwise final with a status_code '
  'and released without.';
COMMENT ON COLUMN idempotency_records.in_flight IS
  'Unfinished: its attempt runs, or was abandoned.';
COMMENT ON COLUMN idempotency_records.request_hash IS
  'Digest of the request; another one for the same key is a mismatch.';
COMMENT ON COLUMN idempotency_records.claim_token IS
  'Drawn by the caller for its attempt; the latest is kept when the attempt ends.';
COMMENT ON COLUMN idempotency_records.fencing_token IS
  'Grows with every grant of the key: microseconds of the database clock, or the last one + 1.';
COMMENT ON COLUMN idempotency_records.version IS
  'Raised by every write. Writes are guarded by it.';
COMMENT ON COLUMN idempotency_records.expires_at IS
  'From then on the record counts as none. infinity: never, also for a held record that waits.';
COMMENT ON COLUMN idempotency_records.held IS
  'Abandoned attempts wait for a caller with resolve_in_doubt.';
COMMENT ON COLUMN idempotency_records.freed_count IS
  'How often a Release freed the key; the downstream key is derived from it.';
COMMENT ON COLUMN idempotency_records.policy_retention_us IS
  'The policy as it was at the grant. NULL: permanent.';
COMMENT ON COLUMN idempotency_records.on_abandoned IS '0 take_over, 1 hold.';
COMMENT ON COLUMN idempotency_records.on_server_error IS '0 release, 1 record, 2 hold.';
COMMENT ON COLUMN idempotency_records.gave_up IS
  '0 no, 1 outcome unknown, 2 server error, 3 did nothing itself.';
COMMENT ON COLUMN idempotency_records.abandoned_attempt IS
  'What the latest attempt was told when it took over. NULL: it did not take over.';
COMMENT ON COLUMN idempotency_records.abandoned_reason IS
  '0 lease lapsed, 1 outcome unknown, 2 server error.';
COMMENT ON COLUMN idempotency_records.headers IS
  'Ordered pairs of name and value, each behind its length as 8 bytes, big-endian. Bytes, '
  'because JSONB would lose order, duplicates and binary values.';
COMMENT ON COLUMN idempotency_records.response_digest IS
  'SHA-256 of the response as it was sent, before anything was left out.';

CREATE TABLE idempotency_conflicts (
  scope text COLLATE "C" NOT NULL,
  key text COLLATE "C" NOT NULL,
  claim_token uuid NOT NULL,
  response_digest bytea NOT NULL,
  status_code integer NOT NULL,
  first_seen_at timestamptz NOT NULL,
  last_seen_at timestamptz NOT NULL,
  count bigint NOT NULL DEFAULT 1,
  PRIMARY KEY (scope, key, claim_token, response_digest)
);
CREATE INDEX idx_idempotency_conflicts_last_seen ON idempotency_conflicts (last_seen_at);
COMMENT ON TABLE idempotency_conflicts IS
  'Responses that were refused at Finalize: each is proof that work was done twice.';
COMMENT ON COLUMN idempotency_conflicts.count IS 'How often the same response was refused.';

INSERT INTO idempotency_schema (version, name, major) VALUES (1, 'coordinator', true);
