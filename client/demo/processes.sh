# Processes that a script starts and ends. For sourcing by bash; defines
# variables and functions and does nothing else.
# shellcheck shell=bash

# What was launched and has not been stopped, by name.
declare -A pid_of=()

now_ms() { printf '%d' "$((${EPOCHREALTIME//[!0-9]/} / 1000))"; }

# launch NAME COMMAND...: runs it in the background, in a group of its own, so
# that Ctrl-C reaches the script first, which then stops everything in order.
# It is told to end when the script is gone without having done that.
launch() {
  local name=$1
  shift
  set -m
  setpriv --pdeathsig TERM "$@" &
  pid_of[$name]=$!
  set +m
}

# stop NAME...: ends those of them that were launched, one after the other. Each
# has 20 seconds to end by itself.
stop() {
  local name pid
  for name in "$@"; do
    pid=${pid_of[$name]:-}
    [[ -n $pid ]] || continue
    unset "pid_of[$name]"
    kill -TERM "$pid" 2>/dev/null || continue
    for _ in {1..1000}; do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.02
    done
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
}

# kill_at_once NAME: SIGKILL, as when a machine dies.
kill_at_once() {
  local pid=${pid_of[$1]}
  unset "pid_of[$1]"
  kill -KILL "$pid"
  wait "$pid" 2>/dev/null || true
}

# alive NAME
alive() { [[ -n ${pid_of[$1]:-} ]] && kill -0 "${pid_of[$1]}" 2>/dev/null; }
