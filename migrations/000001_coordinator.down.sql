-- Drops everything of the coordinator, records and evidence included.

DROP TABLE idempotency_conflicts;
DROP TABLE idempotency_records;
DROP TABLE scope_policies;
DROP TABLE ttl_policies;
DROP FUNCTION idempotency_keep_default_policy();
DROP TABLE idempotency_settings;
DROP TABLE idempotency_schema;
