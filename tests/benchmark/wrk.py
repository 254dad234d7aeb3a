"""Load over HTTP: POSTs of wrk, whose answers http_load.lua checks."""

import json
import os
import urllib.request

import processes
from processes import BenchmarkError

_SCRIPT = os.path.join(os.path.dirname(__file__), "http_load.lua")
_REQUEST = '{"account":"acc_8c1f0d","amount":1250,"currency":"EUR"}'
# The keys that http_load.lua replays.
_REPLAYED_KEYS = [f"replay{'-' * 18}{number:012}" for number in range(100)]


def record(address, path):
    """Sends what load(keys="replay") will repeat; returns the body of the
    answer, which is always the same."""
    for key in _REPLAYED_KEYS:
        request = urllib.request.Request(
            f"http://{address}{path}", _REQUEST.encode(),
            {"Content-Type": "application/json", "Idempotency-Key": key})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                body = answer.read().decode()
        except OSError as error:
            raise BenchmarkError(f"POST to {path}: {error}") from error
        if answer.status != 201:
            raise BenchmarkError(f"{path} answered {answer.status}")
    return body


def load(address, path, keys, connections, seconds, answer):
    """`keys`: fresh, replay or none. One request at a time on each connection,
    the next when it is answered; every answer must have the body `answer`.
    `p50_us` is measured only of one connection."""
    output = processes.run(
        ["wrk", "--threads=1", f"--connections={connections}",
         f"--duration={seconds}s", "--timeout=30s", "--script=" + _SCRIPT,
         f"http://{address}{path}", "--", keys, str(connections), _REQUEST,
         answer])
    run = json.loads(output.splitlines()[-1])
    if run["requests"] == 0 or (connections == 1 and run["p50_us"] == 0):
        raise BenchmarkError(f"{path} answered nothing, or too late")
    run["requests_per_second"] = run["requests"] / run["seconds"]
    return run
