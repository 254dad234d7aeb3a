#!/usr/bin/env python3
"""Checks the tree for what compilers do not see.

usage: tidy.py ROOT

Prints one line per violation and ends with status 1 if there is any:
  arrows     which folder includes what, and where threads are made
  layout     what the top level holds; migrations in numbered pairs
  registers  every test, and every source file, is named in a CMakeLists.txt
  text       lengths, leftovers, paths of one machine, executable scripts
"""

import os
import re
import subprocess
import sys

TOP_LEVEL = {
    "CMakeLists.txt", "proto", "server", "client", "migrations", "tests",
    "README.md",
}
FILE_LINES_MAX = 500
# One file, so that a client takes one: most of it is the manual of the API.
CONTRACT = "proto/idempotency/v1/idempotency.proto"
CXX_COLUMNS_MAX = 80
COLUMNS_MAX = 100

# Files of other projects, kept as their authors wrote them.
VENDORED = ("proto/google/", "proto/grpc/")

GRPC = r"[<\"](grpc|grpcpp|grpc\+\+)/|\.grpc\.pb\.h"
PROTOBUF = r"google/protobuf|google/rpc/|\.pb\.h"
POSTGRES = r"<pqxx|libpq|postgres_ext"
PROMETHEUS = r"<prometheus/"

# (folder or file prefix, what it must not include, why)
ARROWS = [
    ("server/core/", rf"{GRPC}|{PROTOBUF}|{POSTGRES}",
     "core knows no gRPC, Protobuf or libpqxx"),
    ("server/core/", r'"(server/(?!core/)|client/)',
     "core includes only core"),
    ("server/store/", rf"{GRPC}|{PROTOBUF}",
     "a store knows no gRPC or Protobuf"),
    ("server/store/", r'"(server/(?!core/|store/)|client/)',
     "a store includes only core"),
    ("server/rpc/", POSTGRES, "rpc knows no libpqxx"),
    ("server/rpc/", r'"(server/(?!core/|rpc/)|client/)',
     "rpc includes only core"),
    ("server/admin/", rf"{GRPC}|{POSTGRES}",
     "admin knows no gRPC or libpqxx"),
    ("server/admin/", r'"(server/(?!core/|admin/)|client/)',
     "admin includes only core"),
    ("server/", r'"(client/|tests/)', "the server includes no client or test"),
    ("client/", r'"(server/|tests/)', "the client includes no server or test"),
    ("client/", POSTGRES, "only server/store/postgres uses libpqxx"),
] + [
    (f"client/{part}", rf'{GRPC}|"client/(async_)?client\.h',
     "what decides in the client knows no gRPC")
    for part in ("attempt", "bulk_command", "bulk_queue", "coordinator",
                 "execution", "executor", "left_out", "once_", "operation",
                 "proxy/upstream_headers", "retry", "status.h")
] + [
    (f"client/http/{part}", rf"{GRPC}|<httplib",
     "the middleware knows no gRPC and no framework")
    for part in ("fingerprint", "idempotency_key", "middleware", "problem",
                 "recorded_headers", "request", "route")
]
# (file, what it may include although an arrow forbids it, why). One file each,
# and no header of the installed ones.
EXCEPTIONS = [
    ("client/transaction/once_in_transaction.cc",
     r'"server/(core/(clock|errors|limits|metrics|policies|store)'
     r"|rpc/(conversion|random|status|validation)"
     r'|store/postgres/transaction_store)\.h"',
     "what is claimed in a caller's transaction is decided and written by the "
     "server's own code, so that there is no second kind of it"),
]
# (what, the files that may include it, why); below server/ only. The files
# that lie in server/ itself are app.
USERS = [
    (POSTGRES, r"server/store/postgres/",
     "only server/store/postgres uses libpqxx"),
    (GRPC, r"server/(rpc/|[^/]+$)",
     "only server/rpc, and app that builds the server, use gRPC"),
    (PROMETHEUS, r"server/admin/", "only server/admin uses prometheus-cpp"),
]

