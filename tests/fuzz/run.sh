#!/usr/bin/env bash
# Builds the fuzz targets with AddressSanitizer and UndefinedBehaviorSanitizer,
# and runs them.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
source tests/support/packages.sh
source tests/support/clang_build.sh
build=$IDEMPOTENCY_CLANG_BUILD
work=$build/fuzz
# Those sources that are programs.
mapfile -t targets < <(grep -l LLVMFuzzerTestOneInput tests/fuzz/*.cc |
  xargs -n 1 basename -s .cc)

usage() {
  cat <<END
usage: tests/fuzz/run.sh [--seconds N] [--jobs N] [--targets a,b...]
       tests/fuzz/run.sh --input FILE --targets a

Installs what is missing (as root; otherwise prints the line that does), builds
the fuzz targets in $build/, and runs each for N seconds: libFuzzer makes up
inputs, and a target checks what the code says about them.

  --seconds N    for each target; default 60
  --jobs N       as many targets at a time; default: one for each processor
  --targets a,b  those; default: all
  --input FILE   runs the target once, on that input: a finding, before and
                 after it is mended
  --ledger       adds a row for each target to tests/fault/ledger.tsv

targets (the head of tests/fuzz/TARGET.cc says what an input is):
$(printf '  %s\n' "${targets[@]}")

At the end comes a table: how many inputs each target ran, in all and a second,
the processor time that it took, how many edges of the code they reached
(coverage), and what was found. With a finding the status is 1: the input is
kept in $work/findings/ and is tried again by later runs; the report (which
claim does not hold, or what a sanitizer saw, and where) is in $work/logs/.

Inputs that reached something new are kept in $work/corpus/TARGET/,
and the next run goes on from there. The first ones are in
tests/fuzz/corpus/TARGET/; those that end in .txtpb are messages in protobuf's
text format. Add there what a finding taught.
END
}

seconds=60
jobs=$(nproc)
input=
ledger=0
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
    --targets)
      IFS=, read -r -a chosen <<<"${2-}"
      for target in "${chosen[@]}"; do
        if [[ " ${targets[*]} " != *" $target "* ]]; then
          echo "there is no target $target" >&2
          usage >&2
          exit 2
        fi
      done
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
    --ledger)
      ledger=1
      shift
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
((${#chosen[@]})) || chosen=("${targets[@]}")
if [[ -n $input ]] && ((${#chosen[@]} != 1)); then
  echo "--input wants one target" >&2
  exit 2
fi

install_packages "${IDEMPOTENCY_RUN_PACKAGES[@]}" \
  "${IDEMPOTENCY_TEST_PACKAGES[@]}" "${IDEMPOTENCY_FUZZ_PACKAGES[@]}"
mkdir -p "$work/logs" "$work/findings"
configure_clang_build >"$work/logs/cmake" 2>&1 || {
  cat "$work/logs/cmake" >&2
  exit 1
}
ninja -C "$build" "${chosen[@]/#/fuzz_}"
# Rows of the ledger are of the sources as they are now.
((ledger == 0)) || eval "$(tests/fault/ledger.py begin)"
export_sanitizer_options

# program TARGET prints the path of its program.
program() { echo "$build/tests/fuzz/fuzz_$1"; }

if [[ -n $input ]]; then
  exec "$(program "${chosen[0]}")" "$input"
fi

# first_inputs TARGET prints the folder of its first inputs, all of them bytes
# as the target takes them: those by hand, and what was found earlier.
first_inputs() {
  local folder=$work/first/$1 file message
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
  find "$work/findings" -name "$1-*" -exec cp -t "$folder" {} +
  echo "$folder"
}

# fuzz TARGET runs it; its status is 0 also with a finding, which the table
# tells.
fuzz() {
  local target=$1 log=$work/logs/$1.log first options pid status=0
  first=$(first_inputs "$target")
  read -r -a options < <(sed -n 's|^// libFuzzer: ||p' "tests/fuzz/$1.cc") ||
    true
  mkdir -p "$work/corpus/$target"
  "$(program "$target")" -max_total_time="$seconds" -timeout=10 \
    -rss_limit_mb=2048 -max_len=32768 -print_final_stats=1 \
    ${options[@]+"${options[@]}"} \
    -artifact_prefix="$work/findings/$target-" \
    "$work/corpus/$target" "$first" >"$log" 2>&1 &
  pid=$!
  trap 'kill "$pid"; exit' TERM
  wait "$pid" || status=$?
  # Of this shell, and of what it waited for.
  times >"$work/logs/$target.times"
  echo "$status" >"$work/logs/$target.status"
  if ((status == 0)); then
    echo "$target: nothing found"
  else
    echo "$target: FOUND SOMETHING, see $log"
  fi
}

# said TARGET TEXT prints the number after TEXT where the log last has both, or
# 0.
said() {
  { grep -aoE "$2 *[0-9]+" "$work/logs/$1.log" || echo 0; } |
    tail -n 1 | grep -oE '[0-9]+$'
}

# cpu_seconds TARGET prints the processor time that it took.
cpu_seconds() {
  tr ' ms' '\n  ' <"$work/logs/$1.times" 2>/dev/null |
    awk '{ sum += 60 * $1 + $2 } END { printf "%.1f\n", sum }'
}

tell_progress() {
  local target
  for target in "${chosen[@]}"; do
    if [[ -f $work/logs/$target.log && ! -f $work/logs/$target.status ]]; then
      echo "$target: $(said "$target" exec/s:) inputs a second," \
        "coverage $(said "$target" cov:), corpus $(said "$target" corp:)"
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
  rm -f "$work/logs/$target".*
done
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
echo "Running ${#chosen[@]} targets, $jobs at a time, $seconds s each"
for target in "${chosen[@]}"; do
  wait_for_less_than "$jobs"
  fuzz "$target" &
done
wait_for_less_than 1

# add_to_ledger TARGET FOUND
add_to_ledger() {
  tests/fault/ledger.py append fuzz "classes=$1" \
    "minutes=$(said "$1" "runs in" | awk '{ printf "%.1f", $1 / 60 }')" \
    "cpu_hours=$(cpu_seconds "$1" | awk '{ printf "%.3f", $1 / 3600 }')" \
    "violations=$2"
}

found=0
row='%-18s %12s %9s %9s %9s  %s\n'
# shellcheck disable=SC2059
printf "\n$row" target runs runs/s "CPU s" coverage findings
for target in "${chosen[@]}"; do
  finding=none
  findings=0
  if [[ $(cat "$work/logs/$target.status" 2>/dev/null) != 0 ]]; then
    # What it kept, or none if it could not even begin.
    finding=$(sed -n 's/.*Test unit written to //p' "$work/logs/$target.log")
    finding=${finding:-"see $work/logs/$target.log"}
    findings=1
    found=1
  fi
  ((ledger == 0)) || add_to_ledger "$target" "$findings"
  # shellcheck disable=SC2059
  printf "$row" "$target" \
    "$(said "$target" number_of_executed_units:)" \
    "$(said "$target" average_exec_per_sec:)" "$(cpu_seconds "$target")" \
    "$(said "$target" cov:)" "$finding"
done
exit "$found"
