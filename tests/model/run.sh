#!/usr/bin/env bash
# Searches every state of the protocol in coordinator.pml, and shows that
# planted bugs are found.
set -euo pipefail

usage() {
  cat <<'END'
usage: tests/model/run.sh [--quick] [--mutants]

Installs what is missing (as root; otherwise prints the line that does) and
searches all states that the model of the protocol, tests/model/coordinator.pml,
can reach, configuration by configuration. Prints a table: how many states each
has, how deep they go, seconds, the result, and the bounds, which the head of the
model explains. Files go to build/model/. A search of all configurations appends
a row to tests/fault/ledger.tsv: the states of the largest, and how many failed.

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
build=build/model
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
  "replicas | -DCALLERS=2 -DGRANTS=3 -DLIVES=0 -DSPLIT | read, then guarded write"
  "replicas-expiry | -DCALLERS=2 -DGRANTS=2 -DLIVES=1 -DSPLIT | the same beside the reaper"
  "failover-2 | -DCALLERS=2 -DGRANTS=4 -DLIVES=0 -DFAILOVER=2 -DHOLD | two failovers"
  "settles-take-over | -DCALLERS=2 -DATTEMPTS=2 -DGRANTS=9 -DLIVES=0 -DFAULTS=3 | L2"
  "settles-hold | -DCALLERS=2 -DATTEMPTS=2 -DGRANTS=9 -DLIVES=0 -DFAULTS=3 -DHOLD | L2"
  "settles-failover | -DCALLERS=2 -DATTEMPTS=2 -DGRANTS=9 -DLIVES=0 -DFAULTS=2 -DFAILOVER=1 | L2"
)

two="-DCALLERS=2 -DGRANTS=4 -DLIVES=0"
three="-DCALLERS=3 -DGRANTS=4 -DLIVES=0"
lives="-DCALLERS=2 -DGRANTS=4 -DLIVES=1"
faults="-DCALLERS=2 -DATTEMPTS=2 -DGRANTS=9 -DLIVES=0 -DFAULTS=1"
# name of the -DMUTANT_ | options | what catches it. The last two are no bugs of
# the coordinator: they drop what is asked of a resolver, and of the network.
planted=(
  "FINALIZE_UNOWNED | $two | S7_only_the_latest_grant_finalizes"
  "FINAL_OVERWRITTEN | $two -DEXTRAS | S6_one_result"
  "RELEASE_UNOWNED | $two | S12_only_the_owner_releases"
  "RELEASE_OF_FINAL | $two -DEXTRAS | S12_final_is_final"
  "RELEASED_REVIVED | $two | S12_what_ended_stays_ended"
  "GIVEN_UP_REVIVED | $two | S12_what_ended_stays_ended"
  "FENCING_REUSED | $two | S2_fencing_grows"
  "FENCING_PER_ROW | $lives | S2_fencing_grows"
  "RETRY_GRANTED_ANEW | $two | S3_one_live_owner"
  "RETRY_FENCES_ANEW | $two | S4_same_grant_again"
  "RETRY_DRAWS_TOKEN | $two -DATTEMPTS=2 | S5_no_waiting_for_oneself"
  "OWN_RETRY_WAITS | $two | S5_no_waiting_for_oneself"
  "LEASE_OF_ONES_OWN | $two | S3_one_live_owner"
  "RENEWAL_BY_OLD_OWNER | $two -DEXTRAS | S3_one_live_owner"
  "RENEWAL_CREATES | $lives -DEXTRAS | renewal_never_acquires"
  "NO_VERSION_GUARD | $two -DSPLIT | S3_one_live_owner"
  "FINAL_CLAIMED | $two | S8_recorded_is_replayed"
  "REPLAY_AFTER_EXPIRY | $lives | S9_exact_replay"
  "MISMATCH_IGNORED | $two -DMISMATCH | S11_mismatch_is_inert"
  "TAKEOVER_UNTOLD | $two | S16_takeover_is_told"
  "DID_NOTHING_FORGETS | $two | S16_takeover_is_told"
  "TAKEOVER_FREES | $two | S16_nobody_is_forgotten"
  "DOWNSTREAM_KEY_PER_ATTEMPT | $two | S14_one_charge"
  "HELD_GIVEN_OUT | $two -DHOLD | held_needs_resolve"
  "HELD_FOR_EVER | $faults -DHOLD | L2_settled"
  "EXPIRY_KEPT | $lives -DHOLD | S8_recorded_is_replayed"
  "REAPER_WITHOUT_RECHECK | $lives -DSPLIT | S18_not_before_it_expires"
  "REAPER_DELETES_HELD | $lives -DHOLD | S18_not_before_it_expires"
  "ANSWER_BEFORE_STANDBY | $two -DFAILOVER=1 | S19_acknowledged_is_kept"
  "STANDBY_LAGS | $two | S8_recorded_is_replayed"
  "NEVER_BY_LOOK | $three -DHOLD | S14_freed_was_not_executed"
  "CLAIM_AFTER_SUPERSEDED | $three -DHOLD | S14_freed_was_not_executed"
)

