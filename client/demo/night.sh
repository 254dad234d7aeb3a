#!/usr/bin/env bash
# Plays the night on which one payment is charged three times, and plays it
# again with the coordinator. See usage().
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
program=$root/build/client/idempotency-night
coordinators=()
wallet_flags=()

# shellcheck source=processes.sh
source "$root/client/demo/processes.sh"

say() { printf '%s\n' "$*"; }
die() {
  printf 'night: %s\n' "$*" >&2
  exit 1
}

usage() {
  cat <<'END_OF_USAGE'
usage: client/demo/night.sh --coordinator=HOST:PORT[,HOST:PORT]

An app pays for one order through a payment service that runs in two pods. The
wallet charges, but its answer gets lost; the app times out and tries again; a
pod is killed in the middle. Played twice, with the same processes and the same
faults: without a coordinator, then with it. Status 0 only if the customer was
charged three times and once.

  --coordinator=...    a running coordinator; of two, each pod asks its own
  --program=FILE       the processes (build/client/idempotency-night)
  --forgetful_wallet   the wallet takes no notice of idempotency keys: then the
                       night cannot end well, and this must say so
END_OF_USAGE
}

for argument in "$@"; do
  case $argument in
    --coordinator=*) IFS=, read -r -a coordinators <<<"${argument#*=}" ;;
    --program=*) program=${argument#*=} ;;
    --forgetful_wallet) wallet_flags=(--forgetful) ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done
