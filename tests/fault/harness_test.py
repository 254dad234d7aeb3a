#!/usr/bin/env python3
"""What the harness counts, and what it must not count."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest

import ledger
import run
import summary
from crew import Caller, Crew
from fault_servers import lacked_memory
from faults import CLASSES
from histories import Traffic, now
from programs import ProgramDied, ProgramError
from rounds import Check, Injection, noting
from servers import Replies, address_space, has_logged, has_mapped

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

    def test_calls_of_a_killed_caller_are_under_way_no_more(self):
        self.write("a", _calls("a", (1, 2), (3, None)))
        self.write("b", _calls("b", (3, None)))
        self.traffic.read()
        self.traffic.forget(os.path.join(self._folder.name, "a"))
        self.assertEqual(self.traffic.overlapping(0, 5 * _MS), 3)
        later = now() + _S
        self.assertEqual(self.traffic.overlapping(later, later + _S), 1)

    def test_one_answer_is_no_recovery(self):
        spans = [(1001, 1002)] + [(t, t + 1) for t in range(3000, 4000, 10)]
        self.write("a", _calls("a", *spans))
        self.traffic.read()
        self.assertEqual(self.traffic.recovered_at(_S, rate=50), 3001 * _MS)
        self.assertIsNone(self.traffic.recovered_at(_S, rate=500))


_CHECKED = {"operations": 1}


def _round(*injections, name="test", problems=(), violations=()):
    return types.SimpleNamespace(
        number=1, fault_class=types.SimpleNamespace(name=name),
        injections=list(injections), problems=list(problems),
        violations=list(violations),
        traffic=types.SimpleNamespace(internal_errors=0))


def _result(*injections, name="test", problems=(), violations=(),
            counts=None):
    return summary.Result(
        _round(*injections, name=name, problems=problems),
        _CHECKED if counts is None else counts, violations)


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


class PublishingTest(unittest.TestCase):
    def publish(self, results, **left_out):
        with tempfile.TemporaryDirectory() as folder, \
                contextlib.redirect_stdout(io.StringIO()), \
                contextlib.redirect_stderr(io.StringIO()):
            return summary.publish(results, folder, **left_out)

    def test_a_run_is_as_it_should_be(self):
        uncounted = _good()
        uncounted.during = 0
        self.assertTrue(self.publish([_result(_good()), _result(uncounted),
                                      _result(_good(), name="other")]))

    def test_violations_fail_it(self):
        self.assertFalse(self.publish([
            _result(_good()), _result(_good(), violations=["S7 k: a"])]))
        died = summary.Result(_round(_good(), violations=["L2: it died"]),
                              _CHECKED, [])
        self.assertFalse(self.publish([died]))

    def test_shares_are_judged_over_all_rounds(self):
        def rounds(overslept):
            return [_result(_good(), counts={"operations": 1, "woken": 7,
                                             "overslept": overslept})] * 4
        self.assertTrue(self.publish(rounds(3)))
        self.assertFalse(self.publish(rounds(4)))
        self.assertEqual(summary.broken_shares(rounds(4)[:1]), [])
        self.assertEqual(summary.ledger_counts(rounds(4))["violations"], 1)

    def test_a_round_without_a_whole_check_fails_it(self):
        self.assertFalse(self.publish([
            _result(_good()), _result(_good(), counts={})]))

    def test_a_class_of_which_nothing_counted_fails_it(self):
        uncounted = _good()
        uncounted.during = 0
        self.assertFalse(self.publish([_result(_good()),
                                       _result(uncounted, name="other")]))
        self.assertFalse(self.publish([_result(problems=["broke off"])]))

    def test_a_run_without_rounds_fails(self):
        self.assertFalse(self.publish([]))

    def test_a_class_left_out_fails_it_only_if_it_was_named(self):
        for allowed in (True, False):
            self.assertEqual(allowed, self.publish(
                [_result(_good())], left_out=["a is left out: no b"],
                may_leave_out=allowed))


class CheckTest(unittest.TestCase):
    def check(self, script):
        with tempfile.TemporaryDirectory() as folder:
            return Check(types.SimpleNamespace(folder=folder),
                         ["sh", "-c", script]).finish()

    def test_there_are_counts_of_a_whole_check_only(self):
        told = "echo checked operations=5;"
        self.assertEqual(self.check(told), ({"operations": 5}, [], None))
        counts, violations, trouble = self.check(
            f"echo S7 k: a; {told} exit 1")
        self.assertEqual((counts, violations, trouble),
                         ({"operations": 5}, ["S7 k: a"], None))
        counts, violations, trouble = self.check(
            "echo S7 k: a; echo unfinished operations=5; exit 1")
        self.assertEqual((counts, violations), ({}, ["S7 k: a"]))
        self.assertIsNotNone(trouble)
        for script in (told + "exit 2", told + "exit 1", told + "kill -9 $$",
                       f"echo S7 k: a; {told}", "true"):
            counts, _, trouble = self.check(script)
            self.assertEqual(counts, {}, script)
            self.assertIsNotNone(trouble, script)


class ProgramsTest(unittest.TestCase):
    def caller(self, *command):
        caller = Caller("c1", command, "c1.history", subprocess.DEVNULL)
        self.addCleanup(caller.wait)
        return caller

    def test_a_caller_that_has_ended_by_itself_cannot_be_killed(self):
        caller = self.caller("sh", "-c", "exit 3")
        while caller.is_running():
            time.sleep(0.01)
        for step in (caller.kill, caller.require_running):
            with self.assertRaisesRegex(ProgramDied, "c1 .* with 3"):
                step()

    def test_who_cannot_ask_for_left_keys_is_no_stuck_key(self):
        with tempfile.TemporaryDirectory() as folder:
            for status, texts in ((0, []), (2, ["caller left ended with 2"])):
                program = os.path.join(folder, f"ends_with_{status}")
                with open(program, "w", encoding="utf-8") as file:
                    file.write(f"#!/bin/sh\nexit {status}\n")
                os.chmod(program, 0o700)
                crew = Crew(types.SimpleNamespace(caller=program), "s", folder,
                            folder, subprocess.DEVNULL)
                self.addCleanup(crew.close)
                self.assertEqual(crew.ask_for("keys", ["a"]), texts)

    def test_a_caller_that_runs_can(self):
        caller = self.caller("sleep", "60")
        caller.require_running()
        caller.kill()
        self.assertEqual(caller.wait(), -signal.SIGKILL)

    def test_what_a_process_has_mapped(self):
        self.assertTrue(has_mapped(os.getpid(), sys.executable))
        self.assertFalse(has_mapped(os.getpid(), __file__))
        self.assertFalse(has_mapped(os.getpid(), "/nowhere/lib.so"))

    def test_what_a_log_says_since(self):
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as log:
            log.write("std::bad_alloc\n")
            log.flush()
            self.assertTrue(has_logged(log.name, "bad_alloc", 0))
            self.assertFalse(has_logged(log.name, "bad_alloc", 15))

    def test_what_shows_that_memory_was_lacking(self):
        pid, said = os.getpid(), []

        def server(running=True):
            return types.SimpleNamespace(
                pid=pid, is_running=lambda: running,
                has_logged=lambda words, since: words in said)

        much = address_space(pid) + (1 << 40)
        self.assertFalse(lacked_memory(server(), much, 0))
        self.assertTrue(lacked_memory(server(), 1 << 20, 0))
        self.assertTrue(lacked_memory(server(running=False), much, 0))
        said.append("bad_alloc")
        self.assertTrue(lacked_memory(server(), much, 0))

    def test_replies_have_a_limit(self):
        with subprocess.Popen(["sh", "-c", "echo ready; exec sleep 60"],
                              stdout=subprocess.PIPE) as process:
            replies = Replies("it", process)
            self.assertEqual(replies.next(), "ready")
            with self.assertRaises(ProgramError):
                replies.next(seconds=0.01)
            process.kill()
            with self.assertRaises(ProgramError):
                replies.next()
            replies.close()


class RunTest(unittest.TestCase):
    def test_what_breaks_a_round_off(self):
        for error, violation in ((ProgramDied("s1"), "L2: s1"),
                                 (ProgramError("slow"), None),
                                 (FileNotFoundError("f"), None),
                                 (IndexError("i"), "DEFECT: ")):
            round_ = _round()
            with contextlib.redirect_stderr(io.StringIO()), \
                    noting(round_, "broke off"):
                raise error
            self.assertEqual(round_.problems, [f"broke off: {error}"])
            self.assertEqual(len(round_.violations), violation is not None)
            self.assertTrue("".join(round_.violations).startswith(
                violation or ""))

    def test_what_ends_a_run(self):
        def end(error):
            def play():
                raise error
            with contextlib.redirect_stderr(io.StringIO()):
                return run.until_it_ends(play)

        self.assertEqual(run.until_it_ends(lambda: 2), 2)
        self.assertEqual(end(SystemExit(128 + signal.SIGTERM)), 143)
        self.assertEqual(end(KeyboardInterrupt()), 130)
        self.assertEqual(end(ProgramError("x")), 1)
        self.assertEqual(end(ValueError("x")), 1)

    def play(self, names, minutes, result=lambda name: _result(name=name)):
        """The names of the classes that were played."""
        results, played = [], []

        def play(fault_class):
            played.append(fault_class.name)
            results.append(result(fault_class.name))

        run.play_classes(
            types.SimpleNamespace(play=play, finish=lambda: None), results,
            [types.SimpleNamespace(name=name) for name in names], None,
            types.SimpleNamespace(minutes=minutes, seed=1),
            types.SimpleNamespace(minutes=lambda: len(played)))
        return played

    def test_a_class_of_which_nothing_counted_is_played_once_more(self):
        def result(name):
            return _result(*[_good()] * (name != "b"), name=name)

        played = self.play(["a", "b", "c"], None, result)
        self.assertEqual(sorted(played[:3]), ["a", "b", "c"])
        self.assertEqual(played[3:], ["b"])

    def test_classes_are_played_while_there_is_time(self):
        self.assertEqual(len(self.play(["a", "b"], 5)), 5)
        self.assertEqual(self.play(["a"], 0), [])

    def test_says_what_it_leaves_out(self):
        deployment = types.SimpleNamespace(
            programs=types.SimpleNamespace(previous=None))
        chosen, left_out = run.choose(
            deployment, ["versions_mixed", "server_killed"], False)
        self.assertEqual(chosen, [CLASSES["server_killed"]])
        self.assertEqual(len(left_out), 1)
        self.assertIn("versions_mixed", left_out[0])

    def test_a_run_that_ends_early_is_in_the_ledger(self):
        with tempfile.TemporaryDirectory() as folder:
            before = ledger.LEDGER
            ledger.LEDGER = os.path.join(folder, "ledger.tsv")
            self.addCleanup(setattr, ledger, "LEDGER", before)
            faults = run.FaultRun(
                types.SimpleNamespace(quick=False, classes="a", seed=1),
                folder, types.SimpleNamespace(minutes=lambda: 1))

            def play():
                faults.results.append(_result(_good(), violations=["S7"]))
                raise SystemExit(143)

            with contextlib.redirect_stdout(io.StringIO()), \
                    contextlib.redirect_stderr(io.StringIO()):
                status = run.until_it_ends(play)
                self.assertFalse(faults.publish())
            faults.write_down()
            self.assertEqual(status, 143)
            (row,) = ledger.read()
            self.assertEqual((row["faults"], row["violations"]), ("1", "1"))


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
