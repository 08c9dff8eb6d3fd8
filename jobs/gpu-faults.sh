#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# jobs/gpu-faults.sh [--output FILE] BUNDLE [TEST...]
# What happens on two GPUs of this machine when a rank or the network fails, layouts over sockets, and llama-1b resumed
# in another layout (tests/gpu/faults_test.py), with a folder that jobs/bundle.sh made. Writes
# analysis/results/faults-gpu.txt. llama-1b takes 40 GB of $TMPDIR for minutes; TEST names a class or a test. A link
# between GPUs is cut (TwoHosts) where root may make network namespaces and there is ip (iproute2).
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

output=$hs_root/analysis/results/faults-gpu.txt
bundle=
tests=()
while (($# > 0)); do
  case $1 in
    --output)
      output=${2:?jobs/gpu-faults.sh: --output wants a file}
      [[ $output == /* ]] || output=$hs_started_in/$output
      shift
      ;;
    -h | --help)
      sed -n '3,7s/^# //p' "$hs_root/jobs/gpu-faults.sh"
      exit 0
      ;;
    -*) hs_die 2 "jobs/gpu-faults.sh: unknown option $1; see jobs/gpu-faults.sh --help" ;;
    *)
      if [[ -z $bundle ]]; then
        bundle=$(cd -- "$hs_started_in" && cd -- "$1" && pwd)
      else
        tests+=("$1")
      fi
      ;;
  esac
  shift
done
[[ -n $bundle ]] || hs_die 2 "jobs/gpu-faults.sh: which folder? see jobs/gpu-faults.sh --help"
[[ -x $bundle/hyperslab ]] || hs_die 2 "jobs/gpu-faults.sh: $bundle has no program; jobs/bundle.sh makes such a folder"
(($(nvidia-smi -L 2>/dev/null | wc -l) >= 2)) || hs_die 2 "jobs/gpu-faults.sh: two GPUs are needed"

commit=unknown
[[ ! -f $bundle/commit ]] || commit=$(<"$bundle/commit")
exec > >(tee -- "$output") 2>&1
printf 'Faults on two GPUs, and a checkpoint of llama-1b in another layout; %s, commit %s\n' "$(date -u +%F)" "$commit"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sort | uniq -c
printf 'jobs/gpu-faults.sh BUNDLE%s\n\n' "${tests[*]/#/ }"
python3 tests/gpu/faults_test.py --binary "$bundle/hyperslab" -v "${tests[@]}"
