"""What a fault run keeps up from round to round: a database, servers, and the
programs of a round."""

import dataclasses
import os
import time

from database import Database
from programs import ProgramError
from servers import Server

_SERVERS = 3
_HERE = os.path.dirname(os.path.abspath(__file__))


@dataclasses.dataclass(frozen=True)
class Programs:
    """Paths of what was built."""

    server: str
    caller: str
    wallet: str
    gate: str
    checker: str
    clock: str  # what gives a server another time of day
    previous: str | None = None  # the server of the version before

    @classmethod
    def of(cls, build, previous=None):
        def fault(folder, name):
            return os.path.join(build, "tests", "fault", folder, name)
        return cls(os.path.join(build, "server", "idempotency-server"),
                   fault("caller", "fault-caller"),
                   fault("caller", "fault-wallet"), fault("gate", "fault-gate"),
                   fault("checker", "fault-checker"),
                   os.path.join(build, "tests", "support", "libskewed_clock.so"),
                   previous)


class Deployment:
    def __init__(self, programs_, folder):
        self.programs = programs_
        self.log = open(os.path.join(folder, "programs.log"), "ab")
        self.servers = []
        self.database = Database(os.path.join(folder, "postgresql.log"))
        try:
            self.servers = [self._start_server(folder, f"s{number + 1}")
                            for number in range(_SERVERS)]
            self._wait_until_migrated()
            for name in ("policies.sql", "transitions.sql"):
                self.database.apply(os.path.join(_HERE, name))
        except BaseException:
            self.close()
            raise

    def _start_server(self, folder, name):
        log = open(os.path.join(folder, name + ".log"), "ab")
        server = Server(name, self.programs, self.database, log)
        server.start()
        return server

    def _wait_until_migrated(self):
        for server in self.servers:
            server.wait_until_listening()
        deadline = time.monotonic() + 30
        while self.database.sql("SELECT to_regclass('idempotency_conflicts') "
                                "IS NOT NULL") != "t":
            if time.monotonic() > deadline:
                raise ProgramError("the servers did not migrate the database")
            time.sleep(0.05)

    def heal(self):
        """As it was made, whatever the last round did or broke off with."""
        self.database.heal()
        for server in self.servers:
            server.heal()
        for server in self.servers:
            server.wait_until_listening()
        self.database.empty()

    def use_server(self, program):
        """All servers are that program from the next heal() on."""
        for server in self.servers:
            server.discard()
            server.program = program

    def close(self):
        for server in self.servers:
            server.close()
        self.database.close()
        self.log.close()
