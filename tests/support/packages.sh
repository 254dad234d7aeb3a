# The Debian packages of this project and how to get them. For sourcing by
# bash; defines variables and functions and does nothing else.
# shellcheck shell=bash disable=SC2034

# Enough to build and run the server, its client and the demo.
IDEMPOTENCY_RUN_PACKAGES=(
  g++ cmake ninja-build ccache pkg-config
  libgrpc-dev libgrpc++-dev protobuf-compiler protobuf-compiler-grpc
  libprotobuf-dev libabsl-dev libpqxx-dev libpq-dev libssl-dev
  libspdlog-dev nlohmann-json3-dev libjemalloc-dev prometheus-cpp-dev
  libboost-dev
  postgresql util-linux
)

# What the tests need besides.
IDEMPOTENCY_TEST_PACKAGES=(
  libgtest-dev libgmock-dev libnghttp2-dev libcpp-httplib-dev python3 git procps patch
  libboost-context-dev
  libevent-dev # what the unpacked PgBouncer is linked with
)

# What client/examples/ need besides.
IDEMPOTENCY_EXAMPLE_PACKAGES=(libcpp-httplib-dev curl)

# What the tests in tests/browser need besides.
IDEMPOTENCY_BROWSER_PACKAGES=(chromium chromium-driver python3-selenium)

# What tests/debian13.sh needs on the machine it runs on.
IDEMPOTENCY_DEBIAN13_PACKAGES=(
  debootstrap debian-archive-keyring util-linux git
)

# What the benchmark needs besides: a yardstick, plots, load over HTTP. Not
# redis-server, which runs a Redis on the machine; its program is in the tools.
IDEMPOTENCY_BENCHMARK_PACKAGES=(redis-tools python3-matplotlib wrk)

# What tests/fuzz/run.sh needs besides: libFuzzer and the sanitizers are in
# libclang-rt, and llvm's symbolizer names the lines in a report.
IDEMPOTENCY_FUZZ_PACKAGES=(clang-14 libclang-rt-14-dev llvm-14)

# What tests/model/run.sh needs: a model checker, and the compiler of what it
# writes.
IDEMPOTENCY_MODEL_PACKAGES=(spin gcc libc6-dev python3)

# What CI needs besides, without npm (see ensure_npm).
IDEMPOTENCY_CI_PACKAGES=(clang-14 clang-format-14 python3-venv)

# The version of buf, from the npm registry, that CI uses.
IDEMPOTENCY_BUF_VERSION=1.75.0

# missing_packages PACKAGE... prints those that are not installed.
missing_packages() {
  local package
  for package in "$@"; do
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) \
      == installed ]] || printf '%s\n' "$package"
  done
}

# install_packages PACKAGE... installs what is missing; as anybody but root, it
# prints the one line that does and fails.
install_packages() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "This is not a Debian system; install the counterparts of: $*" >&2
    return 1
  fi
  local missing
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]})) || return 0
  if ((EUID != 0)); then
    echo "Some packages are missing. Install them as root, then run this" \
         "again:" >&2
    echo "  apt-get update && apt-get install -y --no-install-recommends" \
         "${missing[*]}" >&2
    return 1
  fi
  echo "Installing ${#missing[@]} packages: ${missing[*]}"
  # A cluster of the system's own, running on the usual port, is not wanted by
  # somebody who only tries this out.
  local common=/etc/postgresql-common/createcluster.d conf=
  if [[ " ${missing[*]} " == *" postgresql "* && ! -e /etc/postgresql ]]; then
    conf=$common/no-main-cluster.conf
    mkdir -p "$common"
    echo "create_main_cluster = false" >"$conf"
  fi
  local status=0
  apt_get update -qq && apt_get install -y -qq --no-install-recommends \
    "${missing[@]}" || status=$?
  if [[ -n $conf ]]; then
    rm -f "$conf"
  fi
  return "$status"
}

# apt-get without questions; its lines show only when it fails.
apt_get() {
  local log
  log=$(mktemp)
  if ! DEBIAN_FRONTEND=noninteractive apt-get -o Dpkg::Use-Pty=0 "$@" \
    >"$log" 2>&1 </dev/null; then
    cat "$log" >&2
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
}

# ensure_unpacked FOLDER PACKAGE PROGRAM unpacks the program, a path such as
# usr/bin/promtool, of a package below FOLDER unless it is there. The package
# itself is not installed: it would run a service on the developer's machine.
ensure_unpacked() {
  local folder=$1 package=$2 program=$3
  [[ -x $folder/$program ]] && return
  mkdir -p "$folder"
  if ! download_package "$folder" "$package" 2>/dev/null; then
    ((EUID != 0)) || apt_get update -qq
    download_package "$folder" "$package"
  fi
  # Renamed when it is whole: an interrupted one would pass for it for ever.
  dpkg-deb --fsys-tarfile "$folder"/*.deb |
    tar -x -O "./$program" >"$folder/program.part"
  mkdir -p "$folder/${program%/*}"
  chmod +x "$folder/program.part"
  mv "$folder/program.part" "$folder/$program"
  rm -f "$folder"/*.deb
}

download_package() {
  rm -f "$1"/*.deb
  (cd "$1" && apt_get download "$2")
}

# ensure_promtool FOLDER unpacks Prometheus's promtool below FOLDER unless it is
# there or installed. It has been a package of its own since Debian 13.
ensure_promtool() {
  command -v promtool >/dev/null && return
  local package=promtool
  apt-cache show promtool >/dev/null 2>&1 || package=prometheus
  ensure_unpacked "$1" "$package" usr/bin/promtool
}

# ensure_npm leaves an npm that is there alone, wherever it came from.
ensure_npm() {
  command -v npm >/dev/null || install_packages npm
}

# ensure_buf FOLDER installs buf below FOLDER unless it is there, and sets
# IDEMPOTENCY_BUF to the program.
ensure_buf() {
  local folder=$1
  IDEMPOTENCY_BUF=$folder/node_modules/.bin/buf
  export IDEMPOTENCY_BUF
  if [[ $("$IDEMPOTENCY_BUF" --version 2>/dev/null) \
    != "$IDEMPOTENCY_BUF_VERSION" ]]; then
    ensure_npm
    mkdir -p "$folder"
    npm install --prefix "$folder" --no-save --no-audit --no-fund \
      --loglevel=error "@bufbuild/buf@$IDEMPOTENCY_BUF_VERSION"
  fi
  "$IDEMPOTENCY_BUF" --version >/dev/null
}