# Threads are made in app; a further file needs a reason here.
THREAD_MAKERS = re.compile(r"server/(app[./_].*|main\.cc)$")
THREADS_ALLOWED = {
    "server/required_threads.cc": "stands before pthread_create, makes none"}
THREAD = re.compile(
    r"\bstd::j?thread\b(?!::)|\bpthread_create\b|\bstd::async\b|\.detach\(\)")

# Put together from halves, so that this file does not find itself.
LEFTOVER = re.compile(
    r"\b(TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK)\b|GTEST" r"_SKIP|DIS" r"ABLED_")
MACHINE_PATH = re.compile(r"(?<![\w.})*$-])/(work" r"|root)/")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"].*[>"])')
MIGRATION = re.compile(r"(\d{6})_([a-z0-9_]+)\.(up|down)\.sql$")


def list_files(root):
    """The files of the work tree that git tracks or would track."""
    out = subprocess.run(
        ["git", "-C", root, "-c", "safe.directory=*", "ls-files", "-z",
         "--cached", "--others", "--exclude-standard"],
        check=True, stdout=subprocess.PIPE).stdout.decode()
    names = sorted(set(filter(None, out.split("\0"))))
    return [n for n in names if os.path.isfile(os.path.join(root, n))]


def read_text(root, name):
    """The file's text, or None if it is binary."""
    with open(os.path.join(root, name), "rb") as file:
        data = file.read()
    if b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def is_cxx(name):
    return name.endswith((".h", ".cc"))


def strip_comment(line):
    return line.split("//", 1)[0]


def check_arrows(texts):
    for name, text in texts.items():
        if not is_cxx(name) or not name.startswith(("server/", "client/")):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            match = INCLUDE.match(line)
            if match:
                for why in broken_arrows(name, match.group(1)):
                    yield f"{name}:{number}: {match.group(1)}: {why}"


def broken_arrows(name, included):
    for file, allowed, _ in EXCEPTIONS:
        if name == file and re.fullmatch(allowed, included):
            return
    for prefix, forbidden, why in ARROWS:
        if name.startswith(prefix) and re.search(forbidden, included):
            yield why
    if name.startswith("server/"):
        for what, users, why in USERS:
            if re.search(what, included) and not re.match(users, name):
                yield why


def check_exceptions(texts):
    """Each exception is made use of."""
    for file, allowed, _ in EXCEPTIONS:
        included = [m.group(1) for m in map(
            INCLUDE.match, texts.get(file, "").splitlines()) if m]
        if not any(re.fullmatch(allowed, what) for what in included):
            yield f"{file}: has an exception of the arrows and needs none"


def check_threads(texts):
    for name, text in texts.items():
        if (not is_cxx(name) or not name.startswith("server/")
                or THREAD_MAKERS.match(name) or name in THREADS_ALLOWED):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if THREAD.search(strip_comment(line)):
                yield f"{name}:{number}: threads are made only in app"
    for name in THREADS_ALLOWED:
        if name not in texts:
            yield f"{name}: may make threads, but does not exist"


def check_top_level(names):
    for top in sorted({n.split("/", 1)[0] for n in names}):
        if top not in TOP_LEVEL and not top.startswith("."):
            yield f"{top}: the top level holds nothing else"
    for top in sorted(TOP_LEVEL - {n.split("/", 1)[0] for n in names}):
        yield f"{top}: is missing at the top level"


def check_registered(names, texts):
    """Sources and tests, in the nearest CMakeLists.txt above them."""
    for name in names:
        wanted = (name.startswith(("server/", "client/", "tests/"))
                  and (name.endswith(".cc")
                       or re.search(r"_test\.(py|sh)$", name)))
        if not wanted:
            continue
        folder = os.path.dirname(name)
        while folder and f"{folder}/CMakeLists.txt" not in texts:
            folder = os.path.dirname(folder)
        listing = read_listing(folder, texts)
        relative = re.escape(os.path.relpath(name, folder or "."))
        if not re.search(rf"(^|[\s(\"]|\}}/){relative}($|[\s)\"])",
                         listing, re.MULTILINE):
            yield f"{name}: no CMakeLists.txt names it"


