#!/usr/bin/env bash
# Builds the simulation without assertions and runs many seeds of it.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
build=build-simulation

usage() {
  cat <<END
usage: tests/simulation/run.sh [--seeds N] [--from N] [--jobs N]
                               [--ledger FILE] [--no-install]

Installs what is missing (as root; otherwise prints the line that does), builds
the simulation in $build/ and runs seeds of it: each is a world of replicas,
callers and a database of its own, with at least 200 operations.

  --seeds N      how many; default 10000
  --from N       the first one; default 1
  --jobs N       processes at a time; default: one for each processor
  --ledger FILE  where the run is kept; default tests/fault/ledger.tsv
  --no-install   the packages are there

At the end comes a table: schedules, operations, faults by kind and what was
answered. At the first seed under which a promise is broken the run ends with
status 1: it prints the key's history and the command that shows it again.
END
}

seeds=10000
from=1
jobs=$(nproc)
ledger=
install=yes
while (($#)); do
  case $1 in
    --seeds | --from | --jobs)
      if [[ ! ${2-} =~ ^[1-9][0-9]*$ ]]; then
        echo "$1 wants a number from 1" >&2
        exit 2
      fi
      case $1 in
        --seeds) seeds=$2 ;;
        --from) from=$2 ;;
        --jobs) jobs=$2 ;;
      esac
      shift 2
      ;;
    --ledger)
      if [[ -z ${2-} ]]; then
        echo "--ledger wants a file" >&2
        exit 2
      fi
      ledger=$2
      shift 2
      ;;
    --no-install)
      install=no
      shift
      ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      echo "unknown argument: $1" >&2
      usage >&2
      exit 2
      ;;
  esac
done

source tests/support/packages.sh
[[ $install == no ]] || install_packages "${IDEMPOTENCY_RUN_PACKAGES[@]}" \
  "${IDEMPOTENCY_TEST_PACKAGES[@]}"
mkdir -p "$build/runs"
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  >"$build/cmake.log" 2>&1 || {
  cat "$build/cmake.log" >&2
  exit 1
}
ninja -C "$build" simulate
# The ledger's row is of the sources as they are now.
eval "$(python3 tests/fault/ledger.py begin)"
simulate=$build/tests/simulation/simulate
rm -f "$build"/runs/*

# A slice of the seeds for each process.
pids=()
for ((job = 0; job < jobs; ++job)); do
  first=$((from + seeds * job / jobs))
  number=$((seeds * (job + 1) / jobs - seeds * job / jobs))
  ((number > 0)) || continue
  "$simulate" --from="$first" --seeds="$number" \
    >"$build/runs/$job" 2>"$build/runs/$job.errors" &
  pids+=($!)
done
trap '((${#pids[@]})) && kill "${pids[@]}" 2>/dev/null; true' EXIT

# sum_progress prints how many seeds and operations are done.
sum_progress() {
  local file
  for file in "$build"/runs/*[0-9]; do
    grep '^progress' "$file" | tail -n 1 || true
  done | awk '{ seeds += $2; operations += $3 } END { print seeds + 0, operations + 0 }'
}

started=$SECONDS
# A process that finds something ends the others.
running=${#pids[@]}
status=0
told=$SECONDS
while ((running)); do
  sleep 0.5
  running=0
  for pid in "${pids[@]}"; do
    if kill -0 "$pid" 2>/dev/null; then running=$((running + 1)); fi
  done
  if ! grep -qs '^broken under seed' "$build"/runs/*[0-9]; then
    ((SECONDS - told >= 5)) || ((running == 0)) || continue
  fi
  told=$SECONDS
  read -r done_seeds done_operations < <(sum_progress)
  took=$((SECONDS - started))
  printf '%d of %d seeds, %d operations, %d seeds/s\n' "$done_seeds" "$seeds" \
    "$done_operations" $((done_seeds / (took > 0 ? took : 1)))
  if grep -qs '^broken under seed' "$build"/runs/*[0-9]; then break; fi
done
broken=$(grep -lsE '^broken under seed' "$build"/runs/*[0-9] | head -n 1 || true)
if [[ -n $broken ]]; then
  status=1
  kill "${pids[@]}" 2>/dev/null || true
fi
for pid in "${pids[@]}"; do
  wait "$pid" || status=1
done
pids=()
seconds=$((SECONDS - started))
read -r done_seeds done_operations < <(sum_progress)

# counts KIND adds up what the processes counted, and prints lines NAME TAB N.
counts() {
  cat "$build"/runs/*[0-9] | awk -F '\t' -v kind="count $1" '
    $1 == kind { sums[$2] += $3 }
    END { for (name in sums) print name "\t" sums[name] }' | sort
}

violations=0
if [[ -n $broken ]]; then
  violations=1
  seed=$(sed -n 's/^broken under seed \([0-9]*\):/\1/p' "$broken")
  grep -v '^progress' "$broken"
  echo "replay: $simulate --from=$seed --seeds=1"
elif ((status == 0)); then
  for kind in fault event answer run; do
    printf '\n%s\n' "$kind"
    counts "$kind" | awk -F '\t' '{ printf "  %14d  %s\n", $2, $1 }'
  done
else
  cat "$build"/runs/*.errors >&2
fi
printf '\n%d schedules, %d operations, %d s, violations %d\n' "$done_seeds" \
  "$done_operations" "$seconds" "$violations"

if [[ -z $ledger && -f tests/fault/ledger.py ]]; then
  python3 tests/fault/ledger.py append simulation seed="$from" \
    minutes="$(awk -v s="$seconds" 'BEGIN { printf "%.1f", s / 60 }')" \
    schedules="$done_seeds" operations="$done_operations" \
    violations="$violations"
elif [[ -n $ledger ]]; then
  printf '%s\tsimulation\tseed=%s\tseconds=%s\tschedules=%s\toperations=%s\tviolations=%s\n' \
    "$(date -u +%Y-%m-%dT%H:%MZ)" "$from" "$seconds" "$done_seeds" \
    "$done_operations" "$violations" >>"$ledger"
fi
exit "$status"
