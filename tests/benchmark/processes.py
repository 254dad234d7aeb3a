"""Processes that a measurement starts, and the CPU time that they use."""

import os
import sys
import threading
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..",
                             "support"))
from ports import free_port
# A measurement that cannot be made, or that must not be believed, is one more
# reason to end a run.
from programs import (ProgramError as BenchmarkError, postgres_binaries, run,
                      start, stop, unprivileged_user)

_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def _read_stat(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        # The name, in parentheses, may hold blanks.
        return file.read().rpartition(")")[2].split()


def _cpu_seconds(pid, with_reaped_children):
    fields = _read_stat(pid)
    last = 15 if with_reaped_children else 13
    return sum(int(value) for value in fields[11:last]) / _CLOCK_TICKS


def process_cpu(pid):
    """CPU seconds of one process, all threads."""
    return _cpu_seconds(pid, with_reaped_children=False)


def _single_thread_cpu(pid):
    """As process_cpu() for a process with one thread, but to the nanosecond:
    a hundredth of a second, lost at each of 64 backends, would be too much."""
    try:
        with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[0]) / 1e9
    except PermissionError:
        return process_cpu(pid)


def tree_cpu(pid):
    """CPU seconds of a process, its reaped and its living children, each of
    which has one thread and no children."""
    total = _cpu_seconds(pid, with_reaped_children=True)
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        children = file.read().split()
    for child in children:
        try:
            total += _single_thread_cpu(child)
        except (FileNotFoundError, ProcessLookupError):
            pass  # It ended since, and is counted as reaped from now on.
    return total


def machine_cpu():
    """CPU seconds of everything on the machine, stolen time included."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, irq, softirq, steal = [
            int(value) for value in file.readline().split()[1:9]]
    busy = user + nice + system + irq + softirq + steal
    return busy / _CLOCK_TICKS


def other_share(machine, ours):
    """The part of the machine, 0 to 1, that was busy with what is none of
    ours; both arguments are CPU seconds per second."""
    return max(0.0, machine - sum(ours)) / os.cpu_count()


class CpuWatch:
    """CPU time of several processes between begin() and end()."""

    def __init__(self, readers):
        self._readers = readers  # name: function that returns CPU seconds
        self._before = None
        self._begun = None

    def begin(self):
        self._before = {name: read() for name, read in self._readers.items()}
        self._begun = time.monotonic()

    def end(self):
        """CPU seconds by name, for each second that went by."""
        elapsed = time.monotonic() - self._begun
        return {name: (read() - self._before[name]) / elapsed
                for name, read in self._readers.items()}


def resident_mb(pid):
    """Memory of one process that is in RAM."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    raise BenchmarkError(f"process {pid} has ended")


class Sampler:
    """Reads a value at begin(), again and again on a thread, and at end()."""

    def __init__(self, read, period=0.05):
        self._read = read
        self._period = period
        self._samples = []
        self._failure = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        try:
            self._sample()
            while not self._stop.wait(self._period):
                self._sample()
            self._sample()
        except (BenchmarkError, OSError) as error:
            self._failure = error

    def _sample(self):
        self._samples.append((time.monotonic(), self._read()))

    def begin(self):
        self._thread.start()

    def end(self):
        """What was read, as (seconds, value)."""
        self._stop.set()
        self._thread.join()
        if self._failure is not None:
            raise BenchmarkError(f"reading failed: {self._failure}")
        return self._samples
