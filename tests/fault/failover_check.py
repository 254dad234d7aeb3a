"""Whether what was acknowledged survived a failover: a simple check beside
fault-checker, which shares nothing with it but the format of the histories.

An acknowledged call must show in the primary that there is in the end, unless
its record's time is over: a Finalize by its response, a Claim by a fencing
token at least as high, a Release by an attempt that no longer runs.
"""

import collections
import dataclasses

_RECORDED = ("recorded", "recorded_without_body")
_UNSERVED = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "UNKNOWN")


@dataclasses.dataclass
class Acknowledged:
    """One call that was answered with success; times as in the histories."""
    kind: str
    op: str
    key: tuple
    token: str
    called: int
    answered: int
    digest: str = ""
    fencing: int = 0
    # When the record may be gone, by the database's clock. None: never.
    expires_us: int | None = None


@dataclasses.dataclass
class Record:
    fencing: int
    token: str
    in_flight: bool
    gave_up: bool
    digest: str


class Histories:
    """What is in a round's files."""

    def __init__(self, paths):
        self.acknowledged = []
        self.operations = 0
        self.unserved = 0
        for path in paths:
            self._read(path)

    def _read(self, path):
        calls = {}
        with open(path, encoding="ascii") as file:
            for line in file:
                if not line.endswith("\n"):
                    break  # torn by a kill: never written
                word, *fields = line.split()
                fields = dict(field.split("=", 1) for field in fields)
                if word == "call":
                    self.operations += 1
                    calls[fields["op"]] = fields
                elif word == "answer" and fields["op"] in calls:
                    self._take(calls.pop(fields["op"]), fields)

    def _take(self, call, answer):
        if answer["code"] != "OK":
            self.unserved += answer["code"] in _UNSERVED
            return
        outcome = answer.get("outcome")
        if not (call["kind"] == "finalize" and outcome in _RECORDED
                or call["kind"] == "claim" and outcome == "claimed"
                or call["kind"] == "release" and outcome == "released"):
            return
        # A Release says nothing of the record's end, a Claim when it ends if
        # nothing more happens: a Release at once may end it a lease earlier.
        expires_us = answer.get("expires_us")
        if expires_us is not None:
            expires_us = int(expires_us) - int(answer.get("lease_us", 0))
        self.acknowledged.append(Acknowledged(
            call["kind"], call["op"], (call["scope"], call["key"]),
            call["token"], int(call["t"]), int(answer["t"]),
            call.get("digest", ""), int(answer.get("fencing", 0)),
            expires_us))

    def count(self, kind):
        return sum(one.kind == kind for one in self.acknowledged)


def read_records(node, database, scope):
    """What the node holds of a scope, and its clock."""
    rows = node.rows(
        "SELECT scope, key, fencing_token, claim_token, in_flight, gave_up, "
        "coalesce(encode(response_digest, 'hex'), '') "
        f"FROM idempotency_records WHERE scope = '{scope}' OR "
        f"starts_with(scope, '{scope}/')", database)
    now_us = int(node.sql("SELECT (extract(epoch FROM clock_timestamp()) * "
                          "1e6)::bigint", database))
    return {(row[0], row[1]): Record(int(row[2]), row[3], row[4] == "t",
                                     row[5] != "0", row[6])
            for row in rows}, now_us


def find_lost(histories, records, now_us):
    """One line for each acknowledged call that is not there any more, by kind.
    """
    lost = collections.defaultdict(list)
    for one in histories.acknowledged:
        what = _what_is_wrong(one, records.get(one.key), now_us)
        if what:
            lost[one.kind].append(f"{'/'.join(one.key)}: {one.kind} {one.op} "
                                  f"was acknowledged, but {what}")
    return lost


def _what_is_wrong(one, record, now_us):
    is_over = one.expires_us is not None and one.expires_us <= now_us
    if record is None:
        # Nobody can say what became of a Release once its record is gone.
        if one.kind == "release" or is_over:
            return None
        return "there is no record"
    if one.kind == "claim":
        if record.fencing < one.fencing:
            return f"the fencing token is {record.fencing}, not {one.fencing}"
    elif one.kind == "finalize":
        if record.digest != one.digest and not is_over:
            return f"the record has the response '{record.digest}'"
    elif record.token == one.token and record.in_flight and not record.gave_up:
        return "its attempt runs"
    return None
