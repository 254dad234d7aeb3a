"""Faults of the servers' processes, of their machines and of their set-up."""

import contextlib
import os
import resource
import signal
import struct
import time

from faults import fault
from servers import address_space, has_mapped, open_files


@fault("server_killed", "SIGKILL of a server, which is started again",
       injections=3)
def _(r):
    server = r.one_server()
    server.kill()
    r.hold(0.1, 1)
    r.start(server)


@fault("servers_killed", "SIGKILL of all servers at once")
def _(r):
    for server in r.servers:
        server.kill()
    r.hold(0.1, 1)
    r.start(*r.servers)


@fault("server_killed_again", "SIGKILL of a server again while it starts")
def _(r):
    server = r.one_server()
    for _ in range(4):
        server.kill()
        server.start()
        r.hold(0.01, 0.2)
    server.kill()
    r.start(server)


@fault("server_terminated", "SIGTERM of a server under load, which drains",
       injections=3)
def _(r):
    server = r.one_server()
    server.drain()
    r.hold(0.1, 0.5)
    r.start(server)


@fault("servers_rolled", "all servers restarted by SIGTERM, one by one",
       injections=1)
def _(r):
    for server in r.servers:
        server.restart()
        r.hold(0.5, 1)


@fault("server_killed_draining", "SIGKILL of a server while it drains")
def _(r):
    server = r.one_server()
    server.send_signal(signal.SIGTERM)
    r.hold(0.01, 0.3)
    server.kill()
    r.start(server)


def _stop_and_continue(r, servers, low, high):
    for server in servers:
        server.send_signal(signal.SIGSTOP)
    r.hold(low, high)
    for server in servers:
        server.send_signal(signal.SIGCONT)


@fault("server_stopped_briefly", "SIGSTOP of a server, shorter than leases",
       injections=3)
def _(r):
    _stop_and_continue(r, [r.one_server()], 0.05, 0.25)


@fault("server_stopped_a_lease", "SIGSTOP of a server for about a lease",
       injections=3)
def _(r):
    _stop_and_continue(r, [r.one_server()], 0.3, 1.5)


@fault("server_stopped_long", "SIGSTOP of a server, longer than leases")
def _(r):
    _stop_and_continue(r, [r.one_server()], 3, 6)


@fault("servers_stopped", "SIGSTOP of all servers")
def _(r):
    _stop_and_continue(r, r.servers, 0.5, 3)


@fault("server_killed_stopped", "SIGSTOP of a server, then SIGKILL")
def _(r):
    server = r.one_server()
    server.send_signal(signal.SIGSTOP)
    r.hold(0.5, 2)
    server.kill()
    r.start(server)


@fault("server_starved", "a server gets a tenth of its CPU time, in bursts")
def _(r):
    server = r.one_server()
    end = time.monotonic() + r.random.uniform(1, 2)
    while time.monotonic() < end:
        server.send_signal(signal.SIGSTOP)
        time.sleep(0.045)
        server.send_signal(signal.SIGCONT)
        time.sleep(0.005)


@fault("server_out_of_files",
       "a server may open no more files or sockets, and may end")
def _(r):
    server = r.one_server()
    _, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    usual = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE,
                     (open_files(server.pid), hard))
    # Whoever comes again finds no room.
    server.to_callers.do("cut")
    server.to_database.do("cut")
    r.hold(0.5, 2)
    # gRPC has lost its port, or has not tried: the server ends, or goes on.
    if server.is_running():
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, usual)
        r.hold(1, 1)
    _start_again(r, server)


def _start_again(r, server):
    """As whoever looks after it would, if it has ended or is about to."""
    deadline = time.monotonic() + 20
    while server.is_running() and not server.takes_calls():
        r.expect(time.monotonic() < deadline, "a server that is deaf ends")
        if time.monotonic() > deadline:
            server.kill()
        r.hold(0.1, 0.1)
    if not server.is_running():
        r.start(server)


