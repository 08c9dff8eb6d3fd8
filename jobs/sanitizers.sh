#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# jobs/sanitizers.sh [--no-install] [OUTPUT]
# Builds everything under AddressSanitizer and UndefinedBehaviorSanitizer (preset cpu-debug), and runs by CTest all tests of
# modules, those under mpirun, the golden ones, the corpora of the parsers, and runs of the whole program. Writes what ran
# to OUTPUT, analysis/results/sanitizers.txt if none is given; ends with 1 if a test fails, as one with a finding does.
# A test that runs out of time has one more try. OUTPUT grows by part after part; CTest's words are in build-debug/reports.
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

hs_record_options jobs/sanitizers.sh 7 "$hs_root/analysis/results/sanitizers.txt" "$@"

# Runs of the whole program that need no quick machine: all that it does, and damaged and interrupted checkpoints.
runs='e2e_(train|resume|saving|memory|files|faults|foreign|data|images|image_sets|adapter|muon|generate|evaluate|packing|quantize)'
runs+='|fault_(0[1-9]|1[0-9]|2[0-3]|35|36|37|38|40|switch)'

hs_install "${hs_build_packages[@]}" "${hs_test_packages[@]}"
mapfile -t fresh < <(hs_fresh build-debug)
cmake --preset cpu-debug "${fresh[@]}" >/dev/null
hs_compile build-debug

reports=$hs_root/build-debug/reports
mkdir -p "$reports"
# Open MPI, HDF5 and OpenMP leave memory of their own at the end; tests ask for more memory than there is.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
commit=$(hs_commit)
failed=0
rows=("$(printf '%-44s %4d s' "configured and compiled" "$SECONDS")")

# report END: what has run so far.
report() {
  {
    printf 'AddressSanitizer and UndefinedBehaviorSanitizer, %s, commit %s, %s, %d cores\n' \
      "$(c++ --version | head -n 1)" "$commit" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$(hs_cores)"
    printf 'command: jobs/sanitizers.sh; a test in which a sanitizer finds something fails; leaks are not looked for\n\n'
    printf '%s\n' "${rows[@]}" "$@"
  } >"$record"
}

# tested NAME OPTION...: the tests that CTest's options choose.
tested() {
  local name=$1 junit=$reports/$1.xml before=$SECONDS
  shift
  report "$name: not done yet"
  ctest --test-dir build-debug -j "$(hs_cores)" --output-on-failure --no-tests=error --repeat after-timeout:2 \
    --output-junit "$junit" "$@" >"${junit%.xml}.log" 2>&1 || failed=1
  rows+=("$(printf '%-44s %4d s  %4d tests  %d failed  %d skipped' "$name" $((SECONDS - before)) \
    "$(hs_junit "$junit" tests)" "$(hs_junit "$junit" failures)" "$(hs_junit "$junit" skipped)")")
  hs_say "${rows[-1]}"
  sed -n '/The following tests FAILED/,$p' "${junit%.xml}.log"
}

for label in unit mpi golden; do
  tested "$label" -L "^$label\$" -LE slow
done
tested runs -R "^($runs)\$" -LE slow
report
exit "$failed"
