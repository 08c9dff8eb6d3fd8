#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# jobs/gpu-tests.sh [--output FILE] [BUNDLE] | --check | --hash
# Runs every GPU test of build/ (or of a folder that jobs/bundle.sh made) on this machine's GPU and
# writes analysis/results/gpu-tests.json. --check says whether that file is of the present sources:
# it prints STALE where it is not. --hash prints the hash of the sources that the tests cover.
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

results=analysis/results/gpu-tests.json
covered=(include src parallel tests/gpu)

# The sources that git knows or would add; all files where there is no checkout.
covered_files() {
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files --cached --others --exclude-standard -- "${covered[@]}"
  else
    find "${covered[@]}" -type f
  fi | LC_ALL=C sort -u | while IFS= read -r file; do
    [[ ! -f $file ]] || printf '%s\n' "$file"
  done
}
sources_hash() { covered_files | tr '\n' '\0' | xargs -0 sha256sum | sha256sum | cut -d ' ' -f 1; }

check() {
  local found
  if [[ ! -f $results ]]; then
    printf 'STALE: there is no %s; run jobs/gpu-tests.sh on a machine with a GPU\n' "$results"
    return 0
  fi
  found=$(sed -n 's/.*"sources_sha256": "\([0-9a-f]*\)".*/\1/p' "$results")
  if [[ $found == "$(sources_hash)" ]]; then
    printf 'current: %s is of the present sources\n' "$results"
  else
    printf 'STALE: %s is of other sources; run jobs/gpu-tests.sh on a machine with a GPU\n' "$results"
  fi
}

output=$hs_root/$results
bundle=
while (($# > 0)); do
  case $1 in
    --check)
      check
      exit 0
      ;;
    --hash)
      sources_hash
      exit 0
      ;;
    --output)
      output=${2:?jobs/gpu-tests.sh: --output wants a file}
      [[ $output == /* ]] || output=$hs_started_in/$output
      shift
      ;;
    -h | --help)
      sed -n '3,6s/^# //p' "$hs_root/jobs/gpu-tests.sh"
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
if [[ -f $folder/sources.sha256 ]]; then hash=$(<"$folder/sources.sha256"); else hash=$(sources_hash); fi
if [[ -f $folder/commit ]]; then
  commit=$(<"$folder/commit")
else
  commit=$(git describe --always --abbrev=12 --dirty=+ 2>/dev/null || printf 'unknown')
fi

scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
failed=0

# run NAME COMMAND...: a test program; one that dies leaves no file and is counted by its name.
run() {
  local name=$1 status=0
  shift
  hs_say "$name"
  HYPERSLAB_REQUIRE_GPU=1 "$@" --gtest_brief=1 "--gtest_output=json:$scratch/$name.json" </dev/null ||
    status=$?
  printf '%d\n' "$status" >"$scratch/$name.status"
  ((status == 0)) || failed=$((failed + 1))
}

gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
# Several ranks have a GPU each, as far as they go.
while read -r program ranks; do
  for count in ${ranks:-1}; do
    if ((count == 1)); then
      run "$program" timeout 900 "${start[@]}" "$folder/bin/$program"
    elif ((count <= gpus)); then
      run "$program.$count" hs_mpirun "$count" --timeout 900 "${start[@]}" "$folder/bin/$program"
    else
      hs_say "$program with $count ranks: not run, $gpus GPUs here"
    fi
  done
done < <(grep . "$folder/gpu_tests.txt")

mkdir -p -- "$(dirname -- "$output")"
"${start[@]}" python3 - "$scratch" "$output" "$hash" "$commit" <<'EOF_PYTHON'
import ctypes, datetime, json, pathlib, shutil, subprocess, sys

scratch, output, sources, commit = sys.argv[1:]


def version(library, function):
    """What a library says of its version, None where it is not found."""
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
    if report.is_file():
        for suite in json.loads(report.read_text())["testsuites"]:
            for test in suite["testsuite"]:
                skipped = test["result"] == "SKIPPED" or test["status"] == "NOTRUN"
                result = "failed" if test.get("failures") else "skipped" if skipped else "passed"
                found.append({"name": f"{program}.{suite['name']}.{test['name']}", "result": result,
                              "seconds": float(test["time"].rstrip("s"))})
    code = int(status.read_text())
    if code != 0 and not any(test["result"] == "failed" for test in found):
        found.append({"name": program, "result": f"failed: ended with {code}", "seconds": 0.0})
    tests += found
summary = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
           "commit": commit, "sources_sha256": sources, "device": device, "driver": driver,
           "cuda": cuda_version(), "cudnn": version("libcudnn.so.9", "cudnnGetVersion"),
           "nccl": version("libnccl.so.2", "ncclGetVersion"),
           "passed": sum(t["result"] == "passed" for t in tests),
           "failed": sum(t["result"].startswith("failed") for t in tests),
           "skipped": sum(t["result"] == "skipped" for t in tests)}
rows = ",\n".join("    " + json.dumps(test) for test in tests)
text = json.dumps(summary, indent=2)[:-2] + ',\n  "tests": [\n' + rows + "\n  ]\n}\n"
pathlib.Path(output).write_text(text, encoding="utf-8")
print(f"{summary['passed']} passed, {summary['failed']} failed, {summary['skipped']} skipped: {output}")
EOF_PYTHON
((failed == 0))
