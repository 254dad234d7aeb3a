#!/bin/bash
# Breaks things around running servers, and has what callers saw checked.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tests/fault/run.sh [--minutes N] [--classes a,b] [--previous]
       tests/fault/run.sh --quick | --list
       tests/fault/run.sh --failover [--rounds N] [--kinds a,b]
       tests/fault/run.sh --mutants [--only a,b]
each with [--seed N] [--build_dir=DIR]

Builds the programs, starts a private PostgreSQL, three servers between gates,
and callers, and plays round after round: traffic, faults of one class, traffic,
and a check of everything that callers, the payment channel and the database's
log of changes saw. Prints a line a round and a table by class; writes
DIR/fault/results.tsv (name, value, unit, goal, yes or no) and appends a row to
tests/fault/ledger.tsv. Files of rounds with violations stay in
DIR/fault/violations.

The status is 1 if anything was violated, was not checked or broke off, or if no
fault of a class that was played counted; 2 if there was nothing to play; 128
and the signal's number if one ended it, after the tables and the row.

Without --minutes every class is played once (and once more if no fault of it
counted), and every kind of failover, in about 20 minutes. Classes that cannot
be played here are left out and said so; one that is named fails the run.

  --minutes N      all classes again and again, in random order, for so long
  --classes a,b    only these
  --list           says which classes, ways of failover and planted bugs there
                   are
  --seed N         the random numbers of an earlier run
  --quick          a few classes and one planted bug, some 70 s; no row in the
                   ledger
  --previous       also servers of the last commit that changed server/, beside
                   those of now; builds it
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
mode=
flags=()
of_faults=()  # flags that only this mode has
of_failover=()
of_mutants=()
targets=(idempotency-server fault-caller fault-wallet fault-gate fault-checker
  skewed_clock)
planted=()
previous=

refuse() {
  echo "tests/fault/run.sh: $1; see --help" >&2
  exit 2
}

while (($#)); do
  case $1 in
    --minutes | --classes | --seed | --only | --rounds | --kinds)
      (($# > 1)) || refuse "$1 needs a value"
      set -- "$1=$2" "${@:3}"
      continue
      ;;
    --seed=*) flags+=("$1") ;;
    --minutes=* | --classes=*) of_faults+=("$1") ;;
    --rounds=* | --kinds=*) of_failover+=("$1") ;;
    --only=*) of_mutants+=("$1") ;;
    --previous)
      previous=yes
      of_faults+=("$1")
      ;;
    --failover | --mutants | --quick | --list)
      [[ -z $mode ]] || refuse "$mode and $1 exclude each other"
      mode=$1
      ;;
    --build_dir=*) build=${1#*=} ;;
    -h | --help) usage; exit 0 ;;
    *) refuse "there is no $1" ;;
  esac
  shift
done

program=run.py
[[ -z $mode ]] || ((${#of_faults[@]} == 0)) ||
  refuse "${of_faults[0]} does not go with $mode"
[[ $mode == --failover ]] || ((${#of_failover[@]} == 0)) ||
  refuse "${of_failover[0]} needs --failover"
[[ $mode == --mutants ]] || ((${#of_mutants[@]} == 0)) ||
  refuse "${of_mutants[0]} needs --mutants"
for flag in ${of_faults[@]+"${of_faults[@]}"} \
  ${of_failover[@]+"${of_failover[@]}"} ${of_mutants[@]+"${of_mutants[@]}"}; do
  [[ $flag == --previous ]] || flags+=("$flag")
done
export PYTHONDONTWRITEBYTECODE=1
list=(python3 "$root/tests/fault/run.py" --build_dir="$build" --list
  ${flags[@]+"${flags[@]}"})
case $mode in
  --list) exec "${list[@]}" ;;
  --failover) program=failover.py ;;
  --quick)
    flags+=("$mode")
    planted=(idempotency-server-01_finalize_without_token)
    ;;
  --mutants)
    flags+=("$mode")
    planted=(planted_hunt)
    ;;
esac

# shellcheck source=tests/support/packages.sh
source "$root/tests/support/packages.sh"
install_packages "${IDEMPOTENCY_RUN_PACKAGES[@]}" \
  "${IDEMPOTENCY_TEST_PACKAGES[@]}"
# Wrong names are refused before anything is built.
"${list[@]}" >/dev/null

# configure SOURCE FOLDER FLAG...
configure() {
  mkdir -p "$2"
  cmake -S "$1" -B "$2" -G Ninja "${@:3}" >"$2/cmake.log" 2>&1 || {
    cat "$2/cmake.log" >&2
    return 1
  }
}

# Rows of the ledger tell of the tree that is built now.
eval "$(python3 "$root/tests/fault/ledger.py" begin)"

mkdir -p "$build/fault"
build=$(cd "$build" && pwd)
[[ -f $build/CMakeCache.txt ]] ||
  configure "$root" "$build" -DCMAKE_BUILD_TYPE=RelWithDebInfo
# Whatever becomes of the build: or tests/run.sh would have the test of all
# bugs, too.
without_planted_bugs() {
  trap - EXIT
  configure "$root" "$build" -DIDEMPOTENCY_PLANTED_BUGS=OFF
}

if ((${#planted[@]} > 0)); then
  trap without_planted_bugs EXIT
  configure "$root" "$build" -DIDEMPOTENCY_PLANTED_BUGS=ON
fi
cmake --build "$build" --target "${targets[@]}" ${planted[@]+"${planted[@]}"}
((${#planted[@]} == 0)) || without_planted_bugs

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

command=(python3 "$root/tests/fault/$program" --build_dir="$build"
  ${flags[@]+"${flags[@]}"})
# What it mounts goes with it, also if it is killed.
if unshare --mount --propagation private true 2>/dev/null; then
  command=(unshare --mount --propagation private "${command[@]}")
fi
exec "${command[@]}"