((${#coordinators[@]})) || { usage >&2; exit 2; }
[[ -x $program ]] || die "$program is missing; server/quickstart.sh builds it"

work=$(mktemp -d)

finish() {
  local status=$?
  trap - EXIT
  trap '' INT TERM
  # Without the wallet no pod waits for it.
  stop app wallet pod-a pod-b
  rm -rf "$work"
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# ---------------------------------------------------------------- one run

# The same in both runs; new each night, since the coordinator remembers.
key=$(printf 'pay-%x-%04x%04x' "$EPOCHSECONDS" "$RANDOM" "$RANDOM")

# wait_until WHAT COMMAND...
wait_until() {
  local what=$1
  shift
  for _ in {1..1500}; do
    if "$@"; then return; fi
    sleep 0.02
  done
  die "waited for 30 s in vain: $what"
}

lines() { if [[ -e $1 ]]; then wc -l <"$1"; else echo 0; fi; }
has_lines() { (($(lines "$1") >= $2)); }

# serve NAME ROLE FLAG...: a process of the night, until it serves.
serve() {
  local name=$1
  shift
  rm -f "$run/$name.address"
  launch "$name" "$program" "$@" --began_ms="$began" \
    --address_file="$run/$name.address"
  wait_until "$name serves" serves_or_ended "$name"
  alive "$name" || die "$name ended while starting"
}
serves_or_ended() { [[ -s $run/$1.address ]] || ! alive "$1"; }

# serve_pod NAME COORDINATOR
serve_pod() {
  serve "$1" pod --name="$1" --coordinator="$2" \
    --wallet="$(<"$run/wallet.address")"
}

# launch_app FILE POD FLAG...: the app, whose answers go to FILE.
launch_app() {
  local answers=$1 pods=$2
  shift 2
  launch app "$program" app --began_ms="$began" --key="$key" \
    --pods="$pods" --answers="$answers" "$@"
}

wait_for_app() {
  wait "${pid_of[app]}" || true
  unset 'pid_of[app]'
}

# at NAME: as the app is told where a pod is.
at() { printf '%s=%s' "$1" "$(<"$run/$1.address")"; }

charged_or_over() { has_lines "$run/ledger" 1 || ! alive app; }

# play NAME COORDINATOR COORDINATOR: the night, into the folder $work/NAME.
play() {
  run=$work/$1
  mkdir "$run"
  began=$(now_ms)
  serve wallet wallet --ledger="$run/ledger" --unanswered=2 \
    ${wallet_flags[@]+"${wallet_flags[@]}"}
  serve_pod pod-a "$2"
  serve_pod pod-b "$3"

  launch_app "$run/answers" "$(at pod-a),$(at pod-b)"
  wait_until "the wallet has charged" charged_or_over
  has_lines "$run/ledger" 1 ||
    die "no pod asked the wallet; do the coordinators answer? $2 $3"
  wait_until "the first try is over" has_lines "$run/answers" 1
  tell "kill -9 ${pid_of[pod-a]}: pod-a dies while it waits for the wallet"
  kill_at_once pod-a
  wait_for_app
}

# play_later COORDINATOR: the same payment comes again, at each pod.
play_later() {
  tell "pod-a is started again; then the same payment comes twice more"
  serve_pod pod-a "$1"
  local pod
  for pod in pod-a pod-b; do
    launch_app "$run/later" "$(at "$pod")" --tries=1
    wait_for_app
  done
}

# tell TEXT: a line among those that the processes print.
tell() { printf '%6d ms  %-7s %s\n' "$(($(now_ms) - began))" night "$*"; }

show_ledger() {
  local form='   %-10s %-38s %6s\n' id used_key amount sum=0
  printf '\n   The wallet'\''s ledger\n'
  # shellcheck disable=SC2059
  {
    printf "$form" charge 'idempotency key' amount
    while IFS=$'\t' read -r id used_key amount; do
      printf "$form" "$id" "$used_key" "$amount"
      sum=$((sum + amount))
    done <"$run/ledger"
    printf "$form" paid '' "$sum"
  }
}

# ---------------------------------------------------------------- the figures

wrong=()

# expect WHAT IS SHOULD_BE
expect() { [[ $2 == "$3" ]] || wrong+=("$1: $2 instead of $3"); }

# told NAME: what the app was told, try by try: `none`, a status code, or 201
# and the charge.
told() {
  local number pod status body words=()
  while IFS=$'\t' read -r number pod status body; do
    [[ $status == 201 ]] && status="201 $(charge_in "$body")"
    words+=("$status")
  done < <(cat "$work/$1/answers" "$work/$1/later" 2>/dev/null)
  local IFS=,
  printf '%s' "${words[*]}"
}
charge_in() { sed -n 's/.*"payment":"\([^"]*\)".*/\1/p' <<<"$1"; }

# different NAME: how many different bodies came with a 201.
different() {
  cut -f 3- "$work/$1/answers" "$work/$1/later" | grep '^201' | sort -u | wc -l
}

# row TITLE NAME LATER
row() {
  printf '   %-22s %-11s %7d  %s\n' "$1" "$(lines "$work/$2/answers")$3" \
    "$(lines "$work/$2/ledger")" "$(told "$2" | counted)"
}

# counted: `a,b,b` as `a, 2 x b`.
counted() {
  tr ',' '\n' | uniq -c | sed 's/^ *1 //; t; s/^ *\([0-9]*\) /\1 x /' |
    paste -s -d, | sed 's/,/, /g'
}

show_table() {
  printf '\n   %-22s %-11s %7s  %s\n' '' tries charges answers
  row 'without coordinator' without ''
  row 'with coordinator' with " + $(lines "$work/with/later") later"
}

check_figures() {
  local without="without coordinator" with="with coordinator"
  expect "$without, tries" "$(lines "$work/without/answers")" 3
  expect "$without, charges" "$(lines "$work/without/ledger")" 3
  expect "$without, answers" "$(told without)" "none,none,201 charge-3"
  expect "$with, tries" "$(lines "$work/with/answers")" 3
  expect "$with, charges" "$(lines "$work/with/ledger")" 1
  expect "$with, answers" "$(told with)" \
    "none,409,201 charge-1,201 charge-1,201 charge-1"
  expect "$with, different answers" "$(different with)" 1
}

main() {
  say "One payment of 200. The wallet charges, and its first two answers get"
  say "lost. The app tries three times; pod-a is killed in the middle."

  printf '\n1. Without the coordinator: a pod charges when it is asked to\n\n'
  play without none none
  show_ledger
  stop wallet pod-b

  printf '\n2. The same night with the coordinator: a pod claims the payment first\n\n'
  play with "${coordinators[0]}" "${coordinators[-1]}"
  play_later "${coordinators[0]}"
  show_ledger
  stop wallet pod-a pod-b

  show_table
  check_figures
  if ((${#wrong[@]})); then
    printf '\n'
    printf 'WRONG  %s\n' "${wrong[@]}"
    die "the night did NOT hold: ${#wrong[@]} figures are wrong"
  fi
}

main
