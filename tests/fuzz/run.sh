#!/usr/bin/env bash
# Builds the fuzz targets with AddressSanitizer and UndefinedBehaviorSanitizer,
# and runs them.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
build=build-fuzz
targets=()
for source in tests/fuzz/*.cc; do
  targets+=("$(basename "$source" .cc)")
done

usage() {
  cat <<END
usage: tests/fuzz/run.sh [--seconds N] [--jobs N] [target...]
       tests/fuzz/run.sh --input FILE target

Installs what is missing (as root; otherwise prints the line that does), builds
the fuzz targets in $build/, and runs each for N seconds: libFuzzer makes up
inputs, and a target checks what the code says about them.

  --seconds N   for each target; default 60
  --jobs N      as many targets at a time; default: one for each processor
  --input FILE  runs the target once, on that input: a finding, before and
                after it is mended

targets (all, unless some are named; the head of tests/fuzz/TARGET.cc says what
an input is):
$(printf '  %s\n' "${targets[@]}")

At the end comes a table: how many inputs each target ran, how many edges of the
code they reached (coverage), seconds, and what was found. With a finding the
status is 1: the input is kept in $build/findings/ and is tried again by
later runs; the report (which claim does not hold, or what a sanitizer saw, and
where) is in $build/logs/.

Inputs that reached something new are kept in $build/corpus/TARGET/, and the
next run goes on from there. The first ones are in tests/fuzz/corpus/TARGET/,
by hand; those that end in .txtpb are messages in protobuf's text format. Add
there what a finding taught.
END
}

seconds=60
jobs=$(nproc)
input=
chosen=()
while (($#)); do
  case $1 in
    --seconds | --jobs)
      if [[ ! ${2-} =~ ^[1-9][0-9]*$ ]]; then
        echo "$1 wants a number from 1" >&2
        exit 2
      fi
      if [[ $1 == --jobs ]]; then jobs=$2; else seconds=$2; fi
      shift 2
      ;;
    --input)
      if [[ ! -f ${2-} ]]; then
        echo "--input wants a file" >&2
        exit 2
      fi
      input=$2
      shift 2
      ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      if [[ " ${targets[*]} " != *" $1 "* ]]; then
        echo "there is no target $1" >&2
        usage >&2
        exit 2
      fi
      chosen+=("$1")
      shift
      ;;
  esac
done
((${#chosen[@]})) || chosen=("${targets[@]}")
if [[ -n $input ]] && ((${#chosen[@]} != 1)); then
  echo "--input wants one target" >&2
  exit 2
fi

source tests/support/packages.sh
install_packages "${IDEMPOTENCY_RUN_PACKAGES[@]}" \
  "${IDEMPOTENCY_TEST_PACKAGES[@]}" "${IDEMPOTENCY_FUZZ_PACKAGES[@]}"
mkdir -p "$build/logs" "$build/findings"
# -O1: at -O0 targets are slow, -O2 takes long to compile.
cmake -S . -B "$build" -G Ninja -DCMAKE_CXX_COMPILER=clang++-14 \
  -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG="-O1 -gline-tables-only" \
  -DIDEMPOTENCY_FUZZ=ON >"$build/logs/cmake" 2>&1 || {
  cat "$build/logs/cmake" >&2
  exit 1
}
ninja -C "$build" "${chosen[@]/#/fuzz_}"

export ASAN_OPTIONS=strict_string_checks=1:detect_stack_use_after_return=1
export UBSAN_OPTIONS=print_stacktrace=1
export ASAN_SYMBOLIZER_PATH=/usr/bin/llvm-symbolizer-14

# program TARGET prints the path of its program.
program() { echo "$build/tests/fuzz/fuzz_$1"; }

if [[ -n $input ]]; then
  exec "$(program "${chosen[0]}")" "$input"
fi

# first_inputs TARGET prints the folder of its first inputs, all of them bytes
# as the target takes them: those by hand, and what was found earlier.
first_inputs() {
  local folder=$build/first/$1 file message
  rm -rf "$folder"
  mkdir -p "$folder"
  for file in "tests/fuzz/corpus/$1"/*; do
    if [[ $file == *.txtpb ]]; then
      message=$(sed -n '1s/^# proto-message: //p' "$file")
      protoc -I proto --encode="$message" idempotency/v1/idempotency.proto \
        <"$file" >"$folder/$(basename "$file" .txtpb)"
    else
      cp "$file" "$folder/"
    fi
  done
  find "$build/findings" -name "$1-*" -exec cp -t "$folder" {} +
  echo "$folder"
}

# fuzz TARGET runs it; its status is 0 also with a finding, which the table
# tells.
fuzz() {
  local target=$1 log=$build/logs/$1.log first pid status=0
  first=$(first_inputs "$target")
  mkdir -p "$build/corpus/$target"
  "$(program "$target")" -max_total_time="$seconds" -timeout=10 \
    -rss_limit_mb=2048 -max_len=32768 -print_final_stats=1 \
    -artifact_prefix="$build/findings/$target-" \
    "$build/corpus/$target" "$first" >"$log" 2>&1 &
  pid=$!
  trap 'kill "$pid"; exit' TERM
  wait "$pid" || status=$?
  echo "$status" >"$build/logs/$target.status"
  if ((status == 0)); then
    echo "$target: nothing found"
  else
    echo "$target: FOUND SOMETHING, see $log"
  fi
}

# said TARGET TEXT prints the number after TEXT where the log last has both, or
# 0.
said() {
  { grep -aoE "$2 *[0-9]+" "$build/logs/$1.log" || echo 0; } |
    tail -n 1 | grep -oE '[0-9]+$'
}

tell_progress() {
  local target
  for target in "${chosen[@]}"; do
    if [[ -f $build/logs/$target.log && ! -f $build/logs/$target.status ]]; then
      echo "$target: coverage $(said "$target" cov:)," \
        "corpus $(said "$target" corp:)"
    fi
  done
}

# wait_for_less_than N waits until so few targets run, and tells how they do.
told=$SECONDS
wait_for_less_than() {
  while (($(jobs -pr | wc -l) >= $1)); do
    sleep 0.5
    if ((SECONDS - told >= 10)); then
      tell_progress
      told=$SECONDS
    fi
  done
}

for target in "${chosen[@]}"; do
  rm -f "$build/logs/$target".*
done
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
echo "Running ${#chosen[@]} targets, $jobs at a time, $seconds s each"
for target in "${chosen[@]}"; do
  wait_for_less_than "$jobs"
  fuzz "$target" &
done
wait_for_less_than 1

found=0
printf '\n%-18s %12s %9s %8s  %s\n' target runs coverage seconds findings
for target in "${chosen[@]}"; do
  finding=none
  if [[ $(cat "$build/logs/$target.status" 2>/dev/null) != 0 ]]; then
    # What it kept, or none if it could not even begin.
    finding=$(sed -n 's/.*Test unit written to //p' "$build/logs/$target.log")
    finding=${finding:-"see $build/logs/$target.log"}
    found=1
  fi
  printf '%-18s %12s %9s %8s  %s\n' "$target" \
    "$(said "$target" number_of_executed_units:)" \
    "$(said "$target" cov:)" "$(said "$target" "runs in")" "$finding"
done
exit "$found"
