#!/usr/bin/env python3
"""Makes the test vectors of the digests, for implementations in any language.

usage: make_vectors.py [--check]

Writes downstream_key.tsv and response_digest.tsv beside this script, or with
--check ends with status 1 if they differ from what it would write. Bytes are
in hexadecimal; a part is framed by its length as 8 bytes, big-endian.
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


def main():
    same = True
    for name, lines in (("downstream_key.tsv", downstream_lines()),
                        ("response_digest.tsv", response_lines())):
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
