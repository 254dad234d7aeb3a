#!/usr/bin/env bash
# Installs what is missing, builds, starts the coordinator with a PostgreSQL of
# its own and plays a demo on it. Stays up until Ctrl-C; with --exit it ends
# after the demo, with status 0 only if every step was decided as it should be.
#
# Environment: IDEMPOTENCY_LISTEN (127.0.0.1:50051), IDEMPOTENCY_DATA_DIR.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build
server=$build/server/idempotency-server
demo=$build/client/idempotency-demo
listen=${IDEMPOTENCY_LISTEN:-127.0.0.1:50051}
stay=yes

# PostgreSQL does not run as root, and what it becomes instead cannot look into
# root's home.
if ((EUID == 0)); then
  data=${IDEMPOTENCY_DATA_DIR:-/var/lib/idempotency}
else
  state=${XDG_STATE_HOME:-$HOME/.local/state}
  data=${IDEMPOTENCY_DATA_DIR:-$state/idempotency}
fi

# The addresses are given by flag; the environment may hold the rest.
unset IDEMPOTENCY_LISTEN IDEMPOTENCY_DATABASE IDEMPOTENCY_ADMIN_LISTEN

# shellcheck source=../tests/support/packages.sh
source "$root/tests/support/packages.sh"

say() { printf '%s\n' "$*"; }
die() {
  printf 'quickstart: %s\n' "$*" >&2
  exit 1
}

usage() {
  say "usage: server/quickstart.sh [--exit]"
  say "  --exit   stop after the demo; status 0 only if it held"
}

for argument in "$@"; do
  case $argument in
    --exit) stay=no ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done

# ---------------------------------------------------------------- processes

work=$(mktemp -d)
declare -A pid_of=()

# Ends what this script started and nothing else: the second server first, since
# the database belongs to the first. A server has 20 seconds to drain.
stop_all() {
  local name pid
  for name in owner second first; do
    pid=${pid_of[$name]:-}
    [[ -n $pid ]] || continue
    unset "pid_of[$name]"
    kill -TERM "$pid" 2>/dev/null || continue
    for _ in {1..200}; do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.1
    done
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
}

