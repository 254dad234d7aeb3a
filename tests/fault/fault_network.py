"""Faults of connections: between servers and PostgreSQL, and between callers
and servers. Each is done by the gates of one server, or of all."""

from faults import fault

_LINKS = {
    "database": ("of servers to PostgreSQL",
                 lambda server: server.to_database),
    "calls": ("of callers to servers", lambda server: server.to_callers),
}


class _Link:
    def __init__(self, name):
        self.name = name
        self.text, self._gate = _LINKS[name]

    def gates(self, r):
        """Those of one server, or of all."""
        return (self.all_gates(r) if r.random.random() < 0.3 else
                [self._gate(r.one_server())])

    def all_gates(self, r):
        return [self._gate(server) for server in r.servers]


def _while(r, gates, command, low, high):
    for gate in gates:
        gate.do(command)
    r.hold(low, high)
    for gate in gates:
        gate.do("open")


def _any_byte(r):
    """Small numbers meet the first message, large ones any other."""
    return int(10 ** r.random.uniform(0, 5))


def _ends(r, gates, action):
    """What `action` arms has to end a connection, and is disarmed then."""
    def cuts():
        return sum(gate.cuts() for gate in gates)

    before = cuts()
    action()
    r.expect_soon(lambda: cuts() > before, "a connection was ended")
    for gate in gates:
        gate.do("open")


def _on(link):
    """What registers a class of faults of these links."""
    def define(name, text, injections=3, mix="all"):
        return fault(f"{link.name}_{name}", f"connections {link.text} {text}",
                     injections, mix)
    return define


def _register_ends(link, define):
    @define("cut", "reset, some times in a row")
    def _(r):
        for _ in range(r.random.randint(1, 6)):
            for gate in link.gates(r):
                gate.do("cut")
            r.hold(0, 0.2)

    @define("half_closed", "end in one direction only, behind any byte")
    def _(r):
        gates = link.gates(r)
        way = r.random.choice(("request", "reply"))
        if r.random.random() < 0.5:
            for gate in gates:
                gate.do(f"half_close {way}")
            r.hold(0.2, 1)
        else:
            def arm():
                for gate in gates:
                    gate.do(f"half_close_at_byte {way} {_any_byte(r)}")
                r.hold(0.2, 1)
            _ends(r, gates, arm)
        for gate in gates:
            gate.do("open")
            gate.do("cut")

    def end_at_bytes(r, way):
        def arm():
            for _ in range(r.random.randint(2, 6)):
                for gate in link.gates(r):
                    gate.do(f"cut_at_byte {way} {_any_byte(r)}")
                r.hold(0.05, 0.3)
        _ends(r, link.all_gates(r), arm)

    @define("request_cut_at_byte", "reset behind any byte of a request")
    def _(r):
        end_at_bytes(r, "request")

    @define("reply_cut_at_byte", "reset behind any byte of a reply")
    def _(r):
        end_at_bytes(r, "reply")


def _register_spells(link, define):
    @define("refused", "reset and refused for a while")
    def _(r):
        _while(r, link.gates(r), "refuse", 0.3, 2)

    @define("black_hole", "keep and forward nothing for a while", 2)
    def _(r):
        _while(r, link.gates(r), "blackhole", 0.3, 4)

    @define("delayed", "delayed by up to 300 ms each way", 2)
    def _(r):
        requests, replies = (r.random.randint(0, 300) for _ in range(2))
        _while(r, link.gates(r), f"delay {requests} {replies}", 1, 2.5)

    @define("stalled", "stand still for up to 1.5 s, again and again", 2)
    def _(r):
        for _ in range(r.random.randint(1, 3)):
            time_ms = r.random.randint(50, 1500)
            for gate in link.gates(r):
                gate.do(f"stall {time_ms}")
            r.hold(time_ms / 1000, time_ms / 1000 + 0.2)

    @define("throttled", "carry some KB a second", 2)
    def _(r):
        _while(r, link.gates(r), f"throttle {r.random.randint(2, 100) * 1000}",
               1, 2.5)

    @define("replies_swallowed", "lose all replies for a while")
    def _(r):
        _while(r, link.gates(r), "swallow on", 0.1, 1)


for _name in _LINKS:
    _register_ends(_Link(_name), _on(_Link(_name)))
    _register_spells(_Link(_name), _on(_Link(_name)))


def _cut_after_requests(r, link):
    gates = link.all_gates(r)

    def arm():
        for _ in range(r.random.randint(4, 12)):
            for gate in gates:
                gate.do("cut_after_next_request")
            r.hold(0.02, 0.25)
    _ends(r, gates, arm)


@fault("calls_cut_after_answer",
       "connections of callers reset when the answer is made, before they have "
       "it",
       injections=3)
def _(r):
    _cut_after_requests(r, _Link("calls"))


@fault("database_cut_after_commit",
       "a connection to PostgreSQL reset after a commit, before its reply",
       injections=3)
def _(r):
    _cut_after_requests(r, _Link("database"))


@fault("database_gone_after_commit", "PostgreSQL commits, and is out of reach "
       "before its replies are there and for longer than callers wait")
def _(r):
    gates = [server.to_database for server in r.servers]
    for gate in gates:
        gate.do("swallow on")
    r.hold(0.05, 0.3)
    _while(r, gates, "refuse", 1, 2.5)


@fault("calls_race", "callers see servers at different delays: duplicates and "
       "hedged calls overtake one another")
def _(r):
    for server in r.servers:
        server.to_callers.do(f"delay {r.random.randint(0, 80)} "
                             f"{r.random.randint(0, 80)}")
    r.hold(2, 3)
    for server in r.servers:
        server.to_callers.do("open")


@fault("calls_retried", "links of callers reset, mute or refused in turns, so "
       "that retries and hedges go elsewhere")
def _(r):
    for _ in range(12):
        gate = r.one_server().to_callers
        gate.do(r.random.choice(("cut", "swallow on", "refuse")))
        r.hold(0.02, 0.15)
        gate.do("open")
