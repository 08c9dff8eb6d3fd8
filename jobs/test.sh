#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# jobs/test.sh [--slow] [--tidy] [--lint] [--no-install]
# Installs what is missing, builds, and runs every test that this machine can run: CTest, the checks
# of the repository and of the modules' order, analysis/ and lint. --slow adds the tests with
# that label, such as every layout of every axis against one rank (an hour on 2 cores); --tidy runs
# clang-tidy over every source, not over those that changed (slow); --lint runs what needs no build
# alone: the checks of the repository and lint without clang-tidy (half a minute).
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

# clang-tidy takes 5 to 10 s a source: so many at most, spread evenly, without --tidy.
max_tidy=24
passed=0
failed=0
failures=()
skipped=()
left_out="slow|repository"  # labels
tidy_all=0
lint_only=0
while (($# > 0)); do
  case $1 in
    --slow) left_out="repository|soak" ;;
    --tidy) tidy_all=1 ;;
    --lint) lint_only=1 ;;
    --no-install) HYPERSLAB_NO_INSTALL=1 ;;
    -h | --help)
      sed -n '3,8s/^# //p' "$hs_root/jobs/test.sh"
      exit 0
      ;;
    *) hs_die 2 "jobs/test.sh: unknown option $1; see jobs/test.sh --help" ;;
  esac
  shift
done
if ((lint_only)) && { ((tidy_all)) || [[ $left_out != *slow* ]]; }; then
  hs_die 2 "jobs/test.sh: --lint runs without a build, which --slow and --tidy need; leave one out"
fi
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT

joined() {
  local all
  printf -v all '%s, ' "$@"
  printf '%s' "${all%, }"
}

# count NAME PASSED FAILED
count() {
  passed=$((passed + $2))
  failed=$((failed + $3))
  (($3 == 0)) || failures+=("$1 ($3)")
}
# try NAME COMMAND...: one test, passed when the command ends with 0.
try() {
  local name=$1
  shift
  if "$@"; then count "$name" 1 0; else count "$name" 0 1; fi
}
# try_lint TOOL COMMAND...: the same, if the tool is there.
try_lint() {
  local tool=$1
  shift
  if command -v "$tool" >/dev/null; then
    hs_say "$tool"
    try "$tool" "$@"
  else
    skipped+=("$tool")
  fi
}

