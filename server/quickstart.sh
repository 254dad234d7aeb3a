#!/usr/bin/env bash
# Installs what is missing, builds, starts the coordinator with a PostgreSQL of
# its own and plays a demo on it: the night on which one payment is charged
# three times (client/demo/night.sh). Stays up until Ctrl-C; with --exit it ends
# after the demo, with status 0 only if the demo held.
#
# Environment: IDEMPOTENCY_LISTEN (127.0.0.1:50051), IDEMPOTENCY_DATA_DIR.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build
listen=${IDEMPOTENCY_LISTEN:-127.0.0.1:50051}
stay=yes

# The addresses are given by flag; the environment may hold the rest.
unset IDEMPOTENCY_LISTEN IDEMPOTENCY_DATABASE IDEMPOTENCY_ADMIN_LISTEN \
  IDEMPOTENCY_TLS_CERTIFICATE IDEMPOTENCY_TLS_KEY IDEMPOTENCY_TLS_CLIENT_CA

# shellcheck source=../tests/support/packages.sh
source "$root/tests/support/packages.sh"
# shellcheck source=../client/demo/processes.sh
source "$root/client/demo/processes.sh"
# shellcheck source=../client/demo/coordinator.sh
source "$root/client/demo/coordinator.sh"

data=$(default_data_dir)
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

# The second server before the first, to whom the database belongs.
finish() {
  local status=$?
  trap - EXIT
  trap '' INT TERM
  stop night second first
  rm -rf "$work"
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# The database that the first server says it uses, as a libpq URI.
database_in_use() {
  sed -n 's/.*"database":"\(\([^"\\]\|\\.\)*\)".*/\1/p;T;q' \
    "$work/first.log" | sed 's/\\\(.\)/\1/g'
}

# ---------------------------------------------------------------- the way there

prepare() {
  install_or_die "${IDEMPOTENCY_RUN_PACKAGES[@]}"

  if answers "$listen"; then
    local free=$((${listen##*:} + 10))
    die "something already listens on $listen (an earlier quickstart?). Stop" \
      "it, or take another port:" \
      "IDEMPOTENCY_LISTEN=${listen%:*}:$free server/quickstart.sh"
  fi

  say "Building the server and the demo; from nothing it takes two to five" \
    "minutes, and seconds when they are built already."
  build_or_die idempotency-server idempotency-demo idempotency-night
}

# On the first free port after that of the first server.
start_second() {
  local host=${listen%:*} port=$((${listen##*:})) tries
  for tries in {1..100}; do
    second_listen=$host:$((port + tries))
    ! answers "$second_listen" || continue
    if start second "$second_listen" --database="$1"; then return; fi
  done
  die "no free port after $listen for the second server"
}

start_servers() {
  start_patiently first "$listen" --data_dir="$data" ||
    die "$listen is in use or not this machine's; take another:" \
      "IDEMPOTENCY_LISTEN=HOST:PORT server/quickstart.sh"
  local database
  database=$(database_in_use)
  if [[ -z $database ]]; then
    cat "$work/first.log" >&2
    die "the server's log, above, does not name its database"
  fi
  start_second "$database"
  say "Two servers, $listen and $second_listen, on one PostgreSQL in $data."
}

play_night() {
  printf '\n'
  launch night "$root/client/demo/night.sh" \
    --coordinator="$listen,$second_listen"
  local status=0
  wait "${pid_of[night]}" || status=$?
  unset 'pid_of[night]'
  ((status == 0)) || die "the demo did NOT hold; see above"
}

say_how_to_go_on() {
  cat <<END

The coordinator stays up at $listen and $second_listen (gRPC, without
encryption, reflection on). Its records are in $data.

The night once more, and calls by hand:

  client/demo/night.sh --coordinator=$listen,$second_listen

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
  local began
  began=$(now_ms)
  prepare
  start_servers
  say "Ready after $((($(now_ms) - began) / 1000)) s."
  play_night
  printf '\nThe demo held: three charges without the coordinator, one with it.\n'
  [[ $stay == yes ]] || return 0
  say_how_to_go_on
  stay_up
}

main
