# The one build folder of Clang, of .ci/run and tests/fuzz/run.sh: thread
# annotations checked, under AddressSanitizer and UndefinedBehaviorSanitizer,
# with the fuzz targets. For sourcing by bash in the root of the repository,
# after packages.sh; defines variables and functions and does nothing else.
# shellcheck shell=bash disable=SC2034

IDEMPOTENCY_CLANG_BUILD=build-clang

# -O1: at -O0 fuzz targets are slow, -O2 takes long to compile; the reports need
# lines, not all of -g.
configure_clang_build() {
  cmake -S . -B "$IDEMPOTENCY_CLANG_BUILD" -G Ninja \
    -DCMAKE_CXX_COMPILER=clang++-14 -DCMAKE_BUILD_TYPE=Debug \
    -DCMAKE_CXX_FLAGS_DEBUG="-O1 -gline-tables-only" \
    -DIDEMPOTENCY_SANITIZE=address,undefined -DIDEMPOTENCY_FUZZ=ON
}

# What its programs are run with.
export_sanitizer_options() {
  export ASAN_OPTIONS=strict_string_checks=1:detect_stack_use_after_return=1
  export UBSAN_OPTIONS=print_stacktrace=1
  export ASAN_SYMBOLIZER_PATH=/usr/bin/llvm-symbolizer-14
}