@fault("server_out_of_memory", "a server gets no more memory, and may end")
def _(r):
    server = r.one_server()
    usual = resource.prlimit(server.pid, resource.RLIMIT_AS)
    most = address_space(server.pid) + (1 << 20)
    logged = server.logged()
    resource.prlimit(server.pid, resource.RLIMIT_AS, (most, usual[1]))
    server.to_callers.do("cut")
    with server.crowd(_CROWD):
        r.hold(0.5, 2)
        if server.is_running():
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(server.pid, resource.RLIMIT_AS, usual)
        r.expect_soon(lambda: lacked_memory(server, most, logged),
                      "the server lacked memory")
    if not server.is_running():
        r.start(server)


# Connections, for which a server needs more memory than it may have.
_CROWD = 200
_WORDS_OF_MEMORY = ("bad_alloc", "out of memory", "Cannot allocate",
                    "Resource temporarily unavailable")


def lacked_memory(server, most, logged):
    """Has it ended, or said so, or taken more than `most` bytes since it may?"""
    if not server.is_running():
        return True
    try:
        took_more = address_space(server.pid) > most
    except OSError:  # it has just ended
        took_more = True
    return took_more or any(server.has_logged(word, logged)
                            for word in _WORDS_OF_MEMORY)


def _run_as(r, *, flags=(), environment=None, program=None):
    """One server is another for a while, the rest stay as they are."""
    server = r.one_server()
    server.restart(flags, environment, program)
    r.hold(2, 4)
    server.restart()


@fault("server_set_up_otherwise",
       "a server with other lanes, queues and no cache beside usual ones",
       injections=1)
def _(r):
    _run_as(r, flags=r.random.choice([
        ("--lanes=4", "--replay_cache_bytes=0"),
        ("--lanes=2", "--queue_items_max=16", "--queue_wait_max=50ms"),
        ("--store_patience=0s", "--deadline_max=500ms"),
        ("--reaper_batch=1", "--reaper_pause=10ms"),
        ("--max_connection_age=1s", "--replay_cache_bytes=65536"),
    ]))


@fault("reaper_at_full_speed", "all servers' reapers without pauses",
       injections=1)
def _(r):
    for server in r.servers:
        server.restart(("--reaper_pause=10ms",))
    r.hold(4, 5)
    for server in r.servers:
        server.restart()


_HOUR = 3600


def _run_with_clock(r, seconds_off):
    """The clock of a server is off by so many seconds, by one after the other
    for a while each."""
    file = os.path.join(r.folder, "clock")
    with open(file, "wb", buffering=0) as clock:
        def set_clock(seconds):
            # In place: who has it mapped must never find it empty.
            clock.seek(0)
            clock.write(struct.pack("=q", round(seconds * 1e9)))

        set_clock(seconds_off[0])
        server = r.one_server()
        library = r.deployment.programs.clock
        server.restart(environment={"SKEWED_CLOCK": file,
                                    "LD_PRELOAD": library})
        r.expect(has_mapped(server.pid, library),
                 "the server has another clock")
        for seconds in seconds_off:
            set_clock(seconds)
            r.hold(3 / len(seconds_off), 4 / len(seconds_off))
        server.restart()


@fault("server_clock_ahead", "the clock of a server is an hour ahead",
       injections=1)
def _(r):
    _run_with_clock(r, [_HOUR])


@fault("server_clock_behind", "the clock of a server is an hour behind",
       injections=1)
def _(r):
    _run_with_clock(r, [-_HOUR])


@fault("server_clock_jumps", "the clock of a server jumps forth and back",
       injections=1)
def _(r):
    _run_with_clock(r, [0, _HOUR, -2, 2, -_HOUR, 0])


def _lacks_previous(deployment):
    return (None if deployment.programs.previous else
            "the version before was not built (--previous)")


@fault("versions_mixed", "a server of the version before beside those of now",
       injections=1, lacks=_lacks_previous)
def _(r):
    _run_as(r, program=r.deployment.programs.previous)
