#!/usr/bin/env python3
"""Which tree a row of the ledger tells of, and which rows its table sums."""

import os
import tempfile
import unittest

import ledger

_VARIABLES = {"IDEMPOTENCY_LEDGER_COMMIT": "0123456789",
              "IDEMPOTENCY_LEDGER_SOURCE": "abcdefabcdef"}


class LedgerTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.replace("LEDGER", os.path.join(folder.name, "ledger.tsv"))
        self.addCleanup(ledger.begin)

    def replace(self, name, value):
        self.addCleanup(setattr, ledger, name, getattr(ledger, name))
        setattr(ledger, name, value)

    def row(self):
        ledger.append("model", 1, states=5)
        return ledger.read()[-1]

    def test_a_row_tells_of_the_tree_that_the_run_began_with(self):
        now = ledger.source_digest()
        self.assertEqual(self.row()["source"], now)
        self.replace("source_digest", lambda: "later")
        self.replace("commit", lambda: "later")
        row = self.row()
        self.assertEqual(row["source"], now)
        self.assertTrue(row["commit"].endswith("+"))
        self.assertNotIn("later", row["commit"])

    def test_the_mark_is_made_once_and_only_for_a_change(self):
        self.replace("commit", lambda: "c")
        ledger.begin()
        self.assertEqual(self.row()["commit"], "c")
        self.replace("commit", lambda: "c+")
        ledger.begin()
        self.replace("source_digest", lambda: "later")
        self.assertEqual(self.row()["commit"], "c+")

    def test_a_script_hands_its_beginning_down(self):
        self.addCleanup(lambda: [os.environ.pop(name) for name in _VARIABLES])
        os.environ.update(_VARIABLES)
        ledger.begin()
        row = self.row()
        self.assertEqual((row["commit"], row["source"]),
                         ("0123456789+", "abcdefabcdef"))

    def test_what_servers_with_bugs_answered_is_no_operation_checked(self):
        ledger.append("faults", 1, operations=10)
        ledger.append("failover", 1, operations=20)
        ledger.append("mutants", 1, operations=400, mutants=2, caught=1)
        table = ledger.table(ledger.read())
        self.assertIn("operations checked | 30 | 30 |", table)
        self.assertIn("of those planted | 1 of 2 | 1 of 2 |", table)


if __name__ == "__main__":
    unittest.main()
