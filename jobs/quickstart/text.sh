# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154  # variables are shared with jobs/quickstart.sh
# What jobs/quickstart.sh does for text: a vocabulary, tokens, a loss beside the unigram entropy, a sample.
not_learned="the validation loss is not 1 nat per token below the unigram entropy"

ids_of_vocabulary() {
  "$python" -c 'import json, sys; print(len(json.load(open(sys.argv[1], encoding="utf-8"))))' \
    "$run/data/vocabulary/vocab.json"
}

check_input() { :; } # the options were enough

# hold_out TEXT TRAIN VALIDATION: cuts the text into a hundred stretches of lines, or one a line, and keeps every tenth
# for validation. The end of a book alone may be in another language than the rest of it.
hold_out() {
  local lines
  lines=$(wc -l <"$1")
  ((lines >= 10)) || hs_die 3 "the text has $lines lines; at least 10 are needed to keep a tenth for validation"
  awk -v stretch=$(((lines + 99) / 100)) -v train="$2" -v validation="$3" \
    '{print > (int((NR - 1) / stretch) % 10 == 9 ? validation : train)}' "$1"
}

prepare() {
  if [[ -n $text ]]; then
    cp -- "$text" "$run/data/text.txt"
  else
    # A line is "Ge1:1 In the beginning ...": the text is what follows the reference.
    bible -f gen1:1-rev22:21 | sed 's/^[^ ]* //' >"$run/data/text.txt"
  fi
  hold_out "$run/data/text.txt" "$run/data/train.txt" "$run/data/validation.txt"
  "$hyperslab" tokenize --train-vocab 4096 --input "$run/data/train.txt" --output-vocab "$run/data/vocabulary"
  # Short texts give fewer ids.
  settings+=(--set "model.vocabulary=$(ids_of_vocabulary)")
  for part in train validation; do
    "$hyperslab" tokenize --vocab "$run/data/vocabulary" --input "$run/data/$part.txt" --output "$run/data/$part.bin"
  done
}

# Prints the loss and what no model without context can beat, nats per token; ends with 1 unless the
# difference is at least 1.
check() {
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

show() {
  hs_part "generate"
  "$hyperslab" generate --checkpoint "$run/checkpoints" --prompt "$prompt" --max-tokens 120 \
    --temperature 0.7 --top-k 40 --repetition-penalty 1.1 --seed 1 | tee "$run/report/generated.txt"
  printf '\n'
}
