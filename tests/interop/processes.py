"""The processes of a run: one coordinator, and the services in each language.
"""

import contextlib
import os
import socket
import subprocess
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..",
                             "support"))
from ports import free_port

_START_SECONDS = 60


class InteropError(Exception):
    """The run itself cannot go on."""


class Process:
    """A program that listens on 127.0.0.1:`port`, from start() to stop()."""

    def __init__(self, name, command, port, log, folder=None):
        """Runs in `folder`, where it may leave what it likes."""
        self.name, self.port = name, port
        self._command, self._log, self._folder = command, log, folder
        self._process = None

    def start(self):
        # The kernel ends it if we are killed; no code of ours runs in the fork,
        # which gRPC's threads would not bear.
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *self._command],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=self._folder, start_new_session=True)

    def wait_until_listening(self):
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 5).close()
                return
            self.check_alive()
            if time.monotonic() > deadline:
                raise InteropError(f"{self.name} does not listen; see {self._log}")
            time.sleep(0.02)

    def check_alive(self):
        if self._process.poll() is not None:
            raise InteropError(f"{self.name} ended with "
                               f"{self._process.returncode}; see {self._log}")

    def stop(self):
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


def coordinator(build, folder, log):
    """The server with its embedded database in `folder`."""
    # PostgreSQL may run as another user than we do.
    os.chmod(folder, 0o755)
    port = free_port()
    return Process(
        "the coordinator",
        [os.path.join(build, "server", "idempotency-server"),
         f"--listen=127.0.0.1:{port}", "--data_dir=" + os.path.join(folder, "data"),
         "--drain_delay=0s"], port, log)
