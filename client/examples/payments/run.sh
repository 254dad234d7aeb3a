#!/usr/bin/env bash
# Starts the payments example and stays up until Ctrl-C. See usage().
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
build=$root/build
listen=${IDEMPOTENCY_LISTEN:-127.0.0.1:50051}
coordinator=
port=
to_build=yes
stay=yes

# The addresses are given by flag; the environment may hold the rest.
unset IDEMPOTENCY_LISTEN IDEMPOTENCY_DATABASE IDEMPOTENCY_ADMIN_LISTEN \
  IDEMPOTENCY_TLS_CERTIFICATE IDEMPOTENCY_TLS_KEY IDEMPOTENCY_TLS_CLIENT_CA

# shellcheck source=../../../tests/support/packages.sh
source "$root/tests/support/packages.sh"
# shellcheck source=../../demo/processes.sh
source "$root/client/demo/processes.sh"
# shellcheck source=../../demo/coordinator.sh
source "$root/client/demo/coordinator.sh"

die() {
  printf 'payments: %s\n' "$*" >&2
  exit 1
}

usage() {
  cat <<'END_OF_USAGE'
usage: client/examples/payments/run.sh [--exit] [flag]...

Installs what is missing, builds, and starts: the coordinator with a PostgreSQL
of its own, a wallet with a ledger, two pods of a payment service, and a page to
try them with in a browser. Stays up until Ctrl-C.

  --exit                   pay with curl, check what was answered and charged,
                           stop; status 0 only if it was right
  --port=N                 port of the page (8080, or the next that is free)
  --coordinator=HOST:PORT  one that runs already
  --build=FOLDER           programs that are built already; nothing is installed

Environment: IDEMPOTENCY_LISTEN (127.0.0.1:50051), IDEMPOTENCY_DATA_DIR.
END_OF_USAGE
}

