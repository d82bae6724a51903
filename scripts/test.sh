#!/usr/bin/env bash
# What `make test` runs: the tests of the plain build, of the AddressSanitizer + UBSan build and of
# the ThreadSanitizer build, then one line for all. WEFT_TEST_FULL=1 adds the long tier.
#   BUILD=build scripts/test.sh
set -euo pipefail
cd "$(dirname "$0")/.."

build=${BUILD:-build}
jobs=$(nproc)
full=${WEFT_TEST_FULL:-0}
log=$(mktemp) results=$(mktemp)
trap 'rm -f "$log" "$results"' EXIT

# Nothing is skipped in silence: CI demands the compiler of the device code (WEFT_REQUIRE_NVCC=1);
# elsewhere its absence is said here and counted in the closing lines.
no_nvcc=0
if ! command -v nvcc >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
  no_nvcc=1
  echo "make test: no nvcc here: device code runs in loom, but is not compiled for GPUs" >&2
  [ "${WEFT_REQUIRE_NVCC:-0}" = 1 ] && exit 1
fi

# ThreadSanitizer of gcc 12 can't map its shadow where the kernel places programs at random over
# more than 28 bits; without that it runs.
tsan_prefix() {
  local probe
  probe=$(mktemp -d)
  echo 'int main(void) { return 0; }' >"$probe/probe.c"
  "${CC:-gcc}" -fsanitize=thread -o "$probe/probe" "$probe/probe.c"
  if ! "$probe/probe" 2>/dev/null && setarch -R "$probe/probe" 2>/dev/null; then echo "setarch -R"; fi
  rm -rf "$probe"
}

failed=0
run_tree() { # folder, title, CMake arguments...
  local tree=$1 title=$2
  shift 2
  local start=$SECONDS prefix=
  echo "== $title ($tree)"
  cmake -S . -B "$tree" -G Ninja -DWEFT_BUILD_TESTS=ON "$@" >"$log" || { cat "$log"; exit 1; }
  cmake --build "$tree" -j "$jobs" -- --quiet
  echo "== built in $((SECONDS - start)) s"
  case $tree in *-tsan) prefix=$(tsan_prefix) ;; esac
  local select=(-LE full)
  [ "$full" = 1 ] && select=()
  # shellcheck disable=SC2086 # the prefix is words
  $prefix ctest --test-dir "$tree" -j "$jobs" --output-on-failure --timeout "$((full ? 3600 : 300))" \
    --no-tests=error "${select[@]}" | tee -a "$results" || failed=1
}

export WEFT_TEST_FULL=$full
# A report of a sanitizer is a failure, a leak is a report.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:strict_string_checks=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-second_deadlock_stack=1}
read -ra flags <<<"${CMAKE_FLAGS:-}"
run_tree "$build" "plain build" "${flags[@]}"
# Without GPU code and MPI: the sanitizers see none of them, and a tree without them is to build too.
run_tree "$build-asan" "AddressSanitizer and UBSan" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DWEFT_CUDA=OFF -DWEFT_MPI=OFF \
  -DWEFT_SANITIZE=address,undefined -DWEFT_BUILD_EXAMPLES=OFF "${flags[@]}"
run_tree "$build-tsan" "ThreadSanitizer" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DWEFT_CUDA=OFF -DWEFT_MPI=OFF \
  -DWEFT_SANITIZE=thread -DWEFT_BUILD_EXAMPLES=OFF "${flags[@]}"

# Each test's line reads "  3/17 Test  #3: name ....   Passed    0.01 sec".
awk -v seconds="$SECONDS" -v no_nvcc="$no_nvcc" '
  /^ *[0-9]+\/[0-9]+ Test +#[0-9]+: / {
    if (/\*\*\*Skipped/) { skipped++; names = names " " $4 }
    else if (/ Passed +[0-9]/) passed++
    else failed++
  }
  END {
    print ""
    if (no_nvcc) { skipped++; names = names " device-compile" }
    if (skipped) print skipped " skipped:" names
    print "in " seconds " s"
    print passed + 0 " passed, " failed + 0 " failed"
    exit failed > 0 || passed == 0
  }' "$results" || failed=1
exit $failed
