# Builds this project's programs and starts coordinators, for scripts with which
# people try it out. For sourcing by bash, after processes.sh and packages.sh;
# defines variables and functions and does nothing else.
#
# The script sets root, the repository; build, where its programs are; work, a
# folder for logs; and die(), which ends it with a message.
# shellcheck shell=bash disable=SC2154

say() { printf '%s\n' "$*"; }

# default_data_dir: the private database's. PostgreSQL does not run as root, and
# what it becomes instead cannot look into root's home.
default_data_dir() {
  local folder=/var/lib
  ((EUID == 0)) || folder=${XDG_STATE_HOME:-$HOME/.local/state}
  printf '%s' "${IDEMPOTENCY_DATA_DIR:-$folder/idempotency}"
}

# install_or_die PACKAGE...: says what it is about to fetch.
install_or_die() {
  local missing
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]})) || return 0
  say "Missing: ${#missing[@]} of $# Debian packages (compiler, gRPC," \
    "PostgreSQL). With what they need they are at most 200 MB to fetch and" \
    "800 MB on the disk: one to five minutes."
  install_packages "$@" || die "stopped: nothing was built or started"
}

# build_or_die TARGET...
build_or_die() {
  # One build in this folder at a time.
  mkdir -p "$build"
  exec {build_lock}>"$build/.quickstart.lock"
  flock --nonblock "$build_lock" || {
    say "Another script builds in this folder; waiting for it."
    flock "$build_lock"
  }
  local flags=()
  # A tree that is there keeps its generator and what else was chosen for it.
  [[ -e $build/CMakeCache.txt ]] || flags=(-G Ninja
    -DCMAKE_BUILD_TYPE=RelWithDebInfo -DIDEMPOTENCY_BUILD_TESTS=OFF)
  local log=$work/build.log
  cmake -S "$root" -B "$build" "${flags[@]}" >"$log" 2>&1 ||
    build_failed "$log"
  # Somebody who watches sees it go on.
  if [[ -t 1 ]]; then
    cmake --build "$build" --parallel --target "$@" ||
      die "the build failed; see above"
  else
    cmake --build "$build" --parallel --target "$@" >"$log" 2>&1 ||
      build_failed "$log"
  fi
  exec {build_lock}>&-
}

build_failed() {
  tail -n 40 "$1" >&2
  die "the build failed; its last lines are above"
}

# answers HOST:PORT: whether somebody listens there.
answers() {
  (exec 3<>"/dev/tcp/${1%:*}/${1##*:}") 2>/dev/null
}

# coordinator_ready HOST:PORT PATIENCE: prints why not.
coordinator_ready() {
  "$build/client/idempotency-demo" ready --target "$1" --patience "$2"
}

# start NAME LISTEN FLAG...: a server whose log is $work/NAME.log. Fails, with
# nothing left running, if the address is in use; ends the script if anything
# else is in the way.
start() {
  local name=$1 address=$2
  shift 2
  launch "$name" "$build/server/idempotency-server" --listen="$address" "$@" \
    >"$work/$name.out" 2>"$work/$name.log"
  local ready
  for _ in {1..60}; do
    if ! alive "$name"; then
      unset "pid_of[$name]"
      grep -q 'the address is in use' "$work/$name.log" && return 1
      cat "$work/$name.log" >&2
      die "the server at $address ended while starting; its log is above"
    fi
    if ready=$(coordinator_ready "$address" 1s); then
      return
    fi
  done
  cat "$work/$name.log" >&2
  die "the server at $address did not answer within a minute: $ready"
}

# start_patiently NAME LISTEN FLAG...: the port of a connection that was closed
# stays taken for a minute, and any program's may be this one.
start_patiently() {
  local tries
  for tries in {1..14}; do
    ((tries != 2)) || say "Waiting until $2 is free, at most a minute."
    ((tries == 1)) || sleep 5
    if start "$@"; then return; fi
  done
  return 1
}
