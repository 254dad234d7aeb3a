#!/usr/bin/env python3
"""Makes the test vectors of the digests, for implementations in any language.

usage: make_vectors.py [--check]

Writes downstream_key.tsv, response_digest.tsv and request_hash.tsv beside this
script, or with --check ends with status 1 if they differ from what it would
write. Bytes are in hexadecimal, and 6162*3 is short for 616261626162; a part is
framed by its length as 8 bytes, big-endian.
"""

import hashlib
import os
import struct
import sys
import uuid

FOLDER = os.path.dirname(os.path.abspath(__file__))

NAMESPACES = [
    uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
    uuid.UUID("5f0d1c6e-9b1a-4c0e-8f3e-2a7d4b6c8e90"),
]
RECORDS = [
    ("payments", "order-1"),
    ("payments", "order-11"),
    ("payments/charge", "order-1"),
    ("pay", "mentsorder-1"),
    ("orders/create", "4e7a1c52-8a33-4d58-9f0b-1d2c3b4a5968"),
    ("a", "b"),
    ("s" * 128, "k" * 255),
    ("forms", "caf\u00e9"),
    ("forms", "cafe\u0301"),
    ("forms", " leading and trailing "),
    ("forms", "{\"a\":[\\,NULL,'']}"),
    ("forms", "\U0001f600"),
]
FREED_COUNTS = [0, 1, 9, 10, 2147483647]

RESPONSES = [
    # status, body omitted, headers omitted, headers, body
    (200, False, False, [], b""),
    (204, False, False, [], b""),
    (200, True, False, [], b""),
    (200, False, True, [], b""),
    (200, True, True, [], b""),
    (201, False, False, [(b"content-type", b"application/json")], b"{}"),
    (201, False, False, [(b"set-cookie", b"a=1"), (b"set-cookie", b"b=2")],
     b"x"),
    (201, False, False, [(b"set-cookie", b"b=2"), (b"set-cookie", b"a=1")],
     b"x"),
    (0, False, False, [(b"x-bin", bytes(range(256)))], bytes(range(256))),
    (999, False, False, [(b"", b"")], b"\0" * 1000),
]

REQUEST_HASH_VERSION = b"idempotency.request.v1"
JSON = b'{"order":"1001","amount":200}'
# What the parts are an example of; the parts, a pair being (bytes, times).
REQUESTS = [
    ("no part", []),
    ("an empty part", [b""]),
    ("two empty parts", [b"", b""]),
    ("four empty parts", [b""] * 4),
    # method, target, content type, body
    ("http request",
     [b"POST", b"/payments?currency=EUR", b"application/json", JSON]),
    ("method in lower case",
     [b"post", b"/payments?currency=EUR", b"application/json", JSON]),
    ("content type with a charset",
     [b"POST", b"/payments?currency=EUR", b"application/json; charset=utf-8",
      JSON]),
    ("body with a space",
     [b"POST", b"/payments?currency=EUR", b"application/json", JSON + b" "]),
    ("order of fields",
     [b"POST", b"/payments?currency=EUR", b"application/json",
      b'{"amount":200,"order":"1001"}']),
    ("no content type and no body", [b"DELETE", b"/payments/1", b"", b""]),
    ("order of parts", [b"/payments?currency=EUR", b"POST",
                        b"application/json", JSON]),
    # The same bytes one after the other.
    ("ab", [b"ab"]),
    ("a, b", [b"a", b"b"]),
    ("ab, nothing", [b"ab", b""]),
    ("nothing, ab", [b"", b"ab"]),
    ("a frame inside a part", [b"a" + struct.pack(">Q", 1) + b"b"]),
    ("the version as a part", [REQUEST_HASH_VERSION, b"ab"]),
    ("every byte", [bytes(range(256))]),
    ("a zero byte", [b"a\0b", b"\0"]),
    ("composed UTF-8", ["caf\u00e9".encode()]),
    ("decomposed UTF-8", ["cafe\u0301".encode()]),
    ("four bytes of UTF-8", ["\U0001f600".encode()]),
    ("a length of three bytes", [(b"idempotency", 100_000)]),
    ("a length of four bytes", [(b"0123456789abcdef", 1_048_577), b"end"]),
]


def framed(part):
    return struct.pack(">Q", len(part)) + part


def downstream_key(namespace, scope, key, freed_count):
    name = b"".join(framed(part) for part in (
        scope.encode(), key.encode(), str(freed_count).encode()))
    digest = bytearray(hashlib.sha1(namespace.bytes + name).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x50
    digest[8] = digest[8] & 0x3F | 0x80
    return uuid.UUID(bytes=bytes(digest))


def encode_headers(headers):
    return b"".join(framed(name) + framed(value) for name, value in headers)


def response_digest(status, body_omitted, headers_omitted, headers, body):
    flags = f"{int(body_omitted)}{int(headers_omitted)}".encode()
    parts = (str(status).encode(), flags, encode_headers(headers), body)
    return hashlib.sha256(b"".join(map(framed, parts))).hexdigest()


def spelled_out(part):
    return part[0] * part[1] if isinstance(part, tuple) else part


def in_hex(part):
    return (f"{part[0].hex()}*{part[1]}" if isinstance(part, tuple)
            else part.hex())


def request_hash(parts):
    sha = hashlib.sha256(framed(REQUEST_HASH_VERSION))
    for part in parts:
        sha.update(framed(spelled_out(part)))
    return sha.hexdigest()


def downstream_lines():
    yield "namespace\tscope\tkey (hex)\tfreed count\tdownstream key"
    for namespace in NAMESPACES:
        for scope, key in RECORDS:
            for count in FREED_COUNTS:
                made = downstream_key(namespace, scope, key, count)
                yield "\t".join([str(namespace), scope, key.encode().hex(),
                                 str(count), str(made)])


def response_lines():
    yield ("status\tbody omitted\theaders omitted\theaders (hex)\tbody (hex)"
           "\tdigest")
    for status, body_omitted, headers_omitted, headers, body in RESPONSES:
        yield "\t".join([
            str(status), str(int(body_omitted)), str(int(headers_omitted)),
            encode_headers(headers).hex(), body.hex(),
            response_digest(status, body_omitted, headers_omitted, headers,
                            body)])


def request_lines():
    yield "example\tnumber of parts\tparts (hex, comma between)\tdigest"
    for example, parts in REQUESTS:
        yield "\t".join([example, str(len(parts)),
                         ",".join(map(in_hex, parts)), request_hash(parts)])


def main():
    same = True
    for name, lines in (("downstream_key.tsv", downstream_lines()),
                        ("response_digest.tsv", response_lines()),
                        ("request_hash.tsv", request_lines())):
        text = "".join(line + "\n" for line in lines)
        path = os.path.join(FOLDER, name)
        if "--check" in sys.argv[1:]:
            with open(path, encoding="ascii") as file:
                if file.read() != text:
                    print(f"{name} is not what this script makes")
                    same = False
        else:
            with open(path, "w", encoding="ascii") as file:
                file.write(text)
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
