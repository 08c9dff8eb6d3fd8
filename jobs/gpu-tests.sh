#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# jobs/gpu-tests.sh [--output FILE] [--without-sanitizers] [--go-on FILE] [BUNDLE] | --check | --hash
# Runs every GPU test of build/ (or of a folder that jobs/bundle.sh made) on this machine's GPUs,
# layouts and overlaps as far as there are GPUs, training beside PyTorch if it is installed, the
# kernels under compute-sanitizer if there is one (minutes, on one GPU), and writes
# analysis/results/gpu-tests.json. --go-on takes what passed from FILE, an earlier output of the same
# sources and GPU, and runs the rest. --check says whether that file is of the present sources: it
# prints STALE if it is not. --hash prints the hash of the sources that the tests cover.
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

results=analysis/results/gpu-tests.json
hash_of_sources() {
  hs_sources_hash CMakeLists.txt cmake include src parallel io tests/CMakeLists.txt tests/devices tests/gpu \
    tests/comm/comm_test.hpp tests/io/dataset/files.hpp tests/interop tests/ops/attention_case.hpp tests/ops/classes_case.hpp \
    tests/ops/image_case.hpp tests/ops/low_rank_case.hpp tests/ops/ops_test.hpp tests/ops/quantized_case.hpp \
    tests/ops/sample_case.hpp tests/ops/shards.hpp tests/sharding/fp8_matrices.hpp \
    tests/support inputs/parity-16h.yaml inputs/layouts-2-ranks.txt inputs/layouts-4-ranks.txt inputs/layouts-8-ranks.txt \
    inputs/gpt2-124m.yaml inputs/llama-8b.yaml inputs/small.yaml
}

