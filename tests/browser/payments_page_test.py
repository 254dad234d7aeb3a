#!/usr/bin/env python3
"""The page of the payments example, as somebody uses it in Chromium.

usage: payments_page_test.py RUN_SH BUILD SCREENSHOTS

Starts the example from the folder BUILD, clicks each button, and looks at what
the page shows and at what the wallet has charged. Needs chromium,
chromium-driver and python3-selenium. Screenshots go to the folder SCREENSHOTS.
"""

import base64
import collections
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from ports import free_port

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

RUN_SH, BUILD, SCREENSHOTS = sys.argv[1:4]
START_SECONDS = 60
# Longer than any action takes: a lease and the wait for the wallet are 3 s.
ACTION_SECONDS = 40
DESKTOP = (1280, 1000)
PHONE = (390, 844)
# Of a machine that reaches the world through a proxy, to this one.
os.environ["no_proxy"] = os.environ["NO_PROXY"] = "127.0.0.1,localhost"


def read_bytes(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


class Example:
    """run.sh, with a coordinator and a database of its own."""

    def __init__(self, folder):
        # The database's user must be able to reach its folder.
        folder = pathlib.Path(folder)
        folder.chmod(0o755)
        self.coordinator = f"127.0.0.1:{free_port()}"
        environment = dict(
            os.environ, IDEMPOTENCY_LISTEN=self.coordinator,
            IDEMPOTENCY_DATA_DIR=str(folder / "data"), TMPDIR=str(folder))
        self.lines = []
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            [RUN_SH, f"--build={BUILD}", f"--port={free_port()}"],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.url = self._wait_for(r"in a browser: +(\S+)")

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return json.load(answer)

    def stop(self):
        """Ends it; returns its exit status."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        status = self._process.wait(START_SECONDS)
        self._reader.join()
        self._process.stdout.close()
        return status

    def _read(self):
        for line in self._process.stdout:
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self.lines.append("")
            self._changed.notify_all()

    def _wait_for(self, pattern):
        until = time.monotonic() + START_SECONDS
        with self._changed:
            while True:
                found = re.search(pattern, "".join(self.lines))
                if found:
                    return found[1]
                ended = self.lines and not self.lines[-1]
                if ended or not self._changed.wait(until - time.monotonic()):
                    self._process.terminate()
                    raise AssertionError(
                        "it did not start:\n" + "".join(self.lines))


def start_chromium(profile):
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for switch in ("headless=new", "no-sandbox", "disable-gpu", "disable-quic",
                   "no-first-run", "no-proxy-server", "disable-background-networking",
                   "disable-component-update", "disable-sync",
                   "disable-dev-shm-usage", "hide-scrollbars",
                   f"user-data-dir={profile}"):
        options.add_argument(f"--{switch}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = shutil.which("chromedriver") or "chromedriver"
    return webdriver.Chrome(service=Service(driver), options=options)


class PaymentsPageTest(unittest.TestCase):
    """One page, whose log grows from test to test."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.example = Example(cls.folder.name)
        cls.addClassCleanup(cls.end_example)
        profile = tempfile.TemporaryDirectory()
        cls.addClassCleanup(profile.cleanup)
        cls.browser = start_chromium(profile.name)
        cls.addClassCleanup(cls.browser.quit)
        os.makedirs(SCREENSHOTS, exist_ok=True)

    @classmethod
    def end_example(cls):
        """It ends when it is told to, and leaves nothing behind."""
        status = cls.example.stop()
        commands = [read_bytes(path) for path
                    in pathlib.Path("/proc").glob("[0-9]*/cmdline")]
        left = [command for command in commands
                if cls.folder.name.encode() in command
                or cls.example.coordinator.encode() in command]
        if status != 0 or left:
            raise AssertionError(f"status {status}, left running: {left}")

    def setUp(self):
        self.browser.set_window_size(*DESKTOP)
        self.browser.get(self.example.url)
        self.seen_charges = len(self.example.get("ledger"))

    def tearDown(self):
        errors = [entry["message"] for entry in self.browser.get_log("browser")
                  if "the server responded with a status of"
                  not in entry["message"]]
        self.assertEqual(errors, [])

    def click(self, button):
        """Returns when the action has ended."""
        found = self.browser.find_element(By.ID, button)
        found.click()
        WebDriverWait(self.browser, ACTION_SECONDS, 0.05).until(
            lambda _: found.is_enabled())

    def tries(self):
        """(decision, status) of each try on the page, the first one first."""
        items = self.data_of("#log li", "item.dataset.decision",
                             "Number(item.dataset.status)")
        return [tuple(item) for item in reversed(items)]

    def data_of(self, selector, *fields):
        """Of each such element; at once, since the page changes meanwhile."""
        return self.browser.execute_script(
            f"return Array.from(document.querySelectorAll('{selector}'), "
            f"(item) => [{', '.join(fields)}])")

    def log_text(self):
        return self.browser.find_element(By.ID, "log").text

    def charges_on_page(self):
        """How often each payment of this page was charged, as it shows."""
        return [charges for charges, in self.data_of(
            "#ledger tr[data-key]", "Number(item.dataset.charges)")]

    def verdict(self):
        return self.browser.find_element(By.ID, "verdict").text

    def assert_charged_once(self):
        charges = self.example.get("ledger")
        self.assertEqual(len(charges), self.seen_charges + 1)
        by_key = collections.Counter(c["downstream_key"] for c in charges)
        self.assertEqual(set(by_key.values()), {1})
        self.assertEqual(self.charges_on_page(), [1])
        self.assertRegex(self.verdict(), "^1 payment in .*none was charged twice")

    def picture(self, name):
        """The whole page, also what one has to scroll to."""
        command = self.browser.execute_cdp_cmd
        size = command("Page.getLayoutMetrics", {})["cssContentSize"]
        png = command("Page.captureScreenshot", {
            "captureBeyondViewport": True, "clip": {**size, "scale": 1}})
        with open(os.path.join(SCREENSHOTS, f"{name}.png"), "wb") as file:
            file.write(base64.b64decode(png["data"]))

    def test_pay_is_claimed_and_charged(self):
        self.click("pay")
        self.assertEqual(self.tries(), [("Claimed", 201)])
        self.assert_charged_once()

    def test_double_click_is_charged_once(self):
        self.click("double-click")
        tries = self.tries()
        self.assertEqual(tries.count(("Claimed", 201)), 1)
        self.assertEqual(tries.count(("Replay", 201)), 1)
        others = set(tries) - {("Claimed", 201), ("Replay", 201)}
        self.assertLessEqual(others, {("InProgress", 409)})
        self.assert_charged_once()

    def test_lost_answer_is_replayed(self):
        self.click("lose-answer")
        self.assertEqual(self.tries(), [("asked", 504), ("Replay", 201)])
        self.assertIn("its answer is recorded", self.log_text())
        self.assert_charged_once()

    def test_silent_wallet_is_asked_what_it_did(self):
        self.click("silent-wallet")
        self.assertEqual(self.tries(), [("asked", 504), ("Resolved", 201)])
        self.assertIn("is in doubt", self.log_text())
        self.assertIn("did not learn what it had done", self.log_text())
        self.assert_charged_once()

    def test_dead_pods_payment_is_resolved_by_the_other_pod(self):
        pods = {pod["process"] for pod in self.example.get("pods")}
        self.click("kill-pod")
        tries = self.tries()
        self.assertEqual(tries[0], ("asked", 502))
        self.assertEqual(tries[-1], ("Resolved", 201))
        # How often the page comes before the lease is over is up to its clock.
        self.assertLessEqual(set(tries[1:-1]), {("InProgress", 409)})
        text = self.log_text()
        dead = re.search(r"502 from (pod-[ab])", text)[1]
        other = {"pod-a": "pod-b", "pod-b": "pod-a"}[dead]
        self.assertIn(f"{other} took over from attempt 1 of {dead}, "
                      "whose lease ended without a word", text)
        self.assert_charged_once()
        self.picture("killed")

        def is_replaced(_):
            now = {pod["process"] for pod in self.example.get("pods")}
            return 0 not in now and len(now - pods) == 1
        WebDriverWait(self.browser, ACTION_SECONDS, 0.1).until(is_replaced)

    def test_other_amount_with_the_same_key_is_refused(self):
        self.click("other-amount")
        self.assertEqual(self.tries(), [("Claimed", 201), ("Mismatch", 422)])
        self.assert_charged_once()

    def test_all_of_it_on_one_page_and_on_a_phone(self):
        buttons = ("pay", "double-click", "lose-answer", "other-amount")
        for button in buttons:
            self.click(button)
        self.assertEqual(self.charges_on_page(), [1, 1, 1])
        self.assertRegex(self.verdict(), "^3 payments in .*none was charged twice")
        self.picture("desktop")
        self.browser.set_window_size(*PHONE)
        width, shown = self.browser.execute_script(
            "return [document.documentElement.scrollWidth, innerWidth]")
        self.assertLessEqual(width, shown, "the page is wider than a phone")
        self.picture("phone")
        self.browser.execute_script("scrollTo(0, document.body.scrollHeight)")
        top = self.browser.execute_script(
            "return document.getElementById('verdict')"
            ".getBoundingClientRect().top")
        self.assertGreaterEqual(top, 0, "the verdict is out of sight")
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": "dark"}]})
        self.browser.set_window_size(*DESKTOP)
        self.picture("dark")
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {})


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
