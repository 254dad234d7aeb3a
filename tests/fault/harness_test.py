#!/usr/bin/env python3
"""What the harness counts, and what it must not count."""

import os
import tempfile
import types
import unittest

import ledger
import summary
from histories import Traffic
from rounds import Injection

_MS = 1_000_000
_S = 1_000 * _MS


def _calls(name, *spans, code="OK"):
    """The lines of calls by the times of their call and answer in ms."""
    lines = ""
    for number, (called, answered) in enumerate(spans):
        lines += f"call op={name}-{number} t={called * _MS} kind=lookup\n"
        if answered is not None:
            lines += (f"answer op={name}-{number} t={answered * _MS} "
                      f"code={code}\n")
    return lines


class TrafficTest(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.traffic = Traffic()
        self.addCleanup(self.traffic.close)

    def write(self, name, text):
        path = os.path.join(self._folder.name, name)
        with open(path, "a", encoding="ascii") as file:
            file.write(text)
        self.traffic.add(path)

    def test_counts_answers_of_use_only(self):
        self.write("a", _calls("a", (1, 2), (3, 4)))
        self.write("b", _calls("b", (1, 2), code="UNAVAILABLE"))
        self.write("c", _calls("c", (1, 3), code="FAILED_PRECONDITION"))
        self.traffic.read()
        self.assertEqual(self.traffic.good_between(0, _S), 3)

    def test_a_torn_line_counts_once_it_is_whole(self):
        path = os.path.join(self._folder.name, "a")
        text = _calls("a", (1, 2))
        self.write("a", text[:-10])
        self.traffic.read()
        self.assertEqual(self.traffic.good_between(0, _S), 0)
        with open(path, "a", encoding="ascii") as file:
            file.write(text[-10:])
        self.traffic.read()
        self.assertEqual(self.traffic.good_between(0, _S), 1)

    def test_what_overlaps_a_fault(self):
        self.write("a", _calls("a", (1, 2), (3, 12), (11, None), (30, 31)))
        self.traffic.read()
        self.assertEqual(self.traffic.overlapping(10 * _MS, 20 * _MS), 2)

    def test_one_answer_is_no_recovery(self):
        spans = [(1001, 1002)] + [(t, t + 1) for t in range(3000, 4000, 10)]
        self.write("a", _calls("a", *spans))
        self.traffic.read()
        self.assertEqual(self.traffic.recovered_at(_S, rate=50), 3001 * _MS)
        self.assertIsNone(self.traffic.recovered_at(_S, rate=500))


def _result(*injections, problems=(), violations=(), counts=None):
    round_ = types.SimpleNamespace(
        number=1, fault_class=types.SimpleNamespace(name="test"),
        injections=list(injections), problems=list(problems),
        dead_servers=[],
        traffic=types.SimpleNamespace(internal_errors=0))
    return summary.Result(round_, counts or {"operations": 1}, violations)


def _good():
    return Injection(begin=0, end=_S, rate_before=200, during=5, after=9,
                     recovered_ms=20)


class CountingTest(unittest.TestCase):
    def test_a_fault_with_traffic_around_it_counts(self):
        self.assertEqual(len(_result(_good()).counted), 1)

    def test_a_fault_without_traffic_does_not(self):
        for name, value in (("rate_before", 99), ("during", 0),
                            ("recovered_ms", None), ("after", 0)):
            injection = _good()
            setattr(injection, name, value)
            result = _result(_good(), injection)
            self.assertEqual(
                (len(result.counted), len(result.uncounted)), (1, 1), name)

    def test_a_round_with_problems_does_not(self):
        result = _result(_good(), problems=["the checker ended with 2"])
        self.assertEqual((len(result.counted), len(result.uncounted)), (0, 1))

    def test_an_outage_that_does_not_end_is_a_violation(self):
        injection = _good()
        injection.recovered_ms = None
        self.assertEqual(len(_result(injection).violations), 1)
        injection.rate_before = 0  # there was one before
        self.assertEqual(len(_result(injection).violations), 0)

    def test_a_violation_is_counted_in_any_case(self):
        result = _result(problems=["broke off"], violations=["S7 k: a, b"])
        self.assertEqual(summary.ledger_counts([result])["violations"], 1)


class LedgerTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        before = ledger.LEDGER
        ledger.LEDGER = os.path.join(folder.name, "ledger.tsv")
        self.addCleanup(setattr, ledger, "LEDGER", before)

    def test_sums_and_the_part_since(self):
        ledger.append("faults", 30, ["a", "b"], 7, faults=10, operations=500)
        ledger.append("faults", 30, ["b", "c"], 8, faults=20, operations=600)
        with open(ledger.LEDGER, encoding="utf-8") as file:
            first, row, other = file.read().splitlines()
        source = row.split("\t")[ledger.COLUMNS.index("source")]
        with open(ledger.LEDGER, "w", encoding="utf-8") as file:
            file.write("\n".join((first, row.replace(source, "0"), other))
                       + "\n")
        table = ledger.table(ledger.read())
        self.assertIn("counted | 30 | 20 | 10,000 |", table)
        self.assertIn("classes of fault | 3 | 2 | 40 |", table)
        self.assertIn("operations checked | 1,100 | 600 |", table)

    def test_refuses_what_is_no_column(self):
        with self.assertRaises(ValueError):
            ledger.append("faults", 1, fault=3)

    def test_refuses_a_torn_row(self):
        ledger.append("model", 1, states=5)
        with open(ledger.LEDGER, "a", encoding="utf-8") as file:
            file.write("2026\tx\n")
        with self.assertRaises(ValueError):
            ledger.read()


if __name__ == "__main__":
    unittest.main()
