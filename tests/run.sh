#!/usr/bin/env bash
# Installs what is missing (as root), builds everything in build/ and runs the
# tests: all of them, or those with one of the given labels.
set -euo pipefail

usage() {
  cat <<'END'
usage: tests/run.sh [-L label]...

Installs the packages that are missing (as root; otherwise prints the line that
does), builds everything in build/ and runs the tests. With -L, only tests with
one of these labels: unit, contract, integration, browser and so on, by the
names of the folders below tests/.
END
}

labels=()
while (($#)); do
  case $1 in
    -L)
      if (($# < 2)); then
        usage >&2
        exit 2
      fi
      labels+=("$2")
      shift 2
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

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
source tests/support/packages.sh
packages=("${IDEMPOTENCY_RUN_PACKAGES[@]}" "${IDEMPOTENCY_TEST_PACKAGES[@]}"
  "${IDEMPOTENCY_EXAMPLE_PACKAGES[@]}")
# A browser is large: only for who runs its tests.
if ((${#labels[@]} == 0)) || [[ " ${labels[*]} " == *" browser "* ]]; then
  packages+=("${IDEMPOTENCY_BROWSER_PACKAGES[@]}")
fi
install_packages "${packages[@]}"
ensure_promtool "$root/build/promtool"
ensure_unpacked "$root/build/pgbouncer" pgbouncer usr/sbin/pgbouncer

cmake -S . -B build -G Ninja -DIDEMPOTENCY_BUILD_TESTS=ON
ninja -C build

selection=()
if ((${#labels[@]})); then
  selection=(-L "^($(IFS='|'; echo "${labels[*]}"))\$")
fi
# Tests wait more than they compute.
ctest --test-dir build --parallel $(($(nproc) + 1)) --output-on-failure \
  --no-tests=error \
  ${selection[@]+"${selection[@]}"}