# search NAME OPTIONS makes and runs one search. Sets outcome (ok, or what is
# wrong), states, depth and took.
search() {
  local folder=$build/$1 log=$build/$1/log started=$SECONDS status=0
  local flags=(-DSAFETY) how=()
  if [[ $2 == *FAULTS* ]]; then
    # Liveness, where no process is passed over for ever.
    flags=(-DNFAIR=4)
    how=(-a -f)
  fi
  rm -rf "$folder"
  mkdir -p "$folder"
  outcome="not built, see $log"
  states=- depth=- took=0
  # shellcheck disable=SC2086
  (cd "$folder" && cp "$model" . && spin $2 -a coordinator.pml &&
    gcc -w -O1 "${flags[@]}" -DCOLLAPSE -DVECTORSZ=4096 \
      -DMEMLIM="$memory_mb" -o pan pan.c) >"$log" 2>&1 || return 0
  (cd "$folder" && exec ./pan ${how[@]+"${how[@]}"} -n -w22 -m"$depth_max") >"$log" 2>&1 &
  tell_progress $! "$log"
  wait $! || status=$?
  took=$((SECONDS - started))
  states=$(sed -nE 's/^ *([0-9.e+]+) states, stored.*/\1/p' "$log")
  depth=$(sed -nE 's/.*depth reached ([0-9]+).*/\1/p' "$log")
  outcome=$(judge "$log" "$status")
  if [[ $outcome != ok ]]; then
    # shellcheck disable=SC2086
    (cd "$folder" && spin $2 -t -p coordinator.pml) >"$folder/steps" 2>&1 || true
  fi
}

# tell_progress PID LOG waits for the end of a search, and says every 10 seconds
# how far it is.
tell_progress() {
  local told=$SECONDS
  while kill -0 "$1" 2>/dev/null; do
    sleep 0.1
    if ((SECONDS - told >= 10)); then
      told=$SECONDS
      sed -nE 's/.*States= *([0-9.e+]+).*/  \1 states so far/p' "$2" | tail -n 1
    fi
  done
}

# judge LOG STATUS prints ok, the name of the broken invariant, or why
# the search says nothing.
judge() {
  local broken
  broken=$(sed -nE 's/^pan:[0-9]+: assertion violated (.*) \(at depth.*/\1/p' "$1")
  if [[ -n $broken ]]; then
    grep -oE '\b(S[0-9]+|held|renewal)_[a-z_]+' <<<"$broken" | tail -n 1 || echo "$broken"
  elif grep -q 'acceptance cycle (at' "$1"; then
    echo L2_settled
  elif (($2)) || ! grep -q 'errors: 0$' "$1"; then
    echo "failed, see $1"
  elif grep -qE 'truncated|max search depth too small|not completed|out of memory|memory limit' \
      "$1"; then
    echo "incomplete, see $1"
  else
    echo ok
  fi
}

trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
bad=0
started=$SECONDS
eval "$(python3 tests/fault/ledger.py begin)"
# field LINE NUMBER prints a field of a line of the tables above.
field() { cut -d'|' -f"$2" <<<"$1" | sed 's/^ *//; s/ *$//'; }

if $quick || ! $mutants; then
  configurations=("${quick_configurations[@]}")
  $quick || configurations+=("${full_configurations[@]}")
  echo "Searching ${#configurations[@]} configurations"
  table=()
  failed=0
  states_max=0
  for line in "${configurations[@]}"; do
    name=$(field "$line" 1)
    echo "$name: $(field "$line" 3)"
    search "$name" "$(field "$line" 2)"
    bounds=$(field "$line" 2)
    table+=("$(printf '%-18s %12s %8s %8s  %-8s %s' "$name" "$states" "$depth" \
      "$took" "$outcome" "${bounds//-D/}")")
    [[ $outcome == ok ]] || failed=$((failed + 1))
    states_max=$(awk -v a="$states_max" -v b="$states" \
      'BEGIN { printf "%.0f", (b + 0 > a + 0) ? b : a }')
  done
  printf '\n%-18s %12s %8s %8s  %-8s %s\n' configuration states depth seconds result bounds
  printf '%s\n' "${table[@]}"
  ((failed == 0)) || bad=1
  if ! $quick; then
    python3 tests/fault/ledger.py append model states="$states_max" \
      violations="$failed" minutes="$(awk -v s=$((SECONDS - started)) \
        'BEGIN { printf "%.1f", s / 60 }')"
  fi
fi

if $mutants; then
  echo "Planting ${#planted[@]} bugs"
  table=()
  for line in "${planted[@]}"; do
    name=$(field "$line" 1)
    search "mutant-$name" "-DMUTANT_$name $(field "$line" 2)"
    echo "$name: $outcome"
    wanted=$(field "$line" 3)
    result=caught
    if [[ $outcome != "$wanted" ]]; then
      result="NOT CAUGHT by $wanted"
      bad=1
    fi
    table+=("$(printf '%-28s %-38s %8s  %s' "$name" "$outcome" "$depth" "$result")")
  done
  printf '\n%-28s %-38s %8s  %s\n' bug "caught by" depth result
  printf '%s\n' "${table[@]}"
fi
exit "$bad"
