#!/bin/bash
# Breaks things around running servers, and has what callers saw checked.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tests/fault/run.sh [--minutes N] [--classes a,b] [--seed N] [--quick]
                          [--previous] [--mutants [--only a,b]] [--list]
                          [--failover [--rounds N] [--kinds a,b]]
                          [--build_dir=DIR]

Builds the programs, starts a private PostgreSQL, three servers between gates,
and callers, and plays round after round: traffic, faults of one class, traffic,
and a check of everything that callers, the payment channel and the database's
log of changes saw. Prints a line a round and a table by class; writes
DIR/fault/results.tsv (name, value, unit, goal, yes or no) and appends a row to
tests/fault/ledger.tsv. Files of rounds with violations stay in
DIR/fault/violations. The status is 1 if anything was violated.

Without --minutes every class is played once, and every kind of failover, in
about 20 minutes.

  --minutes N      all classes again and again, in random order, for so long
  --classes a,b    only these
  --list           says which there are
  --seed N         the random numbers of an earlier run
  --quick          a few classes and one planted bug, some 70 s; no row in the
                   ledger
  --previous       also servers of the last commit that changed server/, beside
                   those of now; builds it
  --failover       instead: only the failovers (failover.py), --rounds N of them
  --mutants        instead: servers with planted bugs, each until it is caught;
                   with --only a,b these bugs
  --failover       instead: a primary and its synchronous standby, which is
                   promoted under load in each of seven ways; with --rounds N so
                   many times in all, with --kinds a,b only in these ways
  --build_dir=DIR  default: build

As root it can also fill disks (on filesystems of its own) and run PostgreSQL;
as anybody else PostgreSQL is run by who calls.
TEXT
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$root/build
program=run.py
flags=()
targets=(idempotency-server fault-caller fault-wallet fault-gate fault-checker
  skewed_clock)
planted=()
previous=
program=run.py
while (($#)); do
  case $1 in
    --minutes | --classes | --seed | --only | --rounds | --kinds)
      (($# > 1)) || { usage >&2; exit 2; }
      flags+=("$1" "$2")
      shift
      ;;
    --minutes=* | --classes=* | --seed=* | --only=* | --rounds=* | --kinds=*)
      flags+=("$1")
      ;;
    --failover) program=failover.py ;;
    --quick)
      flags+=("$1")
      planted=(idempotency-server-01_finalize_without_token)
      ;;
    --mutants)
      flags+=("$1")
      planted=(planted_hunt)
      ;;
    --previous) previous=yes ;;
    --list)
      exec python3 "$root/tests/fault/run.py" --build_dir="$build" --list
      ;;
    --build_dir=*) build=${1#*=} ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done

# shellcheck source=tests/support/packages.sh
source "$root/tests/support/packages.sh"
install_packages "${IDEMPOTENCY_RUN_PACKAGES[@]}" \
  "${IDEMPOTENCY_TEST_PACKAGES[@]}"

# configure SOURCE FOLDER FLAG...
configure() {
  cmake -S "$1" -B "$2" -G Ninja "${@:3}" >"$2.log" 2>&1 || {
    cat "$2.log" >&2
    return 1
  }
}

mkdir -p "$build/fault"
build=$(cd "$build" && pwd)
[[ -f $build/CMakeCache.txt ]] ||
  configure "$root" "$build" -DCMAKE_BUILD_TYPE=RelWithDebInfo
((${#planted[@]} == 0)) ||
  configure "$root" "$build" -DIDEMPOTENCY_PLANTED_BUGS=ON
cmake --build "$build" --target "${targets[@]}" ${planted[@]+"${planted[@]}"}
# Or tests/run.sh would have the test of all bugs, too.
((${#planted[@]} == 0)) ||
  configure "$root" "$build" -DIDEMPOTENCY_PLANTED_BUGS=OFF

# The server before the last change of server/, in a work tree of its own.
if [[ -n $previous ]]; then
  git=(git -C "$root" -c safe.directory='*')
  commit=$("${git[@]}" log -1 --format=%H -- server)
  commit=$("${git[@]}" log -1 --format=%H "$commit^" -- server)
  tree=$build/fault/previous
  if [[ $(cat "$tree.commit" 2>/dev/null) != "$commit" ]]; then
    rm -rf "$tree" "$tree.build"
    mkdir -p "$tree"
    "${git[@]}" archive "$commit" | tar -x -C "$tree"
    configure "$tree" "$tree.build" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
      -DIDEMPOTENCY_BUILD_TESTS=OFF
    cmake --build "$tree.build" --target idempotency-server
    echo "$commit" >"$tree.commit"
  fi
  flags+=(--previous "$tree.build/server/idempotency-server")
fi

export PYTHONDONTWRITEBYTECODE=1
command=(python3 "$root/tests/fault/$program" --build_dir="$build"
  ${flags[@]+"${flags[@]}"})
# What it mounts goes with it, also if it is killed.
if unshare --mount --propagation private true 2>/dev/null; then
  command=(unshare --mount --propagation private "${command[@]}")
fi
exec "${command[@]}"
