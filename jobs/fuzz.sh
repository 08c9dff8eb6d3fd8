#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# jobs/fuzz.sh [--no-install] [SECONDS [TARGET...]]
# Builds the fuzz targets of tests/fuzz with Clang and sanitizers, and runs each (or those named: deck, npy, ...) for
# SECONDS, 300 if none are given, one after the other from its corpus. An input that ends a parser, takes more than 60 s
# or more than 2 GiB is a finding and stays in build-fuzz/findings/TARGET. Results go to analysis/results/fuzz.json;
# ends with 1 if there is a finding. What is learned stays in build-fuzz/corpus, not in tests/fuzz/corpus.
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

seconds=300
targets=()
while (($# > 0)); do
  case $1 in
    --no-install) HYPERSLAB_NO_INSTALL=1 ;;
    -h | --help)
      sed -n '3,8s/^# //p' "$hs_root/jobs/fuzz.sh"
      exit 0
      ;;
    -*) hs_die 2 "jobs/fuzz.sh: unknown option $1; see jobs/fuzz.sh --help" ;;
    *[!0-9]*) targets+=("$1") ;;
    *) seconds=$1 ;;
  esac
  shift
done
if ((${#targets[@]} == 0)); then
  for source in tests/fuzz/fuzz_*.cpp; do
    name=${source##*/fuzz_}
    targets+=("${name%.cpp}")
  done
fi
for name in "${targets[@]}"; do
  [[ -f tests/fuzz/fuzz_$name.cpp ]] || hs_die 2 "jobs/fuzz.sh: there is no tests/fuzz/fuzz_$name.cpp"
done

hs_install "${hs_build_packages[@]}" "${hs_fuzz_packages[@]}"
mapfile -t fresh < <(hs_fresh build-fuzz)
cmake --preset cpu-fuzz "${fresh[@]}" >/dev/null
hs_compile build-fuzz "${targets[@]/#/fuzz_}"

record=analysis/results/fuzz.json
commit=$(hs_commit)
failed=0

# value NAME: a number of libFuzzer's final statistics in the log.
value() {
  sed -n "s/^stat::$1: *\([0-9]*\).*/\1/p" "$log" | tail -n 1
}

# What each target did last, also in an earlier call of this script.
write_record() {
  local joined
  joined=$(cat build-fuzz/results/*.json)
  {
    printf '{\n  "format": "hyperslab fuzz",\n  "sanitizers": "address,undefined",\n  "compiler": "%s",\n' \
      "$(clang++-16 --version | head -n 1)"
    printf '  "targets": [\n%s\n  ]\n}\n' "${joined%,}"
  } >"$record"
}

mkdir -p build-fuzz/results
# What is on record and has not been run in this build folder stays on record.
[[ ! -f $record ]] || while IFS= read -r line; do
  name=$(sed -n 's/^ *{"target": "\([a-z0-9_]*\)".*/\1/p' <<<"$line")
  [[ -z $name || ! -f tests/fuzz/fuzz_$name.cpp || -f build-fuzz/results/$name.json ]] || printf '%s,\n' "${line%,}" >"build-fuzz/results/$name.json"
done <"$record"
for name in "${targets[@]}"; do
  mkdir -p "build-fuzz/corpus/$name" "build-fuzz/findings/$name"
  log=build-fuzz/findings/$name.log
  before=$SECONDS
  status=0
  # Of HDF5 and OpenMP, whose own memory at the end is no leak of ours.
  OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
    nice -n 10 "build-fuzz/bin/fuzz_$name" -max_total_time="$seconds" -timeout=60 -rss_limit_mb=2048 -max_len=65536 \
    -print_final_stats=1 -artifact_prefix="build-fuzz/findings/$name/" "build-fuzz/corpus/$name" \
    "tests/fuzz/corpus/$name" >"$log" 2>&1 || status=$?
  ran=$((SECONDS - before))
  executions=$(value number_of_executed_units)
  findings=$((status == 0 ? 0 : 1))
  printf '    {"target": "%s", "seconds": %d, "executions": %d, "findings": %d, "commit": "%s", "ended": "%s"},\n' \
    "$name" "$ran" "${executions:-0}" "$findings" "$commit" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" \
    >"build-fuzz/results/$name.json"
  hs_say "$name: $ran s, ${executions:-0} executions, $findings findings"
  if ((findings > 0)); then
    grep -E -m 3 'ERROR|SUMMARY|refused with|runtime error' "$log" || tail -n 5 "$log"
    failed=1
  fi
  write_record
done
exit "$failed"
