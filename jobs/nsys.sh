#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# jobs/nsys.sh DECK [--rank R] [--output FILE] [--binary FILE] [-- BENCH-OPTION...]
# Runs `hyperslab bench DECK --ranges` on the ranks of the deck's layout, rank R (0 unless given)
# under Nsight Systems, which looks at the measured steps alone: kernels, CUDA calls, and ranges for
# steps, phases, layers and what is inside attention. Writes FILE.nsys-rep (runs/nsys unless given).
# After -- come options of bench, such as --steps 3 --set model.attention=reference.
# It was tried with a stand-in for nsys only; its options are those of the manual of Nsight Systems 2025.
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

usage() { sed -n '3,8s/^# //p' "$hs_root/jobs/nsys.sh"; }
deck=
rank=0
output=runs/nsys
binary=build/bin/hyperslab
while (($# > 0)); do
  case $1 in
    --rank | --output | --binary)
      [[ $# -ge 2 ]] || hs_die 2 "jobs/nsys.sh: $1 needs a value"
      declare "${1#--}=$2"
      shift
      ;;
    -h | --help)
      usage
      exit 0
      ;;
    --)
      shift
      break
      ;;
    -*) hs_die 2 "jobs/nsys.sh: unknown option $1; see jobs/nsys.sh --help" ;;
    *)
      [[ -z $deck ]] || hs_die 2 "jobs/nsys.sh: one deck, not $deck and $1"
      deck=$1
      ;;
  esac
  shift
done
[[ -n $deck ]] || hs_die 2 "jobs/nsys.sh: which deck? see jobs/nsys.sh --help"
[[ $rank =~ ^(0|[1-9][0-9]*)$ ]] || hs_die 2 "jobs/nsys.sh: --rank is '$rank', expected 0 or more"
[[ $deck == /* || ! -e $hs_started_in/$deck ]] || deck=$hs_started_in/$deck
[[ -x $binary ]] || hs_die 2 "jobs/nsys.sh: $binary is not there; jobs/build.sh makes it"
command -v nsys >/dev/null || hs_die 2 "jobs/nsys.sh: nsys is missing; install Nsight Systems"

# The layout decides how many ranks there are, with the overrides that bench gets.
overrides=()
previous=
for word in "$@"; do
  [[ $previous != --set ]] || overrides+=(--set "$word")
  [[ $word != --set=* ]] || overrides+=("$word")
  previous=$word
done
plan=$("$binary" plan "$deck" "${overrides[@]}")
ranks=$(sed -n 's/^layout .*, \([0-9]*\) ranks\{0,1\}$/\1/p' <<<"$plan")
[[ -n $ranks ]] || hs_die 1 "jobs/nsys.sh: $binary plan did not say how many ranks $deck needs"
((rank < ranks)) || hs_die 2 "jobs/nsys.sh: --rank is $rank, and the layout has $ranks ranks"
mkdir -p -- "$(dirname -- "$output")"

# Only the chosen rank starts under nsys; which one a process is, its launcher says.
# shellcheck disable=SC2016  # the variables are those of the inner shell
wrapper='mine=${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${SLURM_PROCID:-0}}}
if [[ $mine == "$1" ]]; then
  exec nsys profile --trace=cuda,nvtx,cublas,cudnn --sample=none --cpuctxsw=none \
    --capture-range=cudaProfilerApi --capture-range-end=stop --force-overwrite=true \
    --output="$2" "${@:3}"
fi
exec "${@:3}"'
launch=()
((ranks == 1)) || launch=(hs_mpirun "$ranks")
"${launch[@]}" bash -c "$wrapper" nsys-rank "$rank" "$output" "$binary" bench "$deck" --ranges "$@"
hs_say "$output.nsys-rep: rank $rank of $ranks; nsys stats or nsys-ui shows it"