output=$hs_root/$results
bundle=
earlier=
sanitizers=1
while (($# > 0)); do
  case $1 in
    --check)
      hs_check_record "$results" "$(hash_of_sources)" "run jobs/gpu-tests.sh on a machine with a GPU"
      exit 0
      ;;
    --hash)
      hash_of_sources
      exit 0
      ;;
    --output)
      output=${2:?jobs/gpu-tests.sh: --output wants a file}
      [[ $output == /* ]] || output=$hs_started_in/$output
      shift
      ;;
    --without-sanitizers) sanitizers=0 ;;
    --go-on)
      earlier=${2:?jobs/gpu-tests.sh: --go-on wants a file}
      [[ $earlier == /* ]] || earlier=$hs_started_in/$earlier
      shift
      ;;
    -h | --help)
      sed -n '3,9s/^# //p' "$hs_root/jobs/gpu-tests.sh"
      exit 0
      ;;
    -*) hs_die 2 "jobs/gpu-tests.sh: unknown option $1; see jobs/gpu-tests.sh --help" ;;
    *) bundle=$(cd -- "$hs_started_in" && cd -- "$1" && pwd) ;;
  esac
  shift
done

folder=${bundle:-$hs_root/build}
start=()
[[ -z $bundle ]] || start=("$bundle/with-libraries")
[[ -f $folder/gpu_tests.txt ]] ||
  hs_die 2 "no GPU tests in $folder: build with -DHYPERSLAB_CUDA=ON or give a folder of jobs/bundle.sh"
if [[ -f $folder/sources.sha256 ]]; then hash=$(<"$folder/sources.sha256"); else hash=$(hash_of_sources); fi
if [[ -f $folder/commit ]]; then
  commit=$(<"$folder/commit")
else
  commit=$(hs_commit)
fi

scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT

# compute-sanitizer and its version: of a Python package, which may be newer, of PATH, or of CUDA.
packages=$(
  python3 - <<'EOF_PACKAGES' || true
import glob, site, sysconfig
roots = [sysconfig.get_path("purelib"), *site.getsitepackages(), site.getusersitepackages()]
print(":".join(path for root in roots for path in sorted(glob.glob(root + "/nvidia/*/bin"))))
EOF_PACKAGES
)
sanitizer_program=$(PATH=${packages:+$packages:}$PATH:${CUDA_HOME:-/usr/local/cuda}/bin command -v compute-sanitizer || true)
sanitizer_version=
if ((sanitizers)) && [[ -n $sanitizer_program ]]; then
  sanitizer_version=$("$sanitizer_program" --version | sed -n 's/^Version \([0-9.]*\).*/\1/p') || true
fi

# What --go-on takes over: programs of whose tests some passed and none failed.
declare -A passed_earlier=()
if [[ -n $earlier ]]; then
  names=$(
    python3 - "$earlier" "$hash" <<'EOF_EARLIER'
import json, sys

path, sources = sys.argv[1:]
record = json.load(open(path, encoding="utf-8"))
if record["sources_sha256"] != sources:
    sys.exit(f"{path} is of other sources: run all tests, without --go-on")
failed = {row["program"] for row in record["tests"] if row["result"].startswith("failed")}
print("\n".join({row["program"] for row in record["tests"] if row["result"] == "passed"} - failed))
EOF_EARLIER
  ) || exit 2
  for name in $names; do passed_earlier[$name]=1; done
fi

# write_record ended|stopped: the tests that have ended, to the output file.
write_record() {
  mkdir -p -- "$(dirname -- "$output")"
  "${start[@]}" python3 - "$scratch" "$output" "$hash" "$commit" "$earlier" "$1" "$sanitizer_version" <<'EOF_PYTHON'
import ctypes, datetime, json, pathlib, shutil, subprocess, sys

scratch, output, sources, commit, earlier, how, sanitizer = sys.argv[1:]


def version(library, function):
    """What a library says of its version, None if it is not found."""
    try:
        call = getattr(ctypes.CDLL(library), function)
    except OSError:
        return None
    if function == "cudnnGetVersion":
        call.restype = ctypes.c_size_t
        number = call()
    else:
        value = ctypes.c_int()
        call(ctypes.byref(value))
        number = value.value
    if function == "cudaRuntimeGetVersion":
        return f"{number // 1000}.{number % 1000 // 10}"
    return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"


def cuda_version():
    """Of the newest runtime that the loader finds."""
    found = (version(f"libcudart.so.{major}", "cudaRuntimeGetVersion") for major in (14, 13, 12))
    return next((text for text in found if text), None)


query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
smi = []
if shutil.which(query[0]):
    smi = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip().splitlines()
device, driver = (smi[0].split(", ") + [""])[:2] if smi else ("", "")
tests = []
for status in sorted(pathlib.Path(scratch).glob("*.status")):
    program = status.stem
    found = []
    report = status.with_suffix(".json")
    text = report.read_text() if report.is_file() else ""
    if text:
        for suite in json.loads(text)["testsuites"]:
            for test in suite["testsuite"]:
                skipped = test["result"] == "SKIPPED" or test["status"] == "NOTRUN"
                result = "failed" if test.get("failures") else "skipped" if skipped else "passed"
                found.append({"name": f"{program}.{suite['name']}.{test['name']}",
                              "program": program, "result": result,
                              "seconds": float(test["time"].rstrip("s"))})
    code, microseconds = map(int, status.read_text().split())
    if how == "stopped" and code in (130, 137, 143):
        continue
    if not found or (code != 0 and not any(test["result"] == "failed" for test in found)):
        results = {} if report.is_file() else {0: "passed", 77: "skipped"}
        result = results.get(code, f"failed: ended with {code}")
        found.append({"name": program, "program": program, "result": result, "seconds": microseconds / 1e6})
    tests += found
if earlier:
    again = {test["program"] for test in tests}
    tests += [row for row in json.loads(pathlib.Path(earlier).read_text())["tests"]
              if row["program"] not in again]
    tests.sort(key=lambda test: test["name"])
summary = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
           "commit": commit, "sources_sha256": sources, "device": device, "driver": driver,
           "cuda": cuda_version(), "cudnn": version("libcudnn.so.9", "cudnnGetVersion"),
           "nccl": version("libnccl.so.2", "ncclGetVersion"), "compute_sanitizer": sanitizer or None,
           "passed": sum(t["result"] == "passed" for t in tests),
           "failed": sum(t["result"].startswith("failed") for t in tests),
           "skipped": sum(t["result"] == "skipped" for t in tests)}
rows = ",\n".join("    " + json.dumps(test) for test in tests)
text = json.dumps(summary, indent=2)[:-2] + ',\n  "tests": [\n' + rows + "\n  ]\n}\n"
pathlib.Path(output).write_text(text, encoding="utf-8")
print(f"{summary['passed']} passed, {summary['failed']} failed, {summary['skipped']} skipped: {output}")
sys.exit(summary["failed"] > 0)
EOF_PYTHON
}
# stop_tree PID: ends it, then what it had started: a worker before the test that it waits for.
stop_tree() {
  local pid children
  children=$(pgrep -P "$1" || true)
  (($1 == $$)) || kill -TERM "$1" 2>/dev/null || true
  for pid in $children; do stop_tree "$pid"; done
}
# A run that is stopped leaves what had passed, for --go-on, and no test that still has a GPU.
trap 'trap "" TERM INT; stop_tree $$; write_record stopped || true; exit 143' TERM INT

