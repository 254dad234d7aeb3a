#!/usr/bin/env python3
"""Which failovers count, and which answers a change that is gone excuses."""

import os
import tempfile
import unittest

import failover_results
from failover_check import Histories, Phantoms
from rounds import Injection

_S = 1_000_000_000
_KEY = ("s", "k")
_CHANGE = (*_KEY, "7", "then")
# Who was told what of the key, and when the call was made.
_HISTORY = """\
call op=c1-1 t=10 kind=lookup scope=s key=k
answer op=c1-1 t=11 code=OK outcome=found
call op=c1-2 t=10 kind=claim scope=s key=k token=t
answer op=c1-2 t=11 code=OK outcome=in_progress
call op=c1-3 t=10 kind=claim scope=s key=k token=t
answer op=c1-3 t=11 code=OK outcome=claimed fencing=5
call op=c1-4 t=10 kind=finalize scope=s key=k token=t digest=d
answer op=c1-4 t=11 code=FAILED_PRECONDITION
call op=c1-5 t=10 kind=lookup scope=s key=other
answer op=c1-5 t=11 code=OK outcome=found
call op=c1-6 t=100 kind=lookup scope=s key=k
answer op=c1-6 t=101 code=OK outcome=found
call op=c1-7 t=10 kind=claim scope=s key=k token=t
call op=c1-8 t=10 kind=claim scope=s key=k token=t renew=5
answer op=c1-8 t=11 code=FAILED_PRECONDITION reason=CLAIM_SUPERSEDED
"""


class PhantomsTest(unittest.TestCase):
    def setUp(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "c1.history")
            with open(path, "w", encoding="ascii") as file:
                file.write(_HISTORY)
            self.histories = Histories([path])
        self.phantoms = Phantoms({_CHANGE}, set(), until=50)

    def explain(self, line):
        return self.phantoms.explain(line, self.histories)

    def test_reads_of_a_change_that_is_gone_are_excused(self):
        for line in ("S8 s k: Lookup c1-1 was told found, and no state of the "
                     "record explains it",
                     "S5 s k: Claim c1-2 was told in_progress, and no state of "
                     "the record explains it",
                     "S12 s k: claim c1-8 was told CLAIM_SUPERSEDED, and no "
                     "state of the record explains it",
                     "S17 s k: c1-1 and c1-2"):
            self.assertTrue(self.explain(line), line)

    def test_what_acts_or_is_told_to_act_is_not(self):
        for operation in ("c1-3", "c1-4", "c1-7"):
            line = f"S8 s k: {operation} was told what no state explains"
            self.assertFalse(self.explain(line), line)

    def test_one_excuse_is_none_for_the_others_of_a_line(self):
        for other in ("c1-3", "c1-4", "c1-6", "c1-99"):
            line = f"S8 s k: c1-1 was not told the response of {other}"
            self.assertFalse(self.explain(line), line)

    def test_other_keys_and_later_calls_have_no_excuse(self):
        self.assertFalse(self.explain("S8 s other: Lookup c1-5 was told found"))
        self.assertFalse(self.explain("S8 s k: Lookup c1-6 was told found"))

    def test_only_what_a_read_can_break_is_excused(self):
        for number in ("S1", "S2", "S3", "S7", "S14", "S18", "S19", "L3",
                       "ORDER", "DEFECT"):
            self.assertFalse(self.explain(f"{number} s k: c1-1"), number)

    def test_a_line_without_calls_is_not_excused(self):
        self.assertFalse(self.explain(
            "S17 s k: the log has a gap before change 7 (claim token "
            "01076011-c468-4746-a6b0-c0e8b4f53fa6)"))

    def test_nothing_is_excused_where_nothing_is_gone(self):
        phantoms = Phantoms({_CHANGE}, {_CHANGE}, until=50)
        self.assertEqual(phantoms.count, 0)
        self.assertFalse(phantoms.explain("S8 s k: c1-1", self.histories))


def _round(kind="killed", **changed):
    done = failover_results.Round(kind, 1)
    done.counts = {"operations": 100, "keys": 3, "effects": 2, "unknown": 1}
    done.injection = Injection(0, _S, **{
        "rate_before": 200, "during": 5, "after": 9, "recovered_ms": 20,
        **changed})
    return done


class CountingTest(unittest.TestCase):
    def counts(self, *rounds):
        return failover_results.ledger_counts(rounds)

    def test_a_failover_with_traffic_around_it_counts(self):
        counts = self.counts(_round(), _round("parted"))
        self.assertEqual(counts["faults"], 2)
        self.assertEqual(counts["failovers"], 2)
        self.assertEqual(counts["not_counted"], 0)
        self.assertEqual(counts["operations"], 200)
        self.assertEqual(counts["classes"],
                         {"failover_killed", "failover_parted"})

    def test_a_failover_without_traffic_does_not(self):
        for name, value in (("rate_before", 99), ("during", 0),
                            ("recovered_ms", None), ("after", 0)):
            counts = self.counts(_round(), _round(**{name: value}))
            self.assertEqual((counts["failovers"], counts["not_counted"]),
                             (1, 1), name)

    def test_what_breaks_off_is_a_violation_and_not_counted(self):
        done = failover_results.Round("killed", 1)
        done.fail("broke off: node2 did not start")
        counts = self.counts(done)
        self.assertEqual((counts["failovers"], counts["not_counted"],
                          counts["operations"], counts["violations"]),
                         (0, 1, 0, 1))
        self.assertIn("not counted: broke off",
                      failover_results.describe(1, 1, done))
        self.assertIn("1 not counted",
                      failover_results.summarize([done])[0])

    def test_asynchronous_replication_is_measured_and_counts_as_nothing(self):
        done = failover_results.Round("asynchronous", 1)
        done.violations.append("calls do not succeed again")
        counts = self.counts(done)
        self.assertEqual((counts["faults"], counts["not_counted"],
                          counts["failovers"], counts["operations"],
                          counts["classes"]), (0, 0, 0, 0, set()))
        self.assertEqual(counts["violations"], 1)


if __name__ == "__main__":
    unittest.main()
