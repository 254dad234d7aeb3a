"""Plays one scenario against one language: its steps, and what is expected.

scenarios.json is a list of {name, says, steps}, with "gated" where a gate
stands between service and coordinator, and "phase" where the coordinator is
"down" or "back". A step is played at the language's own service, or with "at":
"others" at each other language's in turn. It has one of

  post           a payment: amount (200), target (/payments), content_type (as a
                 list), wallet (what the wallet is to do), header (values of Idempotency-Key; the
                 scenario's key in quotes). With in_background: not waited for;
                 with hang_up: given up once the wallet was asked so often
  join           waits for the post of that name
  until_asked    waits until a handler has asked the wallet so often
  asked          how often handlers have asked it
  pause_ms       lets a lease end that nobody renews
  faults, calls  what goes wrong at the gate; what came there, at least

and for the answer to post and join: "again_until" (statuses; sends it again on
409 and 503), "save" (a name), and "expect" with status, problem (its type; "":
any), header, member (of a problem), body, body_of and same_as (a saved answer),
replayed, retry_after (seconds at least).
"""

import concurrent.futures
import contextlib
import http.client
import json
import re
import time
import uuid

_WAIT_SECONDS = 30
_HTTP_SECONDS = 60
# Of one connection, not of the recorded response.
_UNRECORDED = {"connection", "content-length", "date", "idempotent-replayed",
               "keep-alive", "server", "transfer-encoding"}


class Miss(Exception):
    """What was expected did not come."""


class Answer:
    def __init__(self, response):
        self.status = response.status
        self.body = response.read()
        self.headers = {}
        for name, value in response.getheaders():
            if name.lower() == "content-type":
                # Servlet containers print it anew, without the blank.
                value = re.sub(r"\s*;\s*", "; ", value)
            self.headers.setdefault(name.lower(), []).append(value)

    @property
    def recorded(self):
        return (self.status, self.body,
                {name: values for name, values in self.headers.items()
                 if name not in _UNRECORDED})

    @property
    def problem(self):
        """Members of an RFC 9457 problem, or None."""
        if self.headers.get("content-type") != ["application/problem+json"]:
            return None
        return json.loads(self.body)

    @property
    def kind(self):
        """The last segment of the problem's type."""
        return (self.problem or {}).get("type", "").rpartition("/")[2].rpartition(":")[2]

    def __str__(self):
        return f"{self.status} {self.headers} {self.body[:300]!r}"


class Player:
    """`service` and `others` are {name: port}; `gate` may be None."""

    def __init__(self, scenario, language, port, others, gate):
        self._scenario = scenario
        self._own, self._others, self._gate = {language: port}, others, gate
        self._key = f"{language}-{scenario['name'].replace(' ', '-')}-{uuid.uuid4()}"
        self._saved, self._running = {}, {}

    def play(self):
        """Raises Miss at the first step that goes wrong."""
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            for number, step in enumerate(self._scenario["steps"], 1):
                ports = self._others if step.get("at") == "others" else self._own
                for name, port in ports.items():
                    try:
                        self._step(step, port, threads)
                    except (Miss, OSError, ValueError, http.client.HTTPException) as why:
                        raise Miss(f"step {number} at {name}: {why!r}") from why

    def _step(self, step, port, threads):
        if "faults" in step:
            self._gate.set_faults(self._key, step["faults"])
        elif "calls" in step:
            calls = self._gate.calls(self._key)
            for name, value in step["calls"].items():
                few = name == "ms_apart" and calls[name] >= value
                if not few and calls.get(name, 0) != value:
                    raise Miss(f"wanted {step['calls']}, the gate saw {calls}")
        elif "pause_ms" in step:
            time.sleep(step["pause_ms"] / 1000)
        elif "until_asked" in step:
            self._wait_until_asked(port, step["until_asked"])
        elif "asked" in step:
            asked = self._asked(port)
            if asked != step["asked"]:
                raise Miss(f"the wallet was asked {asked} times, not {step['asked']}")
        elif "hang_up" in step:
            with self._send(port, step["post"]):
                self._wait_until_asked(port, step["hang_up"])
        elif "in_background" in step:
            self._running[step["in_background"]] = threads.submit(
                self._post, port, step["post"])
        elif "join" in step:
            self._check(step, self._running[step["join"]].result())
        else:
            self._check(step, self._post_until(port, step))

    def _request(self, port, method, target, body=None, headers=()):
        """A connection, to be closed, on which the request was sent."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_HTTP_SECONDS)
        connection.putrequest(method, target)
        for name, value in headers:
            connection.putheader(name, value)
        connection.endheaders(body)
        return contextlib.closing(connection)

    def _send(self, port, post):
        body = json.dumps({"account": self._key, "amount": post.get("amount", 200)}).encode()
        headers = [("Content-Length", len(body)), ("X-Wallet", post.get("wallet", ""))]
        headers += [("Content-Type", value)
                    for value in post.get("content_type", ["application/json"])]
        for value in post.get("header", ['"{key}"']):
            value = value.replace("{key}", self._key).replace("{300 more}", "x" * 300)
            headers.append(("Idempotency-Key", value))
        return self._request(port, "POST", post.get("target", "/payments"), body, headers)

    def _post(self, port, post):
        with self._send(port, post) as connection:
            return Answer(connection.getresponse())

    def _post_until(self, port, step):
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            answer = self._post(port, step["post"])
            # A user comes back after 409 and 503, but not into a doubt.
            if (answer.status in step.get("again_until", [answer.status])
                    or answer.status not in (409, 503) or answer.kind == "in-doubt"
                    or time.monotonic() > deadline):
                return answer
            time.sleep(0.1)

    def _asked(self, port):
        with self._request(port, "GET", "/payments?account=" + self._key) as connection:
            return json.loads(Answer(connection.getresponse()).body)["asked"]

    def _wait_until_asked(self, port, times):
        deadline = time.monotonic() + _WAIT_SECONDS
        while self._asked(port) < times:
            if time.monotonic() > deadline:
                raise Miss(f"the wallet was not asked {times} times")
            time.sleep(0.02)

    def _check(self, step, answer):
        expect = step["expect"]
        for what, wanted in expect.items():
            if not _CHECKS[what](answer, wanted, self._saved):
                raise Miss(f"wanted {what} {wanted!r}, got {answer}")
        if not expect.get("replayed") and "idempotent-replayed" in answer.headers:
            if "same_as" not in expect and expect.get("status") != 299:
                raise Miss(f"marked as replayed: {answer}")
        if "save" in step:
            self._saved[step["save"]] = answer


def _is_problem(answer, kind, _):
    return (answer.problem is not None and (not kind or answer.kind == kind)
            and answer.problem.get("status", answer.status) == answer.status)


def _retry_after(answer, seconds, _):
    values = answer.headers.get("retry-after", [])
    return len(values) == 1 and values[0].isdigit() and int(values[0]) >= seconds


_CHECKS = {
    "status": lambda answer, status, _: answer.status == status,
    "problem": _is_problem,
    "header": lambda answer, headers, _: all(
        answer.headers.get(name) == values for name, values in headers.items()),
    "member": lambda answer, members, _:
        members.items() <= (answer.problem or {}).items(),
    "body": lambda answer, body, _: answer.body == body.encode(),
    "body_of": lambda answer, name, saved: answer.body == saved[name].body,
    "replayed": lambda answer, wanted, _:
        answer.headers.get("idempotent-replayed") == (["true"] if wanted else None),
    "same_as": lambda answer, name, saved: answer.recorded == saved[name].recorded,
    "retry_after": _retry_after,
}
