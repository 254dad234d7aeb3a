#!/usr/bin/env bash
# Searches every state of the protocol in coordinator.pml, and shows that
# planted bugs are found.
set -euo pipefail

usage() {
  cat <<'END'
usage: tests/model/run.sh [--quick] [--mutants]

Installs what is missing (as root; otherwise prints the line that does) and
searches all states that the model of the protocol, tests/model/coordinator.pml,
can reach, configuration by configuration. Prints a table: what each covers, how
many states it has, how deep they go, seconds, and the result. Files go to
build/model/.

  --quick     only small configurations: some seconds
  --mutants   plants one bug after the other, and shows what caught it

The status is 1 if an invariant is broken, if a search was not complete, or if a
bug was not caught; the steps that lead there are in build/model/NAME/steps.
END
}

quick=false
mutants=false
for argument in "$@"; do
  case $argument in
    --quick) quick=true ;;
    --mutants) mutants=true ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      echo "unknown argument: $argument" >&2
      usage >&2
      exit 2
      ;;
  esac
done

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
source tests/support/packages.sh
install_packages "${IDEMPOTENCY_MODEL_PACKAGES[@]}"
model=$root/tests/model/coordinator.pml
build=$root/build/model
mkdir -p "$build"

# What may be used at most; a search that needs more is not complete, and fails.
depth_max=1000000
memory_mb=8192

# name | options | what it covers
quick_configurations=(
  "take-over | -DCALLERS=2 -DGRANTS=4 -DLIVES=0 | abandoned attempts are taken over"
  "hold | -DCALLERS=2 -DGRANTS=4 -DLIVES=0 -DHOLD | held until resolved"
  "expiry | -DCALLERS=2 -DGRANTS=3 -DLIVES=1 | expiry, reaper, next life"
  "failover | -DCALLERS=2 -DGRANTS=2 -DLIVES=0 -DFAILOVER=1 | a standby takes over"
  "settles | -DCALLERS=2 -DATTEMPTS=2 -DGRANTS=9 -DLIVES=0 -DFAULTS=1 -DHOLD | L2"
)
full_configurations=(
  "take-over-3 | -DCALLERS=3 -DGRANTS=4 -DLIVES=0 | three callers"
  "hold-3 | -DCALLERS=3 -DGRANTS=4 -DLIVES=0 -DHOLD | three callers, held until resolved"
  "hold-errors-3 | -DCALLERS=3 -DGRANTS=3 -DLIVES=0 -DHOLD_ERRORS | held after an error only"
  "renewals | -DCALLERS=2 -DGRANTS=4 -DLIVES=0 -DEXTRAS | renewals, lookups"
  "attempts | -DCALLERS=2 -DATTEMPTS=2 -DGRANTS=3 -DLIVES=0 | two attempts a caller"
  "expiry-hold | -DCALLERS=2 -DGRANTS=4 -DLIVES=1 -DHOLD -DEXTRAS | expiry beside held records"
  "lives | -DCALLERS=2 -DGRANTS=4 -DLIVES=2 | three lives of the record"
  "mismatch | -DCALLERS=3 -DGRANTS=3 -DLIVES=0 -DMISMATCH | another request"
  "replicas | -DCALLERS=2 -DGRANTS=3 -DLIVES=1 -DSPLIT -DEXTRAS | read, then guarded write"
  "failover-2 | -DCALLERS=2 -DGRANTS=4 -DLIVES=0 -DFAILOVER=2 -DHOLD | two failovers"
  "settles-take-over | -DCALLERS=2 -DATTEMPTS=2 -DGRANTS=9 -DLIVES=0 -DFAULTS=3 | L2"
  "settles-hold | -DCALLERS=2 -DATTEMPTS=2 -DGRANTS=9 -DLIVES=0 -DFAULTS=3 -DHOLD | L2"
)

small="-DCALLERS=2 -DGRANTS=4 -DLIVES=0"
# name of the -DMUTANT_ | options | what catches it
planted=(
  "FINALIZE_UNOWNED | $small | S7_only_the_latest_grant_finalizes"
)

