#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# jobs/quickstart.sh [--text FILE] [--prompt TEXT] [--steps N] [--no-install]
#                    [--layout "data=2 tensor=2"] [--resume-layout "data=2 pipeline=2"]
# jobs/quickstart.sh --images [FOLDER] [--steps N] [--no-install] [--layout ...] [--resume-layout ...]
# Installs what is missing, builds, trains a vocabulary of 4,096 on English text and then a small
# language model under one layout, stops half-way, resumes under another, reports the validation
# loss beside what a model without context could reach, generates text and draws plots. All is left
# in runs/quickstart; an earlier runs/quickstart is renamed to runs/quickstart.old.N, never deleted.
# --images: a small vision transformer instead, on the class folders of FOLDER, of which a tenth is
# kept for validation, or on its folders train and val; without FOLDER on shapes that are drawn. It
# leaves top-1 and sheets of augmented images and of predictions in runs/quickstart-images.
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

text=
prompt="In the beginning"
steps=
layout="data=2 tensor=2"
resume_layout="data=2 pipeline=2"
kind=text
images=
while (($# > 0)); do
  case $1 in
    --text | --prompt | --steps | --layout | --resume-layout)
      (($# > 1)) || hs_die 2 "jobs/quickstart.sh: $1 needs a value"
      name=${1#--}
      printf -v "${name//-/_}" '%s' "$2"
      shift
      ;;
    --images)
      kind=images
      if (($# > 1)) && [[ $2 != --* ]]; then
        images=$2
        shift
      fi
      ;;
    --no-install) HYPERSLAB_NO_INSTALL=1 ;;
    -h | --help)
      sed -n '3,12s/^# //p' "$hs_root/jobs/quickstart.sh"
      exit 0
      ;;
    *) hs_die 2 "jobs/quickstart.sh: unknown option $1; see jobs/quickstart.sh --help" ;;
  esac
  shift
done
[[ -z $text || $text == /* ]] || text=$hs_started_in/$text
[[ -z $text || -s $text ]] || hs_die 2 "jobs/quickstart.sh: --text $text: no such file, or empty"
[[ -z $images || $images == /* ]] || images=$hs_started_in/$images
[[ -z $images || -d $images ]] || hs_die 2 "jobs/quickstart.sh: --images $images: no such folder"
[[ $kind == text || -z $text ]] || hs_die 2 "jobs/quickstart.sh: --text and --images exclude each other"
[[ ${steps:-2} =~ ^[1-9][0-9]*$ ]] || hs_die 2 "jobs/quickstart.sh: '$steps' is no number from 1 on"

# Sets `ranks` and `axes`, the deck's settings, from a layout such as "data=2 tensor=2".
read_layout() {
  local axis
  ranks=1
  axes=()
  for axis in $1; do
    [[ $axis =~ ^(data|tensor|pipeline)=([1-9][0-9]*)$ ]] ||
      hs_die 2 "jobs/quickstart.sh: '$axis' is no axis; a layout is such as \"data=2 tensor=2\""
    ranks=$((ranks * BASH_REMATCH[2]))
    axes+=(--set "parallel.${BASH_REMATCH[1]}=${BASH_REMATCH[2]}")
  done
}
read_layout "$resume_layout" # wrong ones are refused before anything is done
most_ranks=$ranks
read_layout "$layout"
((ranks <= most_ranks)) || most_ranks=$ranks

run=runs/quickstart
[[ $kind == text ]] || run+=-$kind
deck=inputs/${run##*/}.yaml
hyperslab=build/bin/hyperslab

# The deck's train.steps, in block or flow style.
deck_steps() {
  awk '/^[^ #]/ {inside = /^train:/}
       inside && match($0, /(^|[ {,])steps: *[0-9]+/) {
         value = substr($0, RSTART, RLENGTH); sub(/.*: */, "", value); print value; exit
       }' "$deck"
}

# Sets check_input, prepare, check, show and not_learned of this kind.
# shellcheck source=jobs/quickstart/text.sh
source "jobs/quickstart/$kind.sh"

hs_part "install"
packages=("${hs_build_packages[@]}" "${hs_analysis_packages[@]}")
[[ $kind$text != text ]] || packages+=("${hs_text_packages[@]}")
hs_install "${packages[@]}"
if [[ $kind$text == text ]] && ! command -v bible >/dev/null; then
  hs_die 2 "the program bible is missing (Debian's bible-kjv): install it, or give a text with --text FILE"
fi
python=$(hs_python)
check_input
settings=()
# A GPU per rank, or none.
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
((gpus >= most_ranks)) || settings+=(--set run.device=cpu)
# Another length than the deck's warms up for a tenth of it, as the deck does.
[[ -z $steps ]] || settings+=(--set "train.steps=$steps" --set "schedule.warmup_steps=$((steps / 10))")
steps=${steps:-$(deck_steps)}
[[ -n $steps ]] || hs_die 2 "$deck has no train.steps: give --steps N"
((steps >= 2)) || hs_die 2 "the run is stopped half-way: --steps must be at least 2"

hs_part "build"
options=()
[[ -f build/CMakeCache.txt ]] || options+=(-DHYPERSLAB_TESTS=OFF)
hs_configure build "${options[@]}"
hs_compile build hyperslab

hs_part "$kind"
if [[ -e $run ]]; then
  old=1
  while [[ -e $run.old.$old ]]; do old=$((old + 1)); done
  mv -- "$run" "$run.old.$old"
  hs_say "the earlier run is now in $run.old.$old"
fi
mkdir -p "$run/data" "$run/report"
prepare

settings+=(--set parallel.data=1 --set parallel.tensor=1)
hs_part "train: steps 1 to $((steps / 2)) of $steps, $layout"
hs_mpirun "$ranks" "$hyperslab" train "$deck" "${settings[@]}" "${axes[@]}" --stop-after $((steps / 2))
read_layout "$resume_layout"
settings+=("${axes[@]}")
hs_part "resume: steps $((steps / 2 + 1)) to $steps, $resume_layout"
hs_mpirun "$ranks" "$hyperslab" train "$deck" "${settings[@]}" --resume auto
hs_part "evaluate"
# All that was held out, as what the loss is compared with; validation while training takes a part.
hs_mpirun "$ranks" "$hyperslab" eval "$deck" "${settings[@]}" --set train.validate_batches=0 \
  --checkpoint "$run/checkpoints" --json "$run/report/eval.json"
learned=yes
check || learned=no
show
hs_part "plots"
"$python" -m analysis learning "$run" --output "$run/report"
"$python" -m analysis time "$run" --output "$run/report"

printf '\n'
hs_parts
for plot in "$run"/report/*.png; do printf 'plot: %s\n' "$hs_root/$plot"; done
[[ $learned == yes ]] || hs_die 1 "$not_learned: train longer (--steps)"
