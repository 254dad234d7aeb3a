#!/usr/bin/env bash
# Builds the example services of every language and plays one set of scenarios
# through all of them.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tests/interop/run.sh [--leave_out=LANGUAGE,...] [--only=TEXT]
                            [--build_dir=DIR]

Builds client/examples/{go,python,node,java,rust} and tests/interop/cpp below
DIR, starts one coordinator with its embedded database and these services, plays
tests/interop/scenarios.json through all of them side by side, and what
tests/interop/sidecar.py says through the sidecar before a service in Go, prints
a table and ends with an error if anything missed. A toolchain that is missing is an
error too.

  --leave_out=java,rust   without these languages
  --only=TEXT             only scenarios whose name holds TEXT
  --build_dir=DIR         default: build
TEXT
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$root/build
left_out=
run_flags=()
for argument in "$@"; do
  case $argument in
    --leave_out=*) left_out=${argument#*=} ;;
    --only=*) run_flags+=("$argument") ;;
    --build_dir=*) build=${argument#*=} ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done
languages=(cpp go python node java rust)
for name in ${left_out//,/ }; do
  if [[ " ${languages[*]} " != *" $name "* ]]; then
    echo "interop: there is no language $name" >&2
    exit 2
  fi
done

# shellcheck source=tests/support/packages.sh
source "$root/tests/support/packages.sh"
install_packages "${IDEMPOTENCY_RUN_PACKAGES[@]}" \
  "${IDEMPOTENCY_TEST_PACKAGES[@]}"
mkdir -p "$build/interop"
build=$(cd "$build" && pwd)
out=$build/interop
proto=$root/proto/idempotency/v1/idempotency.proto

wanted() { [[ ,$left_out, != *",$1,"* ]]; }

# need PROGRAM...: fails where a toolchain is missing.
need() {
  local program
  for program in "$@"; do
    command -v "$program" >/dev/null || {
      echo "$program is missing; install it, or name the language in" \
        "--leave_out" >&2
      return 1
    }
  done
}

# sources LANGUAGE: copies them to where stubs are generated beside them.
sources() {
  mkdir -p "$out/$1"
  cp -R "$root/client/examples/$1/." "$out/$1/"
}

build_cpp() {
  [[ -f $build/CMakeCache.txt ]] || cmake -S "$root" -B "$build" -G Ninja \
    -DCMAKE_BUILD_TYPE=RelWithDebInfo
  local targets=(idempotency-server idempotency-proxy)
  ! wanted cpp || targets+=(interop_payments)
  cmake --build "$build" --target "${targets[@]}"
}

build_go() {
  need go protoc
  sources go
  cd "$out/go"
  IDEMPOTENCY_PROTO=$root/proto go generate
  go build -o payments .
  mkdir -p shop
  cp "$root"/tests/interop/shop/*.go shop/
  go build -o shop-service ./shop
}

build_python() {
  need python3
  sources python
  cd "$out/python"
  [[ -x venv/bin/python ]] || python3 -m venv venv
  venv/bin/python -m pip install --quiet --disable-pip-version-check \
    -r requirements.txt
  venv/bin/python -m grpc_tools.protoc -I "$root/proto" --python_out=. \
    --grpc_python_out=. "$proto"
}

build_node() {
  need node npm
  sources node
  cd "$out/node"
  npm install --no-package-lock --no-audit --no-fund --ignore-scripts \
    --loglevel=error
  mkdir -p proto/idempotency/v1 proto/google/rpc
  cp "$proto" proto/idempotency/v1/
  cp "$root"/proto/google/rpc/*.proto proto/google/rpc/
}

build_java() {
  need java javac mvn
  sources java
  cd "$out/java"
  mvn --batch-mode --quiet -Dproto="$root/proto" package
}

build_rust() {
  need cargo protoc
  sources rust
  cd "$out/rust"
  IDEMPOTENCY_PROTO=$root/proto cargo build --quiet
}

# All at once, with a line for each that ends. The server is a target of C++'s
# build, and Python has what plays the scenarios.
declare -A building=()
for name in "${languages[@]}"; do
  if wanted "$name" || [[ $name == cpp || $name == python ]]; then
    "build_$name" >"$out/$name-build.log" 2>&1 &
    building[$!]=$name
  fi
done
failed=()
while ((${#building[@]})); do
  status=0
  wait -n -p pid "${!building[@]}" || status=$?
  name=${building[$pid]}
  unset "building[$pid]"
  if ((status == 0)); then
    echo "built $name, $SECONDS s"
  else
    echo "building $name failed:"
    tail -n 30 "$out/$name-build.log"
    failed+=("$name")
  fi
done
if ((${#failed[@]})); then
  echo "interop: could not build ${failed[*]}" >&2
  exit 1
fi

export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$out/python
exec "$out/python/venv/bin/python" "$root/tests/interop/run.py" \
  --build_dir="$build" --leave_out="$left_out" ${run_flags[@]+"${run_flags[@]}"}
