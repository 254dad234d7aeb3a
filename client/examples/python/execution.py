"""What a handler and its middleware tell each other."""

import threading
import time


class NothingHappened(Exception):
    """Raised by a handler that did nothing: the key may be used anew."""


class Execution:
    """What an attempt was granted."""

    def __init__(self, claimed, sent_at):
        self.downstream_key = claimed.downstream_key  # for the payment channel
        self.fencing_token = claimed.fencing_token
        self.done = threading.Event()  # the handler has ended
        self.extend(claimed, sent_at)

    def extend(self, claimed, sent_at):
        """Counted from the sending, so that it never ends later than the
        coordinator thinks."""
        self.lease = claimed.lease.ToTimedelta().total_seconds()
        self._ends = sent_at + self.lease

    def lost(self):
        self._ends = 0.0

    def permitted(self):
        """False once the claim may be somebody else's: to be asked before each
        step that cannot be undone."""
        return time.monotonic() < self._ends