# cases FILE [STATUS]: the names of CTest's tests in a file that it left; with STATUS (run, fail, notrun,
# disabled) those that ended so.
cases() { sed -n "s/.*<testcase name=\"\([^\"]*\)\".* status=\"${2:-[a-z]*}\".*/\1/p" "$1"; }
# checks_passed FILE: a program of GoogleTest counts as many as it says have passed, every other test one.
checks_passed() {
  awk '/<testcase / {if (seen) total += passed ? passed : 1; seen = / status="run"/; passed = 0}
    seen && !passed && match($0, /\[  PASSED  \] [0-9]+ test/) {passed = substr($0, RSTART + 13, RLENGTH - 18) + 0}
    END {if (seen) total += passed ? passed : 1; print total + 0}' "$1"
}
# run_again DIRECTORY NAME...: whole runs that failed, once more, one at a time: they hold processes to times, and
# what runs beside them may take those. Sets recovered to how many pass.
run_again() {
  local directory=$1 names
  shift
  recovered=0
  (($# > 0)) || return 0
  printf -v names '%s|' "$@"
  hs_say "once more, alone: $*"
  rm -f "$scratch/again.xml"
  ctest --test-dir "$directory" -R "^(${names%|})\$" --output-on-failure --output-junit "$scratch/again.xml" || true
  recovered=$(cases "$scratch/again.xml" run | wc -l)
}
# count_ctest NAME DIRECTORY FILE STATUS: what CTest left in FILE when it ended with STATUS.
count_ctest() {
  local name=$1 directory=$2 file=$3 status=$4 bad unrun recovered=0 whole=()
  bad=$(cases "$file" fail | wc -l)
  unrun=$(cases "$file" '\(notrun\|disabled\)' | wc -l)
  ((unrun == 0)) || skipped+=("$unrun of $name")
  ((status == 0 || bad > 0)) || bad=1
  if ((bad > 0)); then
    mapfile -t whole < <(cases "$file" fail | grep -E '^(e2e|fault)_' || true)
    run_again "$directory" "${whole[@]}"
    bad=$((bad - recovered))
    ((recovered == 0)) || skipped+=("first failure of $recovered of $name (passed when run alone)")
  fi
  count "$name" $(($(checks_passed "$file") + recovered)) "$bad"
}
# run_ctest NAME AT_ONCE OPTION...: CTest's own words are shown, its counts kept.
run_ctest() {
  local name=$1 at_once=$2 status=0 file=$scratch/$1.xml
  shift 2
  ctest --test-dir build -j "$at_once" --output-on-failure --no-tests=error --test-output-size-passed 100000 \
    --output-junit "$file" "$@" || status=$?
  count_ctest "$name" build "$file" "$status"
}

# Whole runs wait for launches and time-outs: each takes a quarter of a core. So they run beside everything else,
# which gives way to them, and CTest keeps its notes on them in a folder of its own.
whole_runs=build/whole_runs
whole_runs_process=
start_whole_runs() {
  ctest --test-dir "$whole_runs" -j $((($(hs_cores) * 3 + 1) / 2)) --output-on-failure --no-tests=error \
    --output-junit "$scratch/whole_runs.xml" -L "e2e|fault" -LE "$left_out|timed" >"$scratch/whole_runs" 2>&1 &
  whole_runs_process=$!
  # Under set -e a trap that fails would be the status of the whole script.
  trap 'kill "$whole_runs_process" 2>/dev/null || true; rm -rf -- "$scratch"' EXIT
}
end_whole_runs() {
  local status=0
  wait "$whole_runs_process" || status=$?
  cat "$scratch/whole_runs"
  count_ctest "whole runs" "$whole_runs" "$scratch/whole_runs.xml" "$status"
}

configure_build() { hs_configure build -DHYPERSLAB_TESTS=ON -DHYPERSLAB_WERROR=ON -DBUILD_SHARED_LIBS=OFF; }
# Modules link only to modules before them, each public header compiles alone, and a build reads no more than on record.
check_layers() {
  python3 tests/repository/build_cost.py build || return
  python3 tests/repository/links_of_modules.py build/lib && hs_compile build all_verify_interface_header_sets
}

# Each module is a process, since one would leave all cores but its own idle.
run_python_tests() {
  local python module ran=0 bad=0 modules=()
  python=$(hs_python) || {
    count analysis 0 1
    return
  }
  mapfile -t modules < <(sources 'analysis/tests/test_*.py' | sed 's|.*/||; s|\.py$||')
  # shellcheck disable=SC2016 # expanded by the inner shell
  printf '%s\n' "${modules[@]}" | PYTHONDONTWRITEBYTECODE=1 xargs -P "$(hs_cores)" -n 1 \
    sh -c '"$0" -m unittest "analysis.tests.$2" >"$1/python_$2" 2>&1' "$python" "$scratch" || true
  for module in "${modules[@]}"; do
    cat "$scratch/python_$module"
    ran=$((ran + $(sed -n 's/^Ran \([0-9]*\) test.*/\1/p' "$scratch/python_$module" | grep . || echo 0)))
    # A module that ends without a verdict counts as a failure.
    grep -q -E '^(OK|FAILED)' "$scratch/python_$module" || bad=$((bad + 1))
    bad=$((bad + $(sed -n 's/^FAILED (\(.*\))$/\1/p' "$scratch/python_$module" |
      { grep -oE '(failures|errors|unexpected successes)=[0-9]+' || true; } |
      awk -F= '{sum += $2} END {print sum + 0}')))
  done
  ((ran > 0)) || bad=1
  count analysis $((ran > bad ? ran - bad : 0)) "$bad"
}

# sources PATTERN...: files that git knows or would add.
sources() {
  git ls-files --cached --others --exclude-standard -- "$@" | while IFS= read -r file; do
    [[ ! -f $file ]] || printf '%s\n' "$file"
  done
}

check_format() {
  local files
  mapfile -t files < <(sources '*.cpp' '*.hpp' '*.cu' '*.cuh')
  clang-format-16 --dry-run -Werror "${files[@]}"
}

# What changed since the main branch, or, on it, since its previous commit; the working tree counts.
changed_sources() {
  local base main=main
  git rev-parse -q --verify origin/main >/dev/null && main=origin/main
  base=$(git merge-base HEAD "$main" 2>/dev/null) || base=
  if [[ -z $base || $base == $(git rev-parse HEAD) ]]; then
    base=$(git rev-parse -q --verify HEAD~1) || base=
  fi
  if [[ -z $base ]]; then
    sources '*.cpp'
  else
    {
      git diff --name-only --diff-filter=d "$base" -- '*.cpp'
      git ls-files --others --exclude-standard -- '*.cpp'
    } | sort -u
  fi
}

check_tidy() {
  local files every
  if ((tidy_all)); then
    mapfile -t files < <(sources '*.cpp')
  else
    mapfile -t files < <(changed_sources)
    every=$(((${#files[@]} + max_tidy - 1) / max_tidy))
    mapfile -t files < <(printf '%s\n' "${files[@]}" | awk -v n="$every" 'NF && NR % n == 0')
  fi
  # Only what the build compiles has its flags on record; a build in batches has not those of single files.
  hs_quietly configure-tidy cmake -S . -B build/tidy -G Ninja -DCMAKE_BUILD_TYPE=Release -DHYPERSLAB_UNITY=OFF \
    "-DHYPERSLAB_CUDA=${HYPERSLAB_CUDA:-AUTO}" || return
  hs_quietly build-tidy cmake --build build/tidy --target hyperslab_version || return
  mapfile -t files < <(printf '%s\n' "${files[@]}" |
    while IFS= read -r file; do
      if grep -qF "\"file\": \"$hs_root/$file\"" build/tidy/compile_commands.json; then
        printf '%s\n' "$file"
      fi
    done)
  hs_say "clang-tidy over ${#files[@]} sources"
  ((${#files[@]} > 0)) || return 0
  # The flags on record are GCC's.
  local tidy=(clang-tidy-16 --quiet --extra-arg=-Wno-unknown-warning-option -p build/tidy)
  printf '%s\0' "${files[@]}" |
    xargs -0 -n 1 -P "$(hs_jobs)" "${tidy[@]}" >"$scratch/tidy" 2>/dev/null && return 0
  # A fault of a header is found again in every source that includes it.
  grep -E ' (error|warning): ' "$scratch/tidy" | sort -u | head -n 100
  return 1
}

check_lint() {
  local scripts texts
  if ! git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    skipped+=("lint: not a checkout of git")
    return
  fi
  hs_part "lint"
  try_lint clang-format-16 check_format
  mapfile -t scripts < <(sources 'jobs/*.sh' 'jobs/slurm/*.sbatch' 'packaging/*.sh' .ci/run)
  try_lint shellcheck shellcheck -x "${scripts[@]}"
  try_lint yamllint yamllint --strict inputs .yamllint .clang-format .clang-tidy .pre-commit-config.yaml
  mapfile -t texts < <(sources)
  try_lint codespell codespell "${texts[@]}"
  ((lint_only == 0)) || return 0
  hs_part "tidy"
  try_lint clang-tidy-16 check_tidy
}

test_all() {
  hs_part "install"
  hs_install "${hs_build_packages[@]}" "${hs_test_packages[@]}" "${hs_analysis_packages[@]}" "${hs_text_packages[@]}"
  hs_install_optional "${hs_lint_packages[@]}" "${hs_pdf_packages[@]}"
  [[ $left_out == *slow* ]] || hs_install_optional "${hs_slow_packages[@]}"

  hs_part "build: what whole runs start"
  try build configure_build
  ((failed > 0)) || try build hs_compile build whole_run_programs
  if ((failed == 0)); then
    start_whole_runs
    renice -n 10 $$ >/dev/null
    hs_part "build: tests"
    try build hs_compile build
  fi
  if ((failed == 0)); then
    hs_part "tests"
    run_ctest tests "$(hs_cores)" -LE "$left_out|e2e|fault|timed"
    hs_part "repository"
    run_ctest repository "$(hs_cores)" -L repository
    hs_part "layers"
    try layers check_layers
  else
    skipped+=("every test of CTest: not all was built")
  fi
  hs_part "evidence"
  jobs/gpu-tests.sh --check
  jobs/huggingface.sh --check
  hs_part "analysis"
  run_python_tests
  check_lint
  if [[ -n $whole_runs_process ]]; then
    hs_part "whole runs: what is left of them"
    end_whole_runs
    hs_part "tests of times, alone"
    run_ctest timed 1 -L timed -LE "$left_out"
  fi
}

lint_alone() {
  local check
  hs_part "install"
  hs_install_optional "${hs_lint_packages[@]}"
  hs_part "repository"
  for check in tests/repository/check_*.py; do
    try "$check" env PYTHONDONTWRITEBYTECODE=1 python3 "$check"
  done
  check_lint
}

if ((lint_only)); then lint_alone; else test_all; fi

# What the compiler said is far up by now.
if [[ ${failures[0]-} == build* ]]; then
  printf '\nthe build failed:\n'
  grep -h -E -m 40 '^FAILED|error:|CMake Error|^ninja: ' "$hs_logs/configure.log" "$hs_logs/build.log"
fi
printf '\n'
hs_parts
((${#skipped[@]} == 0)) || printf 'skipped: %s\n' "$(joined "${skipped[@]}")"
((${#failures[@]} == 0)) || printf 'failed: %s\n' "$(joined "${failures[@]}")"
printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
