"""The yardstick for claims: redis-benchmark with the article's Lua claim."""

import re
import shutil
import socket
import tempfile
import time

import processes
from cluster import DATA_PARENT
from processes import BenchmarkError

_CLAIM = """
local key = KEYS[1]
local value = ARGV[1]
local ttl = tonumber(ARGV[2])
local result = redis.call("SET", key, value, "NX", "EX", ttl)
if result then
  return 1
else
  return 0
end
"""
# redis-benchmark replaces each by twelve random digits: a key of 36 bytes.
_KEY = "idemp:" + "k" * 12 + "__rand_int__" * 2
_RANDOM_MAX = 2_000_000_000
_RECORD = ('{"key":"' + "k" * 36 + '","status_code":0,"headers":null,'
           '"body":null,"created_at":"2026-01-01T00:00:00.000000000Z",'
           '"expires_at":"2026-01-02T00:00:00.000000000Z","request_hash":"'
           + "5f" * 16 + '","in_flight":true}')
_TTL_SECONDS = "86400"

# Append-only file, synced each second; nothing else that would cost time.
_SETTINGS = ("--bind", "127.0.0.1", "--save", "", "--appendonly", "yes",
             "--appendfsync", "everysec", "--auto-aof-rewrite-percentage", "0",
             "--protected-mode", "yes")
_FIRST_CLAIMS = 2_000


def _find_server():
    """Debian's package redis-server would run one on the usual port. Its
    program is in redis-tools, where it goes by another name."""
    found = shutil.which("redis-server") or shutil.which("redis-check-rdb")
    if found is None:
        raise BenchmarkError("Redis is not installed")
    return found


class Redis:
    """Made by the constructor, gone after close()."""

    def __init__(self, log):
        self._process = None
        self._folder = tempfile.mkdtemp(prefix="idempotency-benchmark-redis-",
                                        dir=DATA_PARENT)
        self._port = processes.free_port()
        try:
            self._process = processes.start(
                ["redis-server", "--port", str(self._port), "--dir",
                 self._folder, *_SETTINGS], log, executable=_find_server())
            self._wait_until_ready()
            self._script = self._command("SCRIPT", "LOAD", _CLAIM)
        except BaseException:
            self.close()
            raise

    def _wait_until_ready(self):
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port)).close()
                return
            except OSError:
                if self._process.poll() is not None:
                    raise BenchmarkError("Redis did not start") from None
                if time.monotonic() > deadline:
                    raise BenchmarkError("Redis did not get ready") from None
                time.sleep(0.02)

    def _command(self, *words):
        return processes.run(["redis-cli", "-p", str(self._port), "-e",
                              *words]).strip()

    def _run(self, clients, count):
        """Claims a second."""
        self._command("FLUSHALL", "SYNC")
        output = processes.run(
            ["redis-benchmark", "-h", "127.0.0.1", "-p", str(self._port),
             "-c", str(clients), "-n", str(count), "-r", str(_RANDOM_MAX),
             "--csv", "EVALSHA", self._script, "1", _KEY, _RECORD,
             _TTL_SECONDS])
        # Two keys in thousands may meet; a claim that failed makes no key.
        keys = int(self._command("DBSIZE"))
        if not 0.999 * count <= keys <= count + clients:
            raise BenchmarkError(f"Redis did {count} claims and has {keys} "
                                 "keys")
        rate = re.search(r'"([0-9.]+)"(,"[0-9.]+"){6}$', output.rstrip())
        return float(rate.group(1))

    def claims(self, clients, seconds):
        """Claims of fresh keys from so many connections, not pipelined."""
        count = int(self._run(clients, _FIRST_CLAIMS) * seconds)
        return {"clients": clients,
                "claims_per_second": self._run(clients, max(count, 1000))}

    def close(self):
        if self._process is not None:
            processes.stop(self._process)
        shutil.rmtree(self._folder, ignore_errors=True)