# search NAME OPTIONS makes and runs one search. Sets outcome (ok, or what is
# wrong), states, depth and took.
search() {
  local folder=$build/$1 started=$SECONDS log flags=(-DSAFETY) how=(-E)
  if [[ $2 == *FAULTS* ]]; then
    # Liveness, with every process served in the end.
    flags=(-DNFAIR=4)
    how=(-a -f)
  fi
  rm -rf "$folder"
  mkdir -p "$folder"
  log=$folder/log
  outcome="not built, see $log"
  states=- depth=- took=0
  # shellcheck disable=SC2086
  (cd "$folder" && cp "$model" . && spin $2 -a coordinator.pml &&
    gcc -w -O2 "${flags[@]}" -DCOLLAPSE -DVECTORSZ=4096 \
      -DMEMLIM="$memory_mb" -o pan pan.c) >"$log" 2>&1 || return 0
  local status=0
  (cd "$folder" && ./pan "${how[@]}" -n -w24 -m"$depth_max") >"$log" 2>&1 || status=$?
  took=$((SECONDS - started))
  states=$(sed -nE 's/^ *([0-9.e+]+) states, stored.*/\1/p' "$log")
  depth=$(sed -nE 's/.*depth reached ([0-9]+).*/\1/p' "$log")
  outcome=$(judge "$folder" "$log" "$status")
  if [[ $outcome != ok ]]; then
    # shellcheck disable=SC2086
    (cd "$folder" && spin $2 -t -p coordinator.pml) >"$folder/steps" 2>&1 || true
  fi
}

# judge FOLDER LOG STATUS prints ok, the name of the broken invariant, or why
# the search says nothing.
judge() {
  local broken
  broken=$(sed -nE 's/^pan:[0-9]+: assertion violated (.*) \(at depth.*/\1/p' "$2")
  if [[ -n $broken ]]; then
    grep -oE '\b(S[0-9]+|held|renewal)_[a-z_]+' <<<"$broken" | tail -n 1 || echo "$broken"
  elif grep -q 'acceptance cycle (at' "$2"; then
    echo L2_settled
  elif (($3)) || ! grep -q 'errors: 0$' "$2"; then
    echo "failed, see $2"
  elif grep -qE 'truncated|max search depth too small|not completed|out of memory|memory limit' \
      "$2"; then
    echo "incomplete, see $2"
  else
    echo ok
  fi
}

bad=0
# split LINE FIELD prints a field of a line of the tables above.
field() { cut -d'|' -f"$2" <<<"$1" | sed 's/^ *//; s/ *$//'; }

if $quick || ! $mutants; then
  configurations=("${quick_configurations[@]}")
  $quick || configurations+=("${full_configurations[@]}")
  echo "Searching ${#configurations[@]} configurations"
  table=()
  for line in "${configurations[@]}"; do
    name=$(field "$line" 1)
    echo "$name: $(field "$line" 3)"
    search "$name" "$(field "$line" 2)"
    table+=("$(printf '%-18s %12s %8s %8s  %s' "$name" "$states" "$depth" "$took" "$outcome")")
    [[ $outcome == ok ]] || bad=1
  done
  printf '\n%-18s %12s %8s %8s  %s\n' configuration states depth seconds result
  printf '%s\n' "${table[@]}"
fi

if $mutants; then
  echo "Planting ${#planted[@]} bugs"
  table=()
  for line in "${planted[@]}"; do
    name=$(field "$line" 1)
    search "mutant-$name" "-DMUTANT_$name $(field "$line" 2)"
    echo "$name: $outcome"
    wanted=$(field "$line" 3)
    if [[ $outcome == "$wanted" ]]; then
      table+=("$(printf '%-28s %-38s %8s  caught' "$name" "$outcome" "$depth")")
    else
      table+=("$(printf '%-28s %-38s %8s  NOT CAUGHT by %s' "$name" "$outcome" "$depth" "$wanted")")
      bad=1
    fi
  done
  printf '\n%-28s %-38s %8s  %s\n' bug "caught by" depth result
  printf '%s\n' "${table[@]}"
fi
exit "$bad"
