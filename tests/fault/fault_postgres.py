"""Faults of PostgreSQL's processes."""

import signal

from faults import fault
from postgres import send_signal


def _restart(r, stop):
    stop()
    r.hold(0, 2)
    r.database.node.start()


@fault("postgres_stopped_fast", "PostgreSQL stopped (fast) and started")
def _(r):
    _restart(r, lambda: r.database.node.stop("fast"))


@fault("postgres_stopped_immediate",
       "PostgreSQL stopped (immediate), which recovers when it starts")
def _(r):
    _restart(r, lambda: r.database.node.stop("immediate"))


@fault("postgres_killed", "SIGKILL of PostgreSQL, all processes")
def _(r):
    _restart(r, r.database.node.kill)


@fault("postgres_restarted_often", "PostgreSQL restarted three times in a row",
       injections=1)
def _(r):
    for mode in ("fast", "immediate", "fast"):
        r.database.node.stop(mode)
        r.database.node.start()
        r.hold(0, 0.3)


@fault("backend_killed",
       "SIGKILL of a backend, whereupon PostgreSQL restarts all of them")
def _(r):
    r.expect(send_signal(r.random.choice(r.database.sessions()),
                         signal.SIGKILL), "the backend was there")
    r.hold(0.1, 0.5)
    r.database.node.wait_until_up()


def _pause(r, pids, low, high):
    stopped = [pid for pid in pids if send_signal(pid, signal.SIGSTOP)]
    r.expect(stopped, "there was a process to stop")
    r.hold(low, high)
    for pid in stopped:
        send_signal(pid, signal.SIGCONT)


@fault("backend_stopped", "SIGSTOP of one backend for up to three leases",
       injections=3)
def _(r):
    _pause(r, [r.random.choice(r.database.sessions())], 0.2, 2)


@fault("backend_stopped_beyond_timeout",
       "SIGSTOP of all backends, beyond statement_timeout (5 s)", injections=1)
def _(r):
    _pause(r, r.database.sessions(), 5.5, 7)


@fault("postgres_stopped", "SIGSTOP of PostgreSQL, all processes")
def _(r):
    r.database.node.pause()
    r.hold(0.3, 3)
    r.database.node.resume()


@fault("walwriter_stopped", "SIGSTOP of WAL writer and checkpointer")
def _(r):
    _pause(r, [int(row[0]) for row in r.database.node.rows(
        "SELECT pid FROM pg_stat_activity WHERE backend_type IN "
        "('walwriter', 'checkpointer', 'background writer')")], 1, 3)


def _often(r, action):
    for _ in range(r.random.randint(3, 8)):
        action()
        r.hold(0, 0.3)


@fault("backends_terminated", "pg_terminate_backend of all sessions, often")
def _(r):
    _often(r, r.database.end_sessions)


@fault("backends_cancelled", "pg_cancel_backend of all sessions, often",
       injections=3)
def _(r):
    _often(r, r.database.cancel_statements)
