#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# jobs/quickstart.sh [--text FILE] [--prompt TEXT] [--steps N] [--no-install]
#                    [--layout "data=2 tensor=2"] [--resume-layout "data=2 pipeline=2"]
# Installs what is missing, builds, trains a vocabulary of 4,096 on English text and then a small
# language model under one layout, stops half-way, resumes under another, reports the validation
# loss beside what a model without context could reach, generates text and draws plots. All is left
# in runs/quickstart; an earlier runs/quickstart is renamed to runs/quickstart.old.N, never deleted.
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

text=
prompt="In the beginning"
steps=
layout="data=2 tensor=2"
resume_layout="data=2 pipeline=2"
deck=inputs/quickstart.yaml
while (($# > 0)); do
  case $1 in
    --text | --prompt | --steps | --layout | --resume-layout)
      (($# > 1)) || hs_die 2 "jobs/quickstart.sh: $1 needs a value"
      name=${1#--}
      printf -v "${name//-/_}" '%s' "$2"
      shift
      ;;
    --no-install) HYPERSLAB_NO_INSTALL=1 ;;
    -h | --help)
      sed -n '3,8s/^# //p' "$hs_root/jobs/quickstart.sh"
      exit 0
      ;;
    *) hs_die 2 "jobs/quickstart.sh: unknown option $1; see jobs/quickstart.sh --help" ;;
  esac
  shift
done
[[ -z $text || $text == /* ]] || text=$hs_started_in/$text
[[ -z $text || -s $text ]] || hs_die 2 "jobs/quickstart.sh: --text $text: no such file, or empty"
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
hyperslab=build/bin/hyperslab

# The deck's train.steps, in block or flow style.
deck_steps() {
  awk '/^[^ #]/ {inside = /^train:/}
       inside && match($0, /(^|[ {,])steps: *[0-9]+/) {
         value = substr($0, RSTART, RLENGTH); sub(/.*: */, "", value); print value; exit
       }' "$deck"
}

ids_of_vocabulary() {
  "$python" -c 'import json, sys; print(len(json.load(open(sys.argv[1], encoding="utf-8"))))' \
    "$run/data/vocabulary/vocab.json"
}

prepare_text() {
  local lines
  mkdir -p "$run/data" "$run/report"
  if [[ -n $text ]]; then
    cp -- "$text" "$run/data/text.txt"
  else
    # A line is "Ge1:1 In the beginning ...": the text is what follows the reference.
    bible -f gen1:1-rev22:21 | sed 's/^[^ ]* //' >"$run/data/text.txt"
  fi
  lines=$(wc -l <"$run/data/text.txt")
  ((lines >= 10)) || hs_die 3 "the text has $lines lines; at least 10 are needed to keep a tenth for validation"
  head -n $((lines - lines / 10)) "$run/data/text.txt" >"$run/data/train.txt"
  tail -n $((lines / 10)) "$run/data/text.txt" >"$run/data/validation.txt"
  "$hyperslab" tokenize --train-vocab 4096 --input "$run/data/train.txt" --output-vocab "$run/data/vocabulary"
  # Short texts give fewer ids.
  settings+=(--set "model.vocabulary=$(ids_of_vocabulary)")
  for part in train validation; do
    "$hyperslab" tokenize --vocab "$run/data/vocabulary" --input "$run/data/$part.txt" --output "$run/data/$part.bin"
  done
}

# Prints the loss and what no model without context can beat, nats per token; ends with 1 unless the
# difference is at least 1.
check_loss() {
  "$python" - "$run/report/eval.json" "$run/data/validation.bin" "$run/data/validation.txt" <<'PYTHON'
import json, math, pathlib, sys
from analysis.entropy import token_counts, unigram_entropy
loss = json.loads(pathlib.Path(sys.argv[1]).read_text())["loss"]
counts = token_counts(pathlib.Path(sys.argv[2]))
entropy = unigram_entropy(counts)
bytes_per_token = pathlib.Path(sys.argv[3]).stat().st_size / int(counts.sum())
print(f"validation loss          {loss:.4f} nats per token, {loss / bytes_per_token:.4f} per byte")
print(f"unigram token entropy    {entropy:.4f} nats per token, {entropy / bytes_per_token:.4f} per byte")
print(f"bits saved by context    {(entropy - loss) / math.log(2):.4f} per token")
sys.exit(0 if loss <= entropy - 1 else 1)
PYTHON
}

hs_part "install"
packages=("${hs_build_packages[@]}" "${hs_analysis_packages[@]}")
[[ -n $text ]] || packages+=("${hs_text_packages[@]}")
hs_install "${packages[@]}"
if [[ -z $text ]] && ! command -v bible >/dev/null; then
  hs_die 2 "the program bible is missing (Debian's bible-kjv): install it, or give a text with --text FILE"
fi
python=$(hs_python)
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

hs_part "text"
if [[ -e $run ]]; then
  old=1
  while [[ -e $run.old.$old ]]; do old=$((old + 1)); done
  mv -- "$run" "$run.old.$old"
  hs_say "the earlier run is now in $run.old.$old"
fi
prepare_text

settings+=(--set parallel.data=1 --set parallel.tensor=1)
hs_part "train: steps 1 to $((steps / 2)) of $steps, $layout"
hs_mpirun "$ranks" "$hyperslab" train "$deck" "${settings[@]}" "${axes[@]}" --stop-after $((steps / 2))
read_layout "$resume_layout"
settings+=("${axes[@]}")
hs_part "resume: steps $((steps / 2 + 1)) to $steps, $resume_layout"
hs_mpirun "$ranks" "$hyperslab" train "$deck" "${settings[@]}" --resume auto
hs_part "evaluate"
hs_mpirun "$ranks" "$hyperslab" eval "$deck" "${settings[@]}" \
  --checkpoint "$run/checkpoints" --json "$run/report/eval.json"
learned=yes
check_loss || learned=no
hs_part "generate"
"$hyperslab" generate --checkpoint "$run/checkpoints" --prompt "$prompt" --max-tokens 120 \
  --temperature 0.7 --top-k 40 --repetition-penalty 1.1 --seed 1 | tee "$run/report/generated.txt"
printf '\n'
hs_part "plots"
"$python" -m analysis learning "$run" --output "$run/report"
"$python" -m analysis time "$run" --output "$run/report"

printf '\n'
hs_parts
for plot in "$run"/report/*.png; do printf 'plot: %s\n' "$hs_root/$plot"; done
[[ $learned == yes ]] ||
  hs_die 1 "the validation loss is not 1 nat per token below the unigram entropy: train longer (--steps)"
