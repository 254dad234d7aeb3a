"""Servers under faults, each between two gates: one towards its callers and
one towards PostgreSQL."""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import time

from ports import free_port
from programs import ProgramDied, ProgramError, start, stop

_REPLY_SECONDS = 10
_START_SECONDS = 30
# HTTP/2, and its first settings.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"


class Replies:
    """The lines that a program prints, with a limit on how long it takes."""

    def __init__(self, name, process):
        self._name = name
        self._pipe = process.stdout
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._pipe, selectors.EVENT_READ)

    def next(self, seconds=_REPLY_SECONDS):
        if not self._ready.select(seconds):
            raise ProgramError(f"{self._name} does not answer")
        line = self._pipe.readline().decode().strip()
        if not line:
            raise ProgramError(f"{self._name} has ended")
        return line

    def close(self):
        self._ready.close()
        self._pipe.close()


class Gate:
    """A fault-gate in front of a port of this machine. It is steered by lines
    on its standard input; every one has taken effect when do() returns."""

    def __init__(self, program, target_port, log, behind="postgres"):
        """`behind` is what is spoken: postgres, grpc."""
        self._process = start(
            [program, f"--target={target_port}", f"--behind={behind}"], log,
            signal.SIGKILL, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._replies = Replies("a gate", self._process)
        word, _, port = self._replies.next().partition(" ")
        if word != "port":
            raise ProgramError("the gate did not say its port")
        self.port = int(port)

    def do(self, command):
        self._process.stdin.write(command.encode() + b"\n")
        self._process.stdin.flush()
        reply = self._replies.next()
        if not reply.startswith("ok"):
            raise ProgramError(f"the gate answered '{command}' with '{reply}'")
        return reply[2:].strip()

    def cuts(self):
        """How many connections it has ended behind a byte or an answer that it
        was told of."""
        counters = dict(word.split("=") for word in self.do("counters").split())
        return int(counters["cuts"])

    def close(self):
        stop(self._process, signal.SIGKILL)
        self._process.stdin.close()
        self._replies.close()


class Server:
    """A server and its gates. The ports stay the same over restarts.

    Raises ProgramDied where a server should be running, or end with status 0,
    and that is not so.
    """

    # The replicas are to find out quickly what is over again, and to clean up
    # while a round lasts; and some responses of the callers are longer than
    # what is kept.
    _FLAGS = ("--drain_delay=200ms", "--drain_timeout=3s",
              "--reaper_pause=500ms", "--body_bytes_max=10000")

    def __init__(self, name, programs, database, log):
        """`database` says the URI by the port of the gate to PostgreSQL."""
        self.name = name
        self.program = programs.server
        self._log = log
        self._port = free_port()
        self.to_database = Gate(programs.gate, database.port, log)
        self.to_callers = Gate(programs.gate, self._port, log, "grpc")
        self._uri = database.uri_by(self.to_database.port)
        self._process = None
        self._asked_to_end = False
        self.changed = False

    @property
    def address(self):
        """Where callers reach it."""
        return f"127.0.0.1:{self.to_callers.port}"

    @property
    def pid(self):
        return self._process.pid

    def is_running(self):
        return self._process is not None and self._process.poll() is None

    def start(self, flags=(), environment=None, program=None):
        """As others than usual if something is said; returns at once."""
        self.changed = bool(flags or environment or program)
        command = [program or self.program, f"--listen=127.0.0.1:{self._port}",
                   "--database=" + self._uri, "--migrate", *self._FLAGS, *flags]
        if environment:
            command = ["env", *(f"{name}={value}" for name, value
                                in environment.items()), *command]
        self._asked_to_end = False
        # A SIGTERM would never reach one that a fault has stopped.
        self._process = start(command, self._log, signal.SIGKILL)

    def wait_until_listening(self):
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            self.require_running()
            if time.monotonic() > deadline:
                raise ProgramDied(f"server {self.name} does not listen after "
                                  f"{_START_SECONDS} s")
            time.sleep(0.02)

    def takes_calls(self):
        """Does anybody speak HTTP/2 behind its port? The kernel alone takes
        connections too."""
        try:
            with self._say_hello() as probe:
                return bool(probe.recv(1))
        except OSError:
            return False

    @contextlib.contextmanager
    def crowd(self, count):
        """So many connections more, on which nothing is asked."""
        with contextlib.ExitStack() as stack:
            for _ in range(count):
                with contextlib.suppress(OSError):
                    stack.enter_context(self._say_hello())
            yield

    def _say_hello(self):
        """A connection that speaks HTTP/2."""
        connection = socket.create_connection(("127.0.0.1", self._port), 2)
        try:
            connection.settimeout(2)
            connection.sendall(_HELLO)
        except OSError:
            connection.close()
            raise
        return connection

    def logged(self):
        """The bytes of its log, for has_logged()."""
        return os.path.getsize(self._log.name)

    def has_logged(self, words, since):
        return has_logged(self._log.name, words, since)

    def require_running(self):
        if not self.is_running():
            raise ProgramDied(f"server {self.name} has ended by itself, with "
                              f"{self._process.returncode}")

    def send_signal(self, number):
        self._asked_to_end |= number == signal.SIGTERM
        self._process.send_signal(number)

    def kill(self):
        """SIGKILL, also while it is stopped. One that was asked to end before
        may have done so, with status 0."""
        if not (self._asked_to_end and self._process.poll() == 0):
            self.require_running()
        self.discard()

    def discard(self):
        """kill() of whatever there is."""
        if self._process is not None:
            stop(self._process, signal.SIGKILL)

    def drain(self, seconds=20):
        """SIGTERM, at which it has to end in order."""
        self.require_running()
        status = stop(self._process, signal.SIGTERM, seconds)
        if status != 0:
            raise ProgramDied(f"server {self.name} ended with {status} when it "
                              "was to drain")

    def restart(self, flags=(), environment=None, program=None):
        """Drains, then starts as told."""
        self.drain()
        self.start(flags, environment, program)
        self.wait_until_listening()

    def heal(self):
        """As it was made: running, as usual, with gates open."""
        for gate in (self.to_callers, self.to_database):
            gate.do("open")
        if self.is_running():
            self.send_signal(signal.SIGCONT)
            if not self.changed and not self._asked_to_end:
                return
            self.discard()
        self.start()

    def close(self):
        self.discard()
        self.to_callers.close()
        self.to_database.close()


def has_logged(path, words, since):
    """Whether they are in a log behind its first `since` bytes."""
    with open(path, "rb") as log:
        log.seek(since)
        return words.encode() in log.read()


def address_space(pid):
    """Bytes of address space that a process uses."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def has_mapped(pid, path):
    """Whether that file is part of a process. LD_PRELOAD passes over a file
    that is not there."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as file:
        mapped = {line.rstrip("\n").rpartition(" ")[2] for line in file}
    return os.path.realpath(path) in mapped


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))
