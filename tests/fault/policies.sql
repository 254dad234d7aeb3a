-- The policies of a fault run: so short that takeovers, expiry and new lives of
-- a key all happen within a round. May be applied again at any time.
INSERT INTO ttl_policies (name, lease, max_lease, retention,
                          retention_after_finalize, on_abandoned,
                          on_server_error)
VALUES
  ('fault_brief', '300 ms', '3 s', '2 s', NULL, 'take_over', 'release'),
  ('fault_record', '500 ms', '3 s', '3 s', NULL, 'take_over', 'record'),
  ('fault_hold', '400 ms', '3 s', '3 s', NULL, 'hold', 'hold'),
  ('fault_doubt', '600 ms', '3 s', '1 day', NULL, 'take_over', 'hold'),
  ('fault_keep', '800 ms', '5 s', '1 day', NULL, 'hold', 'release'),
  ('fault_forever', '2 s', '5 s', NULL, '2 s', 'take_over', 'release')
ON CONFLICT (name) DO NOTHING;
