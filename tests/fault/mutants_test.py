#!/usr/bin/env python3
"""What counts as catching a planted bug."""

import types
import unittest

import mutants
import run  # fills the registry of classes
from planted import read_bugs

_BUG = "01_finalize_without_token"  # of S6 and S7


class _Deployment:
    def use_server(self, program):
        self.program = program


class _Hunt(mutants._Hunt):
    """With rounds that break these rules, one after the other."""

    def __init__(self, *rounds):
        super().__init__(_Deployment(), types.SimpleNamespace(build_dir="b"),
                         "", lambda text: None)
        self._rounds = list(rounds)

    def _play(self, fault_class):
        broken = self._rounds.pop(0) if self._rounds else set()
        return {"operations": 10}, broken, None


class HuntTest(unittest.TestCase):
    def setUp(self):
        (self.bug,) = read_bugs([_BUG])

    def test_a_rule_of_the_header_catches(self):
        caught = _Hunt(set(), {"S3", "S7"}).hunt(self.bug)
        self.assertEqual((caught.by, caught.operations), ("S7", 20))

    def test_other_rules_do_not(self):
        for rule in ("S3", "ORDER", "DEFECT", "INTERNAL", "L2"):
            caught = _Hunt({rule}).hunt(self.bug)
            self.assertIsNone(caught.by, rule)
            self.assertIn("by another rule: " + rule, caught.line())

    def test_further_rules_are_those_that_the_header_names(self):
        (bug,) = read_bugs(["17_error_for_the_innocent"])
        self.assertEqual(_Hunt({"INTERNAL"}).hunt(bug).by, "INTERNAL")
        self.assertIsNone(_Hunt({"S7"}).hunt(bug).by)

    def test_every_class_that_a_header_names_is_one(self):
        for bug in read_bugs():
            for name in bug.fault_classes():
                self.assertIn(name, {"all", *run.CLASSES}, bug.name)

    def test_whatever_breaks_without_a_bug_is_heard(self):
        self.assertEqual(_Hunt().hear_silence([self.bug]), [])
        (line,) = _Hunt(set(), {"S7", "L2"}).hear_silence([self.bug])
        self.assertIn("L2 S7", line)


if __name__ == "__main__":
    unittest.main()
