"""The programs that use the servers of a round, of faults or of failovers:
callers, and the payment channel that they charge."""

import os
import signal
import subprocess

import programs
from histories import Traffic
from programs import ProgramDied, ProgramError
from servers import Replies

# Calls under way at the end may last as long as their deadlines.
_STOP_SECONDS = 60


class Wallet:
    """The payment channel of a round; its ledger is part of the history."""

    def __init__(self, program, ledger, socket, log):
        self.history = ledger
        self.socket = socket
        self._command = [program, "--ledger=" + ledger, "--socket=" + socket]
        self._log = log
        self._process = None
        self.start()

    def start(self):
        """With all that it did before."""
        self._process = programs.start(
            self._command, self._log, signal.SIGKILL, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE)
        self._replies = Replies("the wallet", self._process)
        if self._replies.next() != "ready":
            raise ProgramError("the wallet did not start")

    def require_running(self):
        if self._process.poll() is not None:
            raise ProgramError("the wallet has ended by itself, with "
                               f"{self._process.returncode}")

    def send_signal(self, number):
        self._process.send_signal(number)

    def kill(self):
        self.require_running()
        self.stop(signal.SIGKILL)

    def stop(self, number=signal.SIGTERM):
        programs.stop(self._process, number)
        self._process.stdin.close()
        self._replies.close()


class Caller:
    """A process that makes calls and writes their history."""

    def __init__(self, name, command, history, log):
        self.name = name
        self.history = history
        # A SIGTERM would never reach one that a fault has stopped.
        self._process = programs.start(command, log, signal.SIGKILL,
                                       stdin=subprocess.PIPE, stdout=log)

    def is_running(self):
        return self._process.poll() is None

    def require_running(self):
        if not self.is_running():
            raise ProgramDied(f"caller {self.name} has ended by itself, with "
                              f"{self._process.returncode}")

    def send_signal(self, number):
        self._process.send_signal(number)

    def kill(self):
        self.require_running()
        programs.stop(self._process, signal.SIGKILL)
        self._process.stdin.close()

    def ask_to_stop(self):
        self.send_signal(signal.SIGCONT)
        self.send_signal(signal.SIGTERM)

    def wait(self):
        """Until it has ended as it was asked to; returns its status."""
        try:
            status = self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            status = programs.stop(self._process, signal.SIGKILL)
        self._process.stdin.close()
        return status


class Crew:
    """Those of one round, and what the callers have written so far. Nothing
    runs yet."""

    def __init__(self, programs_, scope, folder, socket_folder, log):
        """The path of a socket may not be long, as that of `folder` may be."""
        self._programs = programs_
        self._scope = scope
        self._folder = folder
        self._socket = os.path.join(socket_folder, "wallet")
        self._log = log
        self._named = 0
        self.wallet = None
        self.callers = []  # that are to run
        self.histories = []  # of all there were
        self.traffic = Traffic()

    def start_wallet(self):
        self.wallet = Wallet(self._programs.wallet,
                             os.path.join(self._folder, "wallet.history"),
                             self._socket, self._log)

    def add(self, addresses, random, *flags):
        """One more caller of these servers."""
        self._named += 1
        caller = self._start(
            f"c{self._named}", addresses, "--scope=" + self._scope,
            "--wallet=" + self.wallet.socket, *flags,
            f"--seed={random.randrange(1 << 31)}")
        self.traffic.add(caller.history)

    def ask_for(self, left_keys, addresses):
        """Has the keys in this file asked for, when no other caller runs;
        returns a text if that could not be done."""
        self._start("left", addresses, "--left_keys=" + left_keys)
        return [f"caller {name} ended with {status}"
                for name, status in self._wait()]

    def _start(self, name, addresses, *flags):
        history = os.path.join(self._folder, name + ".history")
        self.histories.append(history)
        self.callers.append(Caller(name, [
            self._programs.caller, "--servers=" + ",".join(addresses),
            "--history=" + history, "--name=" + name, *flags], history,
            self._log))
        return self.callers[-1]

    def kill(self, caller):
        """SIGKILL of one of the callers, which is one no more."""
        caller.kill()
        self.callers.remove(caller)
        self.traffic.forget(caller.history)

    def stop(self):
        """Ends the callers; returns a text on each that did not end as it was
        asked to."""
        for caller in self.callers:
            if caller.is_running():
                caller.ask_to_stop()
        return [f"caller {name} ended with {status} when it was to stop"
                for name, status in self._wait()]

    def _wait(self):
        """Those that did not end well, with their status."""
        callers, self.callers = self.callers, []
        ended = [(caller.name, caller.wait()) for caller in callers]
        self.traffic.read()
        return [(name, status) for name, status in ended if status != 0]

    def close(self):
        """Of what stop() has left."""
        if self.wallet is not None:
            self.wallet.stop()
        self.traffic.close()
