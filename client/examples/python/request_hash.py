"""The request hash, the same in every language (tests/vectors/request_hash.tsv).
"""

import hashlib

_VERSION = b"idempotency.request.v1"


def request_hash(*parts):
    """SHA-256 over the version and `parts` (bytes), each preceded by its length
    as 8 bytes, big-endian. Of an HTTP request: method, target, content type and
    body, as they came. Nothing is normalised."""
    digest = hashlib.sha256()
    for part in (_VERSION, *parts):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def check_vectors(path):
    """How many examples of that file hold; raises at the first that does not.

    A part is written in hex; `hex*n` is n times those bytes."""
    with open(path, encoding="ascii") as file:
        rows = [line.rstrip("\n").split("\t") for line in file][1:]
    for name, count, parts, digest in rows:
        parts = parts.split(",") if int(count) else []
        raw = [bytes.fromhex(part) * int(times or 1)
               for part, _, times in (part.partition("*") for part in parts)]
        if len(raw) != int(count) or request_hash(*raw).hex() != digest:
            raise ValueError(f"the request hash of '{name}' is another one")
    return len(rows)