for argument in "$@"; do
  case $argument in
    --exit) stay=no ;;
    --port=*) port=${argument#*=} ;;
    --coordinator=*) coordinator=${argument#*=} ;;
    --build=*) build=${argument#*=} to_build=no ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done

work=$(mktemp -d)

# The front ends its pods, and they what they have begun: the wallet and the
# coordinator are needed until then.
finish() {
  local status=$?
  trap - EXIT
  trap '' INT TERM
  stop front wallet coordinator
  rm -rf "$work"
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# ---------------------------------------------------------------- the processes

prepare() {
  [[ $to_build == yes ]] || return 0
  install_or_die "${IDEMPOTENCY_RUN_PACKAGES[@]}" \
    "${IDEMPOTENCY_EXAMPLE_PACKAGES[@]}"
  say "Building the server and the example; from nothing it takes two to five" \
    "minutes, and seconds when they are built already."
  build_or_die idempotency-server idempotency-demo idempotency-night \
    idempotency-payments idempotency-payments-front
}

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

# free_port FROM: the first from there on at which nobody listens.
free_port() {
  local candidate
  for ((candidate = $1; candidate < $1 + 100; ++candidate)); do
    answers "127.0.0.1:$candidate" || { printf '%d' "$candidate"; return; }
  done
  die "no free port from $1 on"
}

start_coordinator() {
  local data why
  if [[ -z $coordinator ]] && answers "$listen"; then
    coordinator=$listen
  fi
  if [[ -n $coordinator ]]; then
    why=$(coordinator_ready "$coordinator" 5s) ||
      die "what runs at $coordinator is no coordinator that serves: $why"
    say "The coordinator that runs at $coordinator is used."
    return
  fi
  data=$(default_data_dir)
  start_patiently coordinator "$listen" --data_dir="$data" ||
    die "$listen is in use or not this machine's; take another:" \
      "IDEMPOTENCY_LISTEN=HOST:PORT client/examples/payments/run.sh"
  coordinator=$listen
  say "The coordinator is up at $coordinator; its records are in $data."
}

# Its ledger ends with this script. It takes a moment for each charge, as
# wallets do.
start_wallet() {
  launch wallet "$build/client/idempotency-night" wallet \
    --ledger="$work/ledger" --address_file="$work/wallet.address" \
    --answer_after_ms=300
  wait_until "the wallet is up" wallet_up_or_ended
  alive wallet || die "the wallet ended while starting"
}
wallet_up_or_ended() { [[ -s $work/wallet.address ]] || ! alive wallet; }

# With both pods.
start_front() {
  if [[ -n $port ]] && answers "127.0.0.1:$port"; then
    die "something already listens on port $port; take another --port"
  fi
  port=${port:-$(free_port 8080)}
  local first second
  first=$(free_port $((port + 1)))
  second=$(free_port $((first + 1)))
  url=http://127.0.0.1:$port
  launch front "$build/client/idempotency-payments-front" --port="$port" \
    --pod_ports="$first,$second" --coordinator="$coordinator" \
    --channel="$(<"$work/wallet.address")" \
    --program="$build/client/idempotency-payments" \
    --page="$root/client/examples/payments/page"
  wait_until "the pods are up" all_up_or_ended "$port" "$first" "$second"
  alive front || die "the front door ended while starting"
}
all_up_or_ended() {
  local each
  alive front || return 0
  for each in "$@"; do
    answers "127.0.0.1:$each" || return 1
  done
}

# ---------------------------------------------------------------- the check

wrong=()

# expect WHAT IS SHOULD_BE
expect() { [[ $2 == "$3" ]] || wrong+=("$1: '$2' instead of '$3'"); }

# new_key: the coordinator remembers those of before.
new_key() { printf 'pay-%x-%04x%04x' "$EPOCHSECONDS" "$RANDOM" "$RANDOM"; }

# pay NAME KEY AMOUNT: answers go into files $work/NAME.*
pay() {
  curl -sS --noproxy '*' --max-time 30 -H "Idempotency-Key: $2" \
    --json "{\"account\":\"alice\",\"amount_cents\":$3}" \
    -o "$work/$1.body" -D "$work/$1.headers" -w '%{http_code}' \
    "$url/payments" >"$work/$1.status" || true
}
status_of() { cat "$work/$1.status"; }
body_of() { cat "$work/$1.body"; }
replayed() {
  sed -n 's/^idempotent-replayed: *\([a-z]*\).*/\1/Ip' "$work/$1.headers"
}

# charges KEY: how often the wallet took money for it.
charges() {
  local downstream_key
  downstream_key=$(curl -sS --noproxy '*' "$url/record?key=$1" |
    sed -n 's/.*"downstream_key":"\([^"]*\)".*/\1/p')
  grep -c "	${downstream_key:-none}	" "$work/ledger" || true
}

# show NAME TITLE
show() {
  local mark
  mark=$(replayed "$1")
  printf '   %-28s %s  %s%s\n' "$2" "$(status_of "$1")" "$(body_of "$1")" \
    "${mark:+  Idempotent-Replayed: $mark}"
}

check_one_after_the_other() {
  local key
  key=$(new_key)
  pay first "$key" 1999
  pay again "$key" 1999
  pay other "$key" 2999
  show first "a payment"
  show again "the same again"
  show other "its key, another amount"
  expect "first, status" "$(status_of first)" 201
  expect "first, replayed" "$(replayed first)" ""
  expect "again, status" "$(status_of again)" 201
  expect "again, replayed" "$(replayed again)" true
  expect "again, body" "$(body_of again)" "$(body_of first)"
  expect "other amount, status" "$(status_of other)" 422
  expect "charges" "$(charges "$key")" 1
}

check_two_at_once() {
  local key pid statuses
  key=$(new_key)
  pay left "$key" 500 &
  pid=$!
  pay right "$key" 500
  wait "$pid"
  show left "two at once: one"
  show right "two at once: the other"
  statuses=$(printf '%s\n' "$(status_of left)" "$(status_of right)" | sort |
    paste -s -d ' ')
  if [[ $statuses == "201 201" ]]; then
    expect "two at once, body" "$(body_of left)" "$(body_of right)"
  else
    expect "two at once, status" "$statuses" "201 409"
  fi
  pay later "$key" 500
  show later "the same later"
  expect "later, status" "$(status_of later)" 201
  expect "later, replayed" "$(replayed later)" true
  expect "two at once, charges" "$(charges "$key")" 1
}

check() {
  say ""
  check_one_after_the_other
  check_two_at_once
  if ((${#wrong[@]})); then
    printf 'WRONG  %s\n' "${wrong[@]}"
    die "the example did NOT hold: ${#wrong[@]} figures are wrong"
  fi
  say ""
  say "The example held: one charge for each key, however often it came."
}

# ---------------------------------------------------------------- main

say_how_to_go_on() {
  local key
  key=$(new_key)
  cat <<END

Try it in a browser:  $url/

Or pay with curl, and send the same again:

  curl -i $url/payments -H 'Idempotency-Key: $key' \\
    --json '{"account": "alice", "amount_cents": 1999}'
  curl -i $url/payments -H 'Idempotency-Key: $key' \\
    --json '{"account": "alice", "amount_cents": 1999}'

The second answer says Idempotent-Replayed: true, and $url/ledger
shows one charge. Ctrl-C stops everything; below is what happens.

END
}

# Until Ctrl-C, or until a process ends by itself.
stay_up() {
  wait -n "${pid_of[@]}" 2>/dev/null || true
  tail -n 20 "$work"/*.log >&2 || true
  die "a process ended by itself"
}

main() {
  prepare
  start_coordinator
  start_wallet
  start_front
  if [[ $stay == no ]]; then
    check
    return
  fi
  trap 'exit 0' INT TERM
  say_how_to_go_on
  stay_up
}

# On one line: the script may be edited while it runs.
main; exit
