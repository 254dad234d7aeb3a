#!/bin/bash
# Measures the coordinator and prints a table of what was measured, with goals.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tests/benchmark/run.sh [--quick | --smoke] [--build_dir=DIR]

Builds the programs, starts a private PostgreSQL and Redis, the server, a bare
gRPC echo server, an HTTP service and the sidecar on loopback, measures them by
turns with pgbench, redis-benchmark and wrk, and prints a table. Writes
results.tsv (name, value, unit, goal, yes or no) and three plots into
DIR/benchmark.

Takes 20 minutes after the build, and 25 GB below /var/tmp for a table of ten
million records, which go when it ends.

  --quick          under 5 minutes; the large table has a million records
  --smoke          does everything work? The figures mean nothing
  --build_dir=DIR  default: build
TEXT
}

# Whether figures of the programs in $build mean anything.
is_optimised() {
  local cache=$build/CMakeCache.txt
  grep -Eq '^CMAKE_BUILD_TYPE:[A-Z]+=(Release|RelWithDebInfo)$' "$cache" &&
    ! grep -Eq '^IDEMPOTENCY_SANITIZE:[A-Z]+=.' "$cache"
}

plan=full
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$root/build
for argument in "$@"; do
  case $argument in
    --quick) plan=quick ;;
    --smoke) plan=smoke ;;
    --build_dir=*) build=${argument#--build_dir=} ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done

# shellcheck source=tests/support/packages.sh
source "$root/tests/support/packages.sh"
install_packages "${IDEMPOTENCY_RUN_PACKAGES[@]}" \
  "${IDEMPOTENCY_TEST_PACKAGES[@]}" "${IDEMPOTENCY_BENCHMARK_PACKAGES[@]}"

mkdir -p "$build"
build=$(cd "$build" && pwd)
if [[ ! -f $build/CMakeCache.txt ]]; then
  cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo
fi
if [[ $plan != smoke ]] && ! is_optimised; then
  echo "benchmark: $build is not an optimised build without sanitizers;" \
    "choose another with --build_dir=DIR" >&2
  exit 1
fi
cmake --build "$build" --target idempotency-server idempotency-proxy \
  load_client client_load echo_server http_service

# The distribution's interpreter: the one that its matplotlib is made for.
export PYTHONDONTWRITEBYTECODE=1
exec /usr/bin/python3 "$root/tests/benchmark/run.py" --build_dir="$build" \
  --plan="$plan"
