"""The ways in which a primary goes and its standby takes over.

Each kind is a function of a Pair and a source of random numbers. When it
returns, the pair's former standby takes writes, the former primary runs no
more, and pair.turn() has been called. Traffic goes on all the time.
"""

import time

from histories import now
from postgres import wait_until
from programs import ProgramError

STANDBY = "s1"


class Pair:
    """Two nodes, the second of which is the standby of the first: synchronous
    unless a kind says otherwise."""

    def __init__(self, nodes, gate_to):
        """`gate_to` makes a gate before a port."""
        self.primary, self.standby = nodes
        self._gate_to = gate_to
        # Of the last failover: when it was asked for, and when it was done.
        self.began = self.promoted = None
        self.details = ""
        self.lag = None
        # Called with a primary that may show what its standby never had, just
        # before it is ended.
        self.before_end = None

    def make(self):
        self.primary.make()
        self.primary.start()
        self.standby.clone(self.primary, STANDBY)
        self.standby.start()
        self.guard()

    def guard(self):
        """From now on no commit is acknowledged that the standby has not."""
        self.primary.wait_until_streaming(STANDBY)
        self.primary.require_standby(STANDBY)

    def turn(self):
        """Promotes the standby; the nodes change their roles."""
        self.began = now()
        self.standby.promote()
        self.promoted = now()
        self.primary, self.standby = self.standby, self.primary

    def rebuild(self, random):
        """The former primary becomes the standby of the new one."""
        if random.random() < 0.8:
            self._rewind_or_clone()
        else:
            self.standby.clone(self.primary, STANDBY)
        self.standby.start()
        self.guard()

    def _rewind_or_clone(self):
        try:
            self.standby.rewind(self.primary, STANDBY)
        except ProgramError as error:
            # What it would have to go back over is no longer there.
            if "could not" not in str(error):
                raise
            self.standby.clone(self.primary, STANDBY)

    def wait_until_commits_wait(self):
        wait_until("commits wait for the standby",
                   self.primary.waiting_for_standby)

    def gate_to_primary(self):
        """A gate that the standby's connection to the primary goes through
        from now on."""
        gate = self._gate_to(self.primary.port)
        self.standby.set(primary_conninfo=(
            f"host=127.0.0.1 port={gate.port} user=postgres "
            f"application_name={STANDBY} connect_timeout=3"))
        self.primary.wait_until_streaming(STANDBY)
        return gate


def killed(pair, random):
    """SIGKILL to all of the primary, or a crash that ends it by itself."""
    if random.random() < 0.5:
        pair.primary.kill()
    else:
        pair.primary.stop("immediate")
    pair.turn()


def split_brain(pair, random):
    """The primary stands still and wakes up when there is another one. It is
    ended some time later, and until then takes whoever connects."""
    old = pair.primary
    old.pause()
    time.sleep(random.uniform(0, 1))
    pair.turn()
    asleep = random.uniform(0.1, 9)
    time.sleep(asleep)
    old.resume()
    awake = random.uniform(0.5, 3)
    time.sleep(awake)
    pair.details = (f"asleep {asleep:.1f} s, awake {awake:.1f} s with "
                    f"{len(old.waiting_for_standby())} commits waiting")
    old.kill()


def cancelled_wait(pair, random):
    """The standby is down, and commits that wait for it are cut short: they
    show, and never reach the standby, which is promoted."""
    primary = pair.primary
    pair.standby.kill()
    cut = 0
    end = time.monotonic() + random.uniform(0.5, 2.5)
    pair.wait_until_commits_wait()
    while time.monotonic() < end:
        time.sleep(random.uniform(0, 0.3))
        how = random.choice(["pg_cancel_backend", "pg_terminate_backend"])
        cut += int(primary.sql(
            f"SELECT count({how}(pid)) FROM pg_stat_activity WHERE "
            "wait_event = 'SyncRep'"))
    pair.details = f"{cut} waits cut short"
    _promote_what_was_down(pair)


def restarted(pair, random):
    """The standby is down, commits wait for it, and the primary is restarted:
    it then shows them. Then the standby, which never had them, is promoted."""
    pair.standby.kill()
    pair.wait_until_commits_wait()
    time.sleep(random.uniform(0, 0.5))
    pair.primary.stop(random.choice(["fast", "immediate"]))
    pair.primary.start()
    time.sleep(random.uniform(0.2, 2))
    _promote_what_was_down(pair)


def switched_over(pair, random):
    """A planned change: the primary ends orderly and hands over all it has."""
    del random
    pair.primary.stop("fast")
    pair.turn()


def parted(pair, random):
    """The network between both swallows everything, for a while, then until
    the primary is ended and the standby promoted."""
    gate = pair.gate_to_primary()
    try:
        gate.do("blackhole")
        pair.wait_until_commits_wait()
        time.sleep(random.uniform(0, 3))
        gate.do("open")
        wait_until("no commit waits any more",
                   lambda: not pair.primary.waiting_for_standby())
        gate.do("blackhole")
        pair.wait_until_commits_wait()
        time.sleep(random.uniform(0, 2))
        pair.primary.kill()
        pair.turn()
    finally:
        gate.close()


def without_standby(pair, random):
    """Asynchronous replication: the standby is promoted as it was some time
    before the primary's end. What is lost is measured."""
    pair.primary.require_standby(None)
    time.sleep(1)
    lag = random.choice([0, 0.1, 0.5, 2])
    pair.lag = lag
    if lag == 0:
        pair.primary.kill()
        pair.turn()
        return
    since = time.monotonic()
    pair.standby.kill()
    time.sleep(lag)
    pair.details = f"behind by {time.monotonic() - since:.2f} s"
    pair.primary.kill()
    pair.standby.start()
    pair.turn()


def _promote_what_was_down(pair):
    pair.before_end(pair.primary)
    pair.primary.kill()
    pair.standby.start()
    pair.turn()


KINDS = {
    "killed": killed,
    "split_brain": split_brain,
    "cancelled_wait": cancelled_wait,
    "restarted": restarted,
    "switched_over": switched_over,
    "parted": parted,
    "asynchronous": without_standby,
}
# Whose losses are measured and are no violation.
LOSING = ("asynchronous",)