def check_reached(names, texts):
    """Every CMakeLists.txt is added by the one above it, or is a project."""
    for name in names:
        if not name.endswith("/CMakeLists.txt"):
            continue
        if re.search(r"^project\(", texts.get(name, ""), re.MULTILINE):
            continue
        folder = os.path.dirname(name)
        above = os.path.dirname(folder)
        if above == "tests" or not above:
            continue  # tests/ adds all its folders; the root names its own.
        while above and f"{above}/CMakeLists.txt" not in texts:
            above = os.path.dirname(above)
        listing = read_listing(above, texts)
        relative = re.escape(os.path.relpath(folder, above or "."))
        if not re.search(rf"(^|[\s(]){relative}($|[\s)])", listing,
                         re.MULTILINE):
            yield f"{name}: the CMakeLists.txt above does not add it"


def read_listing(folder, texts):
    """The folder's CMakeLists.txt and what it includes, without comments."""
    listing = re.sub(r"#.*", "", texts.get(f"{folder}/CMakeLists.txt", ""))
    for included in re.findall(r"include\(([\w./]+\.cmake)\)", listing):
        listing += re.sub(r"#.*", "", texts.get(f"{folder}/{included}", ""))
    return listing


def check_text(texts):
    for name, text in texts.items():
        lines = text.splitlines()
        if name.endswith((".h", ".cc", ".py", ".sh", ".sql", ".proto")):
            if len(lines) > FILE_LINES_MAX and name != CONTRACT:
                yield (f"{name}: {len(lines)} lines, more than "
                       f"{FILE_LINES_MAX}")
            limit = CXX_COLUMNS_MAX if is_cxx(name) else COLUMNS_MAX
            for number, line in enumerate(lines, 1):
                if len(line) > limit:
                    yield f"{name}:{number}: longer than {limit} columns"
        for number, line in enumerate(lines, 1):
            if LEFTOVER.search(line):
                yield f"{name}:{number}: left open or switched off"
            if MACHINE_PATH.search(line):
                yield f"{name}:{number}: a path of one machine"


def check_executable(root, texts):
    for name, text in texts.items():
        if text.startswith("#!") and not os.access(
                os.path.join(root, name), os.X_OK):
            yield f"{name}: begins with #! but is not executable"


def check_migrations(names):
    seen = {}
    for name in names:
        if not name.startswith("migrations/") or not name.endswith(".sql"):
            continue
        match = MIGRATION.fullmatch(name[len("migrations/"):])
        if not match:
            yield f"{name}: is not NNNNNN_name.up.sql or .down.sql"
            continue
        number, title, way = int(match[1]), match[2], match[3]
        if (number, way) in seen:
            yield f"{name}: number {number} is taken"
        seen[number, way] = title
    numbers = sorted({number for number, _ in seen})
    for expected, number in enumerate(numbers, 1):
        if number != expected:
            yield f"migrations: {expected:06} is missing"
            break
    for number in numbers:
        if seen.get((number, "up")) != seen.get((number, "down")):
            yield f"migrations: {number:06} is not a pair of up and down"


def check(root, names):
    """All violations among the files `names` below `root`, as sentences."""
    texts = {n: read_text(root, n) for n in names
             if not n.startswith(VENDORED)}
    texts = {n: t for n, t in texts.items() if t is not None}
    yield from check_arrows(texts)
    yield from check_exceptions(texts)
    yield from check_threads(texts)
    yield from check_top_level(names)
    yield from check_registered(names, texts)
    yield from check_reached(names, texts)
    yield from check_text(texts)
    yield from check_executable(root, texts)
    yield from check_migrations(names)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    names = list_files(sys.argv[1])
    if not names:
        sys.exit(f"no files below {sys.argv[1]}")
    violations = list(check(sys.argv[1], names))
    for violation in violations:
        print(violation)
    print(f"{len(names)} files, {len(violations)} violations")
    sys.exit(1 if violations else 0)


if __name__ == "__main__":
    main()