# record NAME COMMAND...: a test that ends with 0 (passed), 77 (skipped) or otherwise (failed).
record() {
  local name=$1 status=0 begin=${EPOCHREALTIME/./}
  shift
  [[ -z ${passed_earlier[$name]:-} ]] || return 0
  hs_say "$name"
  "$@" </dev/null || status=$?
  printf '%d %d\n' "$status" $((${EPOCHREALTIME/./} - begin)) >"$scratch/$name.status"
}

# run NAME COMMAND...: a test program, all of whose tests are recorded; one that dies leaves an empty
# report and is counted by its name.
run() {
  local name=$1
  shift
  [[ -n ${passed_earlier[$name]:-} ]] || : >"$scratch/$name.json"
  HYPERSLAB_REQUIRE_GPU=1 record "$name" "$@" --gtest_brief=1 \
    "--gtest_output=json:$scratch/$name.json"
}

# parity RANKS PRECISION OPTION...: every layout of a matrix beside one rank.
parity() {
  hs_mpirun "$1" --timeout 120 "${start[@]}" "$folder/bin/hyperslab" parity inputs/parity-16h.yaml \
    --matrix "inputs/layouts-$1-ranks.txt" --set run.device=cuda \
    --set "precision.compute=$2" "${@:3}"
}

# overlap RANKS LIMIT: the share of the gradient reductions that training GPT-2 124M waits for.
overlap() {
  local directory=$scratch/overlap.$1 python
  python=$(hs_python) || return 77
  hs_mpirun "$1" --timeout 120 "${start[@]}" "$folder/bin/hyperslab" train inputs/gpt2-124m.yaml \
    --set run.device=cuda --set "run.directory=$directory" --set "parallel.data=$1" \
    --set 'data.train=[synthetic]' --set 'data.validation=[]' --set schedule.warmup_steps=5 \
    --set train.steps=15 --set train.validate_every=0 --set checkpoint.every=0 \
    --set checkpoint.keep_every=0 --set checkpoint.final=false || return
  timeout 60 "$python" -m analysis check overlap "$directory" --limit "$2"
}

# tensor_overlap LIMIT OPTION...: the share of the communication of two tensor ranks that layers of
# llama-8b wait for, by what is on the first rank's GPU.
tensor_overlap() {
  local file=$scratch/tensor_overlap.bench
  hs_mpirun 2 --timeout 120 "${start[@]}" "$folder/bin/hyperslab" bench inputs/llama-8b.yaml \
    --set run.device=cuda --set parallel.tensor=2 --set model.layers=8 --set train.microbatch=1 \
    --set train.global_batch=4 --set 'data.train=[synthetic]' --set 'data.validation=[]' \
    --set train.validate_every=0 --steps 10 --communication --json "$file" "${@:2}" || return
  python3 - "$file" "$1" <<'EOF_CHECK'
import json, sys

kernels = json.load(open(sys.argv[1], encoding="utf-8"))["kernels"]
if "rows" not in kernels:
    print(kernels["unavailable"])
    sys.exit(77)
share = kernels["communication_exposed_seconds"] / kernels["communication_seconds"]
print(f"{share:.3f} of the communication of two tensor ranks is exposed ({sys.argv[2]} allowed)")
sys.exit(share > float(sys.argv[2]))
EOF_CHECK
}

# bench DECK OPTION...: on one GPU, on generated tokens.
bench() {
  timeout 150 "${start[@]}" "$folder/bin/hyperslab" bench "inputs/$1.yaml" --set run.device=cuda \
    --set 'data.train=[synthetic]' --set 'data.validation=[]' --set train.validate_every=0 "${@:2}"
}

# count: no step of training GPT-2 124M allocates, waits for the device or launches more than a few
# graphs and kernels.
count() { bench gpt2-124m --set train.global_batch=64 --count; }

