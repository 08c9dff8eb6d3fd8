#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# jobs/thread-sanitizer.sh [--no-install] [OUTPUT]
# Builds what has threads with Clang's ThreadSanitizer (preset cpu-tsan), runs the tests of the watchdog, the writers of
# checkpoints and the loaders, and two short runs of 2 ranks: text with asynchronous checkpoints, and images. Writes
# what ran to OUTPUT, analysis/results/thread-sanitizer.txt if none is given; ends with 1 if there is a finding. Reports
# stay in build-tsan/reports. tests/support/thread-sanitizer.supp says what is not reported, and why.
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

hs_record_options jobs/thread-sanitizer.sh 8 "$hs_root/analysis/results/thread-sanitizer.txt" "$@"

alone=(comm_test loader_test worker_pool_test image_samples_test batch_feed_test checkpoint_writer_test checkpoint_fault_test)
of_ranks=(comm_ranks_test memory_checkpoints_test)

hs_install "${hs_build_packages[@]}" "${hs_test_packages[@]}" "${hs_fuzz_packages[@]}"
python=$(hs_python)
mapfile -t fresh < <(hs_fresh build-tsan)
cmake --preset cpu-tsan "${fresh[@]}" >/dev/null
hs_compile build-tsan hyperslab "${alone[@]}" "${of_ranks[@]}" train_ranks_test

reports=$hs_root/build-tsan/reports
rm -rf "$reports"
mkdir -p "$reports"
# Watched are the program's own threads: OpenMP has one a rank, and its tool for this sanitizer is not needed.
export OMP_NUM_THREADS=1 OMP_TOOL=disabled
# The sanitizer brings operator new, so that allocations cannot be counted (tests/support/allocations.cpp).
export GTEST_FILTER='-*AllocatesNothing*'
TSAN_OPTIONS="suppressions=$hs_root/tests/support/thread-sanitizer.supp second_deadlock_stack=1 \
external_symbolizer_path=$(command -v llvm-symbolizer-16 || command -v llvm-symbolizer || true)"
commit=$(hs_commit)
failed=0
rows=()

# watched NAME COMMAND...: runs it, which may take 300 s; a finding or another failure counts.
watched() {
  local name=$1 log=$reports/$1.log before=$SECONDS status=0 findings
  shift
  TSAN_OPTIONS=$TSAN_OPTIONS "$@" >"$log" 2>&1 || status=$?
  findings=$(grep -c 'WARNING: ThreadSanitizer' "$log" || true)
  rows+=("$(printf '%-44s %4d s  code %3d  %d findings' "$name" $((SECONDS - before)) "$status" "$findings")")
  hs_say "${rows[-1]}"
  if ((status != 0 || findings > 0)); then
    grep -E -m 3 'SUMMARY|FAILED|^hyperslab:' "$log" || tail -n 5 "$log"
    failed=1
  fi
}
# trained NAME DECK KEY=VALUE...: a short run of 2 data ranks.
trained() {
  local name=$1 deck=$2 set=()
  shift 2
  local key
  for key in run.directory="$reports/$name" parallel.tensor=1 model.layers=1 model.width=64 model.heads=2 \
    schedule.warmup_steps=1 checkpoint.every=2 checkpoint.memory_every=1 "$@"; do
    set+=(--set "$key")
  done
  watched "train_$name" hs_mpirun 2 --timeout 300 build-tsan/bin/hyperslab train "$deck" "${set[@]}"
}

for name in "${alone[@]}"; do
  watched "$name" timeout 300 "build-tsan/bin/$name"
done
for name in "${of_ranks[@]}"; do
  watched "${name}_np2" hs_mpirun 2 --timeout 300 "build-tsan/bin/$name"
done
watched staging_np1 hs_mpirun 1 --timeout 300 build-tsan/bin/train_ranks_test \
  --gtest_filter='CopyToHost*:ReadStaged*:Snapshot*:LossScale*-*AllocatesNothing*'

trained text inputs/quickstart.yaml data.train='[synthetic]' data.validation='[synthetic]' data.vocabulary= \
  train.steps=20 train.global_batch=4 train.microbatch=2 train.validate_every=5
"$python" jobs/data/image_folders.py draw "$reports/shapes" --images 12 >/dev/null
for part in train validation; do
  build-tsan/bin/hyperslab pack-images --input "$reports/shapes" --split "$part" --output "$reports/$part" >/dev/null
done
trained images inputs/quickstart-images.yaml data.train="[$reports/train]" data.validation="[$reports/validation]" \
  train.steps=20 train.global_batch=8 train.microbatch=4 train.validate_every=5

{
  printf 'ThreadSanitizer, %s, commit %s, %s\n' "$(clang++-16 --version | head -n 1)" "$commit" \
    "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
  printf 'command: jobs/thread-sanitizer.sh; one OpenMP thread a rank; not reported: tests/support/thread-sanitizer.supp\n\n'
  printf '%s\n' "${rows[@]}"
} >"$record"
exit "$failed"
