"""Whether what was acknowledged survived a failover: a simple check beside
fault-checker, which shares nothing with it but the format of the histories.

The log of changes is replicated with the records, each change in the
transaction that made it. So every acknowledged call must show in the log of the
primary that there is in the end: a Finalize by its response, a Claim by its
fencing token, a Release by an attempt that was given up or freed. And no record
may have fallen behind an acknowledged fencing token.
"""

import collections
import dataclasses
import re
import urllib.parse

_RECORDED = ("recorded", "recorded_without_body")
# Answers that only tell what the record held: by kind of call, their outcomes.
_READS = {"lookup": ("found", ""),
          # A renewal or a Release that is refused, or finds nothing to release,
          # writes nothing.
          "claim": ("replay", "in_progress", "mismatch", "in_doubt", ""),
          "release": ("not_released", "")}
# What an answer breaks that tells of a state which never was.
_BROKEN_BY_READS = ("S5", "S8", "S9", "S10", "S11", "S12", "S16", "S17")
_OPERATION = re.compile(r"(?<![\w-])c\d+-\d+(?![\w-])")


@dataclasses.dataclass(frozen=True)
class Acknowledged:
    """One call that was answered with success."""
    kind: str
    op: str
    scope: str
    key: str
    token: str
    answered: int  # by the clock of histories
    digest: str = ""
    fencing: int = 0


@dataclasses.dataclass
class Call:
    """One call, and its answer's outcome: "" with an error, None without an
    answer."""
    key: tuple  # (scope, key)
    called: int  # by the clock of histories
    kind: str
    outcome: str | None = None

    def is_read(self):
        return self.outcome in _READS.get(self.kind, ())


class Histories:
    """What callers wrote down in a round."""

    def __init__(self, paths):
        self.acknowledged = []
        self.calls = {}  # op: Call
        for path in paths:
            self._read(path)

    def _read(self, path):
        calls = {}
        with open(path, encoding="ascii") as file:
            for line in file:
                if not line.endswith("\n"):
                    break  # torn by a kill: never written
                word, *fields = line.split()
                fields = {name: urllib.parse.unquote(value) for name, value in
                          (field.split("=", 1) for field in fields)}
                if word == "call":
                    calls[fields["op"]] = fields
                    self.calls[fields["op"]] = Call(
                        (fields["scope"], fields["key"]), int(fields["t"]),
                        fields["kind"])
                elif word == "answer" and fields["op"] in calls:
                    self.calls[fields["op"]].outcome = fields.get("outcome", "")
                    self._take(calls.pop(fields["op"]), fields)

    def _take(self, call, answer):
        kind, outcome = call["kind"], answer.get("outcome")
        if answer["code"] != "OK" or not (
                kind == "finalize" and outcome in _RECORDED
                or kind == "claim" and outcome == "claimed"
                or kind == "release" and outcome == "released"):
            return
        self.acknowledged.append(Acknowledged(
            kind, call["op"], call["scope"], call["key"], call["token"],
            int(answer["t"]), call.get("digest", ""),
            int(answer.get("fencing", 0))))

    def count(self, kind):
        return sum(one.kind == kind for one in self.acknowledged)


def _of(scope):
    return f"(scope = '{scope}' OR starts_with(scope, '{scope}/'))"


def read_changes(node, database, scope):
    """The changes that a node shows, as (scope, key, version, when)."""
    return {tuple(row) for row in node.rows(
        "SELECT scope, key, version, at FROM fault_transitions WHERE "
        + _of(scope), database)}


class Survivors:
    """What a primary holds of a scope, and how it came to it."""

    def __init__(self, node, database, scope):
        self._responses = set()  # (scope, key, token, digest)
        self._grants = set()  # (scope, key, token, fencing token)
        self._ended = set()  # (scope, key, token)
        self._fencing = {}  # (scope, key): fencing token of the record
        for row in node.rows(
                "SELECT scope, key, claim_token, fencing_token, "
                "coalesce(encode(response_digest, 'hex'), ''), in_flight, "
                f"gave_up FROM fault_transitions WHERE {_of(scope)}", database):
            *attempt, fencing, digest, in_flight, gave_up = row
            self._grants.add((*attempt, int(fencing)))
            if digest:
                self._responses.add((*attempt, digest))
            elif in_flight == "f" or gave_up != "0":
                self._ended.add(tuple(attempt))
        for row in node.rows("SELECT scope, key, fencing_token FROM "
                             f"idempotency_records WHERE {_of(scope)}", database):
            self._fencing[row[0], row[1]] = int(row[2])

    def lost(self, one):
        """What is wrong with an acknowledged call, or None."""
        attempt = (one.scope, one.key, one.token)
        if one.kind == "finalize":
            if (*attempt, one.digest) not in self._responses:
                return "its response was never recorded"
        elif one.kind == "release":
            if attempt not in self._ended:
                return "its attempt never ended"
        elif (*attempt, one.fencing) not in self._grants:
            return "it was never granted"
        elif self._fencing.get(attempt[:2], one.fencing) < one.fencing:
            return f"the record is back at {self._fencing[attempt[:2]]}"
        return None


def find_lost(histories, survivors):
    """A line for each acknowledged call that is not there any more, by kind."""
    lost = collections.defaultdict(list)
    for one in histories.acknowledged:
        what = survivors.lost(one)
        if what is not None:
            lost[one.kind].append(
                f"{one.scope} {one.key}: {one.kind} {one.op} was acknowledged, "
                f"but here {what}")
    return lost


class Phantoms:
    """Changes that a primary showed and its successor never had: the wait for
    the standby was cut short, or the primary was restarted meanwhile. That it
    can happen, and that reads may be answered from it, is a limit that README
    states; what counts is that nothing was acknowledged by it."""

    def __init__(self, shown, survived, until):
        """Reads that are called after `until`, by the clock of histories, have
        no such excuse."""
        self.count = len(shown - survived)
        self._keys = {change[:2] for change in shown - survived}
        self._until = until

    def explain(self, violation, histories):
        """Whether fault-checker's line is about nothing but answers that were
        read from such changes."""
        number, _, what = violation.partition(": ")
        operations = _OPERATION.findall(what)
        return (number.split(" ")[0] in _BROKEN_BY_READS and bool(operations)
                and all(self._may_be_of(histories.calls.get(operation))
                        for operation in operations))

    def _may_be_of(self, call):
        return (call is not None and call.is_read() and call.key in self._keys
                and call.called < self._until)