finish() {
  local status=$?
  trap - EXIT
  trap '' INT TERM
  stop_all
  rm -rf "$work"
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# answers HOST:PORT: whether somebody listens there.
answers() {
  (exec 3<>"/dev/tcp/${1%:*}/${1##*:}") 2>/dev/null
}

# start NAME LISTEN FLAG...: a server whose log is $work/NAME.log. It is put
# into a group of its own, so that Ctrl-C reaches this script first, which then
# stops everything in order.
start() {
  local name=$1 address=$2
  shift 2
  set -m
  "$server" --listen="$address" "$@" >"$work/$name.out" 2>"$work/$name.log" &
  pid_of[$name]=$!
  set +m
  local ready
  for _ in {1..60}; do
    if ! kill -0 "${pid_of[$name]}" 2>/dev/null; then
      unset "pid_of[$name]"
      cat "$work/$name.log" >&2
      die "the server at $address ended while starting; its log is above"
    fi
    if ready=$("$demo" ready --target "$address" --patience 1s); then
      return
    fi
  done
  cat "$work/$name.log" >&2
  die "the server at $address did not answer within a minute: $ready"
}

# The database that the first server says it uses, as a libpq URI.
database_in_use() {
  sed -n 's/.*"database":"\(\([^"\\]\|\\.\)*\)".*/\1/p;T;q' \
    "$work/first.log" | sed 's/\\\(.\)/\1/g'
}

# ---------------------------------------------------------------- the demo

step_number=0
steps_failed=0

now_ms() { printf '%d' "$((${EPOCHREALTIME/./} / 1000))"; }

step() {
  step_number=$((step_number + 1))
  printf '\n%d. %s\n' "$step_number" "$*"
}

# ask ASKED ARGUMENT...: makes one call, prints what was asked, what was decided
# and how long it took, and leaves the decision in $decided.
ask() {
  local asked=$1 began took
  shift
  began=$(now_ms)
  decided=$("$demo" "$@" 2>&1) || true
  took=$(($(now_ms) - began))
  show "$asked" "$decided" "$took ms"
}

show() {
  printf '   asked    %s\n   decided  %s\n   time     %s\n' "$1" "$2" "$3"
}

# expect PATTERN: whether the decision fits the extended regular expression.
expect() {
  if [[ $decided =~ $1 ]]; then return; fi
  steps_failed=$((steps_failed + 1))
  printf '   WRONG    expected: %s\n' "$1"
}

# expect_same FILE FILE
expect_same() {
  if [[ -s $1 ]] && cmp -s "$1" "$2"; then
    printf '   checked  the same %d bytes as were finalized\n' \
      "$(stat -c %s "$2")"
    return
  fi
  steps_failed=$((steps_failed + 1))
  printf '   WRONG    not the bytes that were finalized\n'
}

# field NAME: its value in the decision.
field() { sed -n "s/.*\b$1=\([^ ]*\).*/\1/p" <<<"$decided"; }

# wait_for_line FILE SECONDS
wait_for_line() {
  for ((i = 0; i < $2 * 20; ++i)); do
    [[ ! -s $1 ]] || return 0
    sleep 0.05
  done
  return 1
}

demo_payment() {
  local key=$1
  local record=(--scope payments --key "$key")
  local claim=(claim "${record[@]}" --policy payment
    --hash_of 'POST /payments {"order":"1001","amount":200}')

  step "A client claims a payment: nobody has it, so it may charge the card."
  ask "Claim payments/$key" "${claim[@]}" --target "$listen" --owner pod-a
  expect '^Claimed attempt=1 '
  local token
  token=$(field claim_token)

  step "The app times out and retries while the first call is still running."
  ask "Claim payments/$key, the same request from another pod" \
    "${claim[@]}" --target "$listen" --owner pod-b
  expect '^InProgress retry_after=[0-9.]+m?s attempt=1 '

  step "The card was charged; the owner records the response."
  ask "Finalize payments/$key with 201" finalize "${record[@]}" \
    --target "$listen" --token "$token" --status 201 \
    --body '{"payment":"pay_1001","amount":200}' --save "$work/finalized"
  expect '^RESULT_RECORDED$'

  step "The retry comes once more and gets the recorded response."
  ask "Claim payments/$key" \
    "${claim[@]}" --target "$listen" --save "$work/replayed"
  expect '^Replay status=201 '
  expect_same "$work/finalized" "$work/replayed"

  step "A second server process on the same database replays it too."
  ask "Claim payments/$key at $second_listen" \
    "${claim[@]}" --target "$second_listen" --save "$work/replayed_too"
  expect '^Replay status=201 '
  expect_same "$work/finalized" "$work/replayed_too"
}

demo_takeover() {
  local key=$1
  local record=(--scope orders --key "$key")
  local claim=(claim "${record[@]}" --policy order
    --hash_of 'POST /orders {"sku":"A-7"}')
  local began

  step "An owner is killed (SIGKILL) in the middle of its work."
  began=$(now_ms)
  "$demo" "${claim[@]}" --target "$listen" --owner pod-c --lease 2s \
    --checkpoint 'warehouse was told' --hold 60s >"$work/owner" 2>&1 &
  pid_of[owner]=$!
  wait_for_line "$work/owner" 10 || true
  decided=$(<"$work/owner")
  show "Claim orders/$key for 2 s, then kill -9 ${pid_of[owner]}" "$decided" \
    "$(($(now_ms) - began)) ms"
  expect '^Claimed attempt=1 '
  local late_token
  late_token=$(field claim_token)
  kill -KILL "${pid_of[owner]}" 2>/dev/null || true
  wait "${pid_of[owner]}" 2>/dev/null || true
  unset 'pid_of[owner]'

  step "Its lease protects it still; then another takes over, and is told."
  ask "Claim orders/$key at once" \
    "${claim[@]}" --target "$second_listen" --owner pod-d
  expect '^InProgress '
  ask "Claim orders/$key again, as often as retry_after says" \
    "${claim[@]}" --target "$second_listen" --owner pod-d --patience 15s
  expect '^Claimed attempt=2 .*abandoned_attempt=1 '
  expect 'abandoned_reason=REASON_LEASE_LAPSED '
  expect 'abandoned_checkpoint=.warehouse was told.'
  local token
  token=$(field claim_token)

  step "A Finalize of the dead owner arrives late: refused, nothing changes."
  ask "Finalize orders/$key with the old claim token" finalize "${record[@]}" \
    --target "$listen" --token "$late_token" --status 201 --body '{"order":1}'
  expect '^FAILED_PRECONDITION CLAIM_SUPERSEDED: '
  ask "Finalize orders/$key with the new claim token" finalize "${record[@]}" \
    --target "$listen" --token "$token" --status 201 --body '{"order":2}'
  expect '^RESULT_RECORDED$'
  ask "Lookup orders/$key" lookup "${record[@]}" --target "$second_listen"
  expect '^STATE_FINALIZED attempt=2 .* conflicts=1 .*"order":2'
}

# ---------------------------------------------------------------- the way there

prepare() {
  local missing
  mapfile -t missing < <(missing_packages "${IDEMPOTENCY_RUN_PACKAGES[@]}")
  if ((${#missing[@]})); then
    say "Missing: ${#missing[@]} of ${#IDEMPOTENCY_RUN_PACKAGES[@]} Debian" \
      "packages (compiler, gRPC, PostgreSQL). With what they need they are at" \
      "most 200 MB to fetch and 800 MB on the disk: one to five minutes."
    install_packages "${IDEMPOTENCY_RUN_PACKAGES[@]}" ||
      die "stopped: nothing was built or started"
  fi

  if answers "$listen"; then
    local free=$((${listen##*:} + 10))
    die "something already listens on $listen (an earlier quickstart?). Stop" \
      "it, or take another port:" \
      "IDEMPOTENCY_LISTEN=${listen%:*}:$free server/quickstart.sh"
  fi

  say "Building the server and the demo; from nothing it takes two to five" \
    "minutes, and seconds when they are built already."
  local flags=()
  # A tree that is there keeps its generator and what else was chosen for it.
  [[ -e $build/CMakeCache.txt ]] || flags=(-G Ninja
    -DCMAKE_BUILD_TYPE=RelWithDebInfo -DIDEMPOTENCY_BUILD_TESTS=OFF)
  local log=$work/build.log
  cmake -S "$root" -B "$build" "${flags[@]}" >"$log" 2>&1 ||
    build_failed "$log"
  # Somebody who watches sees it go on.
  if [[ -t 1 ]]; then
    build_programs || die "the build failed; see above"
  else
    build_programs >"$log" 2>&1 || build_failed "$log"
  fi
}

build_programs() {
  cmake --build "$build" --parallel \
    --target idempotency-server idempotency-demo
}

build_failed() {
  tail -n 40 "$1" >&2
  die "the build failed; its last lines are above"
}

start_servers() {
  start first "$listen" --data_dir="$data"
  local database
  database=$(database_in_use)
  if [[ -z $database ]]; then
    cat "$work/first.log" >&2
    die "the server's log, above, does not name its database"
  fi

  local host=${listen%:*} port=$((${listen##*:} + 1))
  while answers "$host:$port"; do port=$((port + 1)); done
  second_listen=$host:$port
  start second "$second_listen" --database="$database"
  say "Two servers, $listen and $second_listen, on one PostgreSQL in $data."
}

say_how_to_go_on() {
  cat <<END

The demo held: $step_number steps, each decided as it should be.

The coordinator stays up at $listen and $second_listen (gRPC, without
encryption, reflection on). Its records are in $data.

  build/client/idempotency-demo claim --target $listen \\
    --scope payments --key my-key --hash_of 'my request'

  grpcurl -plaintext -d '{"scope":"payments","key":"my-key"}' \\
    $listen idempotency.v1.IdempotencyService/Lookup

  buf curl --protocol grpc --http2-prior-knowledge \\
    -d '{"scope":"payments","key":"my-key"}' \\
    http://$listen/idempotency.v1.IdempotencyService/Lookup

Ctrl-C stops the servers and the database; the records stay.
END
}

# Until Ctrl-C, or until a server ends by itself.
stay_up() {
  trap 'exit 0' INT TERM
  wait -n "${pid_of[first]}" "${pid_of[second]}" 2>/dev/null || true
  cat "$work"/{first,second}.log | tail -n 20 >&2
  die "a server ended by itself; its last log lines are above"
}

main() {
  local began run
  began=$(now_ms)
  prepare
  start_servers
  say "Ready after $((($(now_ms) - began) / 1000)) s."

  # New keys each time: the records of an earlier run are still there.
  run=$(printf '%x-%04x%04x' "$EPOCHSECONDS" "$RANDOM" "$RANDOM")
  demo_payment "pay-$run"
  demo_takeover "order-$run"

  if ((steps_failed)); then
    printf '\n'
    die "the demo did NOT hold: $steps_failed checks failed, marked WRONG above"
  fi
  if [[ $stay == no ]]; then
    printf '\nThe demo held: %d steps, each decided as it should be.\n' \
      "$step_number"
    return
  fi
  say_how_to_go_on
  stay_up
}

main
