"""Faults of the owners of claims: the processes that call."""

import signal

from faults import fault


def _stop(r, callers, low, high):
    with r.noted(callers):
        for caller in callers:
            caller.send_signal(signal.SIGSTOP)
        r.hold(low, high)
        for caller in callers:
            caller.send_signal(signal.SIGCONT)


def _kill(r, callers):
    with r.noted(callers):
        for caller in callers:
            r.kill(caller)
    r.hold(0.1, 1)
    for _ in callers:
        r.add_caller()


@fault("owner_killed", "SIGKILL of a caller at any point of its work",
       injections=3)
def _(r):
    _kill(r, [r.one_caller()])


@fault("owners_killed", "SIGKILL of all callers at once")
def _(r):
    _kill(r, list(r.callers))


@fault("owner_stopped_briefly", "SIGSTOP of a caller, shorter than its leases",
       injections=3)
def _(r):
    _stop(r, [r.one_caller()], 0.05, 0.25)


@fault("owner_stopped_a_lease", "SIGSTOP of a caller for about a lease",
       injections=3)
def _(r):
    _stop(r, [r.one_caller()], 0.3, 1.5)


@fault("owner_stopped_long",
       "SIGSTOP of a caller, longer than leases and retention")
def _(r):
    _stop(r, [r.one_caller()], 3, 5)


@fault("owners_stopped", "SIGSTOP of all callers but one")
def _(r):
    _stop(r, r.callers[1:], 0.5, 2)


@fault("wallet_stopped", "SIGSTOP of the payment channel, beyond leases")
def _(r):
    r.wallet.send_signal(signal.SIGSTOP)
    r.hold(0.5, 2)
    r.wallet.send_signal(signal.SIGCONT)


@fault("wallet_killed", "SIGKILL of the payment channel, which starts again",
       injections=3)
def _(r):
    r.wallet.kill()
    r.hold(0.1, 1)
    r.wallet.start()
