#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# jobs/huggingface.sh [--python PYTHON] [--binary FILE] [--output FILE] | --check
# Builds the program (or takes FILE), compares it with transformers in a Python that has torch and
# transformers, and writes the differences of the logits to analysis/results/huggingface.json; if a
# test fails nothing is written. --check prints STALE if that file is not of the present sources.
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

results=analysis/results/huggingface.json
hash_of_sources() { hs_sources_hash include src io parallel tests/interop tests/e2e/support.py; }

# A path on the command line starts where the user stands.
from_start() { if [[ $1 == /* ]]; then printf '%s\n' "$1"; else printf '%s/%s\n' "$hs_started_in" "$1"; fi; }

python=python3
binary=
output=$hs_root/$results
while (($# > 0)); do
  case $1 in
    --check)
      hs_check_record "$results" "$(hash_of_sources)" \
        "run jobs/huggingface.sh with a Python that has torch and transformers"
      exit 0
      ;;
    --python)
      python=${2:?jobs/huggingface.sh: --python wants a program}
      [[ $python != */* ]] || python=$(from_start "$python")
      shift
      ;;
    --binary)
      binary=$(from_start "${2:?jobs/huggingface.sh: --binary wants a file}")
      shift
      ;;
    --output)
      output=$(from_start "${2:?jobs/huggingface.sh: --output wants a file}")
      shift
      ;;
    -h | --help)
      sed -n '3,6s/^# //p' "$hs_root/jobs/huggingface.sh"
      exit 0
      ;;
    *) hs_die 2 "jobs/huggingface.sh: unknown option $1; see jobs/huggingface.sh --help" ;;
  esac
  shift
done
hash=$(hash_of_sources)
if [[ -z $binary ]]; then
  [[ -f build/CMakeCache.txt ]] || hs_configure build
  hs_compile build hyperslab
  binary=$hs_root/build/bin/hyperslab
fi
[[ -x $binary ]] || hs_die 2 "there is no program $binary"

scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
status=0
PYTHONDONTWRITEBYTECODE=1 "$python" tests/interop/huggingface_test.py --binary "$binary" \
  --record "$scratch/record.json" --commit "$(hs_commit)" --sources "$hash" || status=$?
((status != 77)) || hs_die 2 "$python has no torch and transformers: give --python"
((status == 0)) || hs_die "$status" "the tests failed; $output stays as it is"
mkdir -p -- "$(dirname -- "$output")"
cp -- "$scratch/record.json" "$output"
hs_say "$output"