# components: the parts of the model have times, and these add up to the step's.
components() {
  local file=$scratch/components.bench
  bench small --set precision.compute=bf16 --set model.attention=reference --components \
    --json "$file" || return
  python3 - "$file" <<'EOF_CHECK'
import json, sys

figures = json.load(open(sys.argv[1], encoding="utf-8"))
rows = figures["components"]
parts = rows["attention"]["parts"]
share = sum(row["seconds"] for row in rows.values()) / figures["mean_seconds"]
untimed = [name for name in ("embedding", "attention", "ffn", "norms", "head", "optimizer")
           if not rows[name]["seconds"] > 0]
untimed += [name for name in ("scores", "softmax", "values") if not parts[name]["seconds"] > 0]
print(f"components are {share:.4f} of the step (within 0.05 of 1), "
      f"without time: {', '.join(untimed) or 'none'}")
sys.exit(bool(untimed) or not abs(share - 1) <= 0.05)
EOF_CHECK
}

# memory: what training GPT-2 124M holds on a GPU is what was planned, in the dtypes of bf16.
memory() {
  local plan=$scratch/memory-plan.json file=$scratch/memory.bench
  bench gpt2-124m --set train.global_batch=64 --set train.microbatch=64 --memory "$plan" --dtypes \
    --json "$file" || return
  python3 - "$plan" "$file" <<'EOF_CHECK'
import json, sys

plan, figures = (json.load(open(path, encoding="utf-8")) for path in sys.argv[1:])
totals = plan["ranks"][0]["totals"]
predicted, measured = totals["device predicted"], totals["device measured"]
difference = measured / predicted - 1
stored = {what: row["storage"] for what, row in figures["dtypes"].items()}
expected = {"parameters": "bf16", "masters": "f32", "optimizer state": "f32"}
wrong = [what for what, dtype in expected.items() if stored[what] != dtype]
print(f"{measured / 2**20:.1f} MiB measured, {predicted / 2**20:.1f} predicted: "
      f"{100 * difference:+.2f} % (2 allowed); of another dtype: {', '.join(wrong) or 'none'}")
sys.exit(bool(wrong) or not abs(difference) <= 0.02)
EOF_CHECK
}

# sanitizer TOOL NAME [FILTER]: gpu_NAME_test under compute-sanitizer; skipped if there is none, if
# it cannot work with the GPU, or if it reports races that are none.
sanitizer() {
  local tool=$1 name=$2 filter=${3:-*} log=$scratch/$1.$2.log status=0 options=(--error-exitcode 9)
  [[ -n $sanitizer_program ]] || return 77
  # Our own failed calls fail the test without its help; libraries make calls that may fail.
  [[ $tool != memcheck ]] || options+=(--report-api-errors no)
  # Older ones do not follow barriers in shared memory (analysis/results/kernels-h100.txt, item 9).
  if [[ $tool == racecheck && $(printf '%s\n' 2026.4 "$sanitizer_version" | sort -V | head -n 1) != 2026.4 ]]; then
    echo "compute-sanitizer $sanitizer_version: racecheck wants 2026.4 or later (pip install nvidia-cuda-sanitizer-api)"
    return 77
  fi
  HYPERSLAB_REQUIRE_GPU=1 timeout 200 "${start[@]}" "$sanitizer_program" --tool "$tool" "${options[@]}" \
    "$folder/bin/gpu_${name}_test" --gtest_brief=1 "--gtest_filter=$filter" >"$log" 2>&1 || status=$?
  tail -n 20 -- "$log"
  if ((status != 0)) && grep -q 'Device not supported' "$log"; then return 77; fi
  return "$status"
}

export OMP_NUM_THREADS=4 # of programs without a launcher
if [[ -n ${CUDA_VISIBLE_DEVICES:-} ]]; then
  IFS=, read -ra devices <<<"$CUDA_VISIBLE_DEVICES"
else
  mapfile -t devices < <(nvidia-smi -L 2>/dev/null | sed -n 's/^GPU \([0-9]*\):.*/\1/p')
fi
gpus=${#devices[@]}

# Programs of one GPU: those that look at its memory or its time have it for themselves, then two at
# a time share it. All GPUs at once. Without a GPU they fail.
training_beside_pytorch() {
  record training_beside_pytorch timeout 180 python3 tests/interop/training_test.py --device cuda \
    --precisions fp32,bf16 --binary "${bundle:-$folder/bin}/hyperslab"
}
one_gpu() { run "$1" timeout 400 "${start[@]}" "$folder/bin/$1"; }
sanitized() { record "$1.$2" sanitizer "$@"; }
mapfile -t programs < <(grep . "$folder/gpu_tests.txt" | cut -d ' ' -f 1)
alone=() # the longest first
shared=(training_beside_pytorch)
for program in "${programs[@]}"; do
  case $program in
    gpu_model_test) alone=("one_gpu $program" "${alone[@]}") ;;
    gpu_memory_test | gpu_profile_test | gpu_clock_test | gpu_stream_test | gpu_nccl*) alone+=("one_gpu $program") ;;
    *) shared+=("one_gpu $program") ;;
  esac
