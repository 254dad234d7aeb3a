"""What the callers of a round have written so far: enough to see whether there
was traffic. What it means is the checker's to say. The format is that of
checker/history.h."""

import bisect
import os
import time

_SECOND = 1_000_000_000
# What may just as well have happened as not, and what nobody should see.
_UNANSWERED = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "UNKNOWN",
               "RESOURCE_EXHAUSTED", "INTERNAL", "DATA_LOSS"}


def now():
    """The clock of histories."""
    return time.monotonic_ns()


class Notes:
    """The harness' own history of a round."""

    def __init__(self, path):
        self.path = path
        self._file = open(path, "w", encoding="ascii", buffering=1)

    def note(self, **fields):
        """Returns when."""
        moment = now()
        self._write("note", moment, fields)
        return moment

    def clock(self):
        """The database runs on this machine, by its clock of the day."""
        before = now()
        database_us = time.time_ns() // 1000
        after = now()
        self._write("clock", (before + after) // 2,
                    {"database_us": database_us,
                     "error_ns": after - before + 1000})

    def _write(self, word, moment, fields):
        text = "".join(f" {name}={value}" for name, value in fields.items())
        self._file.write(f"{word} t={moment}{text}\n")

    def close(self):
        self._file.close()


class Traffic:
    """Calls and answers in the callers' files, which are read as they grow."""

    def __init__(self):
        self._files = {}  # path: (file, what there is of its last line)
        self._open = {}  # op: (when it was called, the path)
        # Answers by their time; files may be behind one another by some ms.
        self._answered = []  # (answered, called, whether it was of use)
        self._good = []  # when an answer of use came, sorted
        self.internal_errors = 0

    def add(self, path):
        """The file may not be there yet."""
        self._files[path] = (None, b"")

    def read(self):
        for path in self._files:
            self._read(path)

    def _read(self, path):
        file, rest = self._files[path]
        if file is None:
            if not os.path.exists(path):
                return
            file = open(path, "rb")
        lines = (rest + file.read()).split(b"\n")
        self._files[path] = (file, lines.pop())
        for line in lines:
            self._take(line.decode("ascii"), path)

    def forget(self, path):
        """Its caller has just ended, and with it the calls under way."""
        self._read(path)
        file, _ = self._files.pop(path)
        if file is not None:
            file.close()
        ended = now()
        for op, (called, of) in list(self._open.items()):
            if of == path:
                del self._open[op]
                self._answered.append((ended, called, False))

    def _take(self, line, path):
        word, _, rest = line.partition(" ")
        if word == "call":
            fields = _fields(rest)
            self._open[fields["op"]] = (int(fields["t"]), path)
        elif word == "answer":
            fields = _fields(rest)
            answered = int(fields["t"])
            called, _ = self._open.pop(fields["op"], (answered, path))
            good = fields["code"] not in _UNANSWERED
            self.internal_errors += fields["code"] == "INTERNAL"
            self._answered.append((answered, called, good))
            if good:
                bisect.insort(self._good, answered)

    def good_between(self, begin, end):
        """How many answers of use came in that time."""
        return (bisect.bisect_left(self._good, end)
                - bisect.bisect_left(self._good, begin))

    def good_per_second(self, begin, end):
        return self.good_between(begin, end) * _SECOND / max(end - begin, 1)

    def overlapping(self, begin, end):
        """How many calls were under way at some moment of that time."""
        return (sum(called <= end and answered >= begin
                    for answered, called, _ in self._answered)
                + sum(called <= end for called, _ in self._open.values()))

    def recovered_at(self, since, rate, window=_SECOND // 2):
        """When the first window begins, after `since`, in which so many answers
        of use came a second; None if there was none yet."""
        needed = max(1, int(rate * window / _SECOND))
        first = bisect.bisect_right(self._good, since)
        for last in range(first + needed - 1, len(self._good)):
            if self._good[last] - self._good[last - needed + 1] <= window:
                return self._good[last - needed + 1]
        return None

    def close(self):
        for file, _ in self._files.values():
            if file is not None:
                file.close()


def _fields(text):
    return dict(field.split("=", 1) for field in text.split(" "))