done
for name in memory count components; do alone+=("record $name $name"); done
if ((sanitizers)); then
  # Under racecheck the largest problems take more minutes than they are worth; every kernel keeps a
  # smaller one.
  shared=("sanitized racecheck norm *.Backward:*.TheKept*:*.AMean*:*.NoneAdds"
    "sanitized racecheck loss -*.ManyRows:*.ManyRowsThrough*:*.MatchesTheOracle:*.ZLoss*:*.AVocabulary*" "${shared[@]}"
    "sanitized racecheck kernels_attention *.CachedForward" "sanitized racecheck attention *.ARank*")
  for name in embedding optimizer; do shared+=("sanitized racecheck $name"); done
  for name in norm loss; do shared+=("sanitized synccheck $name"); done
  shared+=("sanitized racecheck fp8 *PartsOfQuantize*:*NotFinite*:*MagnitudesThatAreGiven*")
  for name in kernels_attention norm head_norm loss embedding elementwise optimizer fp8; do
    shared+=("sanitized memcheck $name")
  done
  shared+=("sanitized memcheck attention Intervals/*Matches*:ReferenceAttention.*"
    "sanitized memcheck matmul *.BackwardWeightAndBias" "sanitized memcheck deferred_reductions"
    "sanitized memcheck bf16_gradients")
fi
# take KIND JOB...: runs those that no other worker has taken.
take() {
  local kind=$1 i=0 job words
  shift
  for job in "$@"; do
    i=$((i + 1))
    mkdir -- "$scratch/$kind.$i" 2>/dev/null || continue
    read -ra words <<<"$job"
    "${words[@]}"
  done
}
workers=$((gpus > 0 ? gpus : 1))
for ((worker = 0; worker < workers; worker++)); do
  (
    export CUDA_VISIBLE_DEVICES=${devices[worker]:-}
    take alone "${alone[@]}"
    take shared "${shared[@]}" &
    take shared "${shared[@]}"
    wait
  ) &
done
wait

unset OMP_NUM_THREADS # ranks share the cores
# Several ranks have a GPU each, as far as they go.
while read -r program ranks; do
  for count in $ranks; do
    ((count > 1)) || continue
    if ((count <= gpus)); then
      run "$program.$count" hs_mpirun "$count" --timeout 300 "${start[@]}" "$folder/bin/$program"
    else
      hs_say "$program with $count ranks: not run, $gpus GPUs here"
    fi
  done
done < <(grep . "$folder/gpu_tests.txt")
if ((gpus >= 2)); then
  # As many rows as make two tensor ranks write into each other's memory.
  long=(--set model.context=1024 --set train.microbatch=4 --set train.global_batch=8)
  record parity.2.fp32 parity 2 fp32 "${long[@]}"
  record parity.2.bf16 parity 2 bf16 "${long[@]}"
  record parity.2.gpt2 parity 2 fp32 "${long[@]}" --set model.family=gpt2
fi
for count in 4 8; do
  if ((count <= gpus)); then
    record "parity.$count.fp32" parity "$count" fp32
    record "parity.$count.bf16" parity "$count" bf16
    # Tables that two stages share, key-value heads that ranks share, a vocabulary that does not divide.
    record "parity.$count.shared" parity "$count" fp32 --set model.family=gpt2 \
      --set model.tie_embeddings=true --set model.kv_heads=2 --set model.vocabulary=509
  else
    hs_say "layouts of $count ranks: not run, $gpus GPUs here"
  fi
done
if ((gpus >= 2)); then
  # Copies between two ranks take less time, of which the last sums and the wait for a late rank are more.
  record overlap.2 overlap 2 0.5
  ((gpus < 4)) || record overlap.4 overlap 4 0.2
  record tensor_overlap.2 tensor_overlap 0.5
  record tensor_overlap.2.sequence tensor_overlap 0.5 --set parallel.sequence=true
fi
write_record ended
