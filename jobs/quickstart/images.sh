# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154  # variables are shared with jobs/quickstart.sh
# What jobs/quickstart.sh does for images: shards, top-1 beside a guess, sheets of images.
not_learned="top-1 is not 10 points above the share of the most frequent class"

has_splits() { [[ -d $1/train && (-d $1/val || -d $1/validation) ]]; }

# Ends with a message before anything is built or renamed.
check_input() {
  if [[ -n $images ]] && ! has_splits "$images"; then "$python" jobs/data/image_folders.py split "$images"; fi
}

prepare() {
  local folder=$run/data/folders
  if [[ -z $images ]]; then
    "$python" jobs/data/image_folders.py draw "$folder"
  elif has_splits "$images"; then
    folder=$images
  else
    "$python" jobs/data/image_folders.py split "$images" "$folder"
  fi
  "$hyperslab" pack-images --input "$folder" --split train --output "$run/data/train" --broken skip
  # With the classes of training, of which validation may lack some.
  "$hyperslab" pack-images --input "$folder" --split validation --output "$run/data/validation" --broken skip \
    --classes "$run/data/train"
  settings+=(--set "model.classes=$(classes)")
}

classes() {
  "$python" -c 'import json, sys; print(len(json.load(open(sys.argv[1], encoding="utf-8"))["classes"]))' \
    "$run/data/train/set.json"
}

# Prints top-1 and top-5 and what a guess reaches; ends with 1 unless top-1 is 10 points better.
check() {
  "$python" - "$run/report/eval.json" "$run/data/validation" <<'PYTHON'
import json, pathlib, sys
import numpy
from analysis.packed_images import PackedImages
found = json.loads(pathlib.Path(sys.argv[1]).read_text())
counts = numpy.bincount(PackedImages(pathlib.Path(sys.argv[2])).labels)
guess = counts.max() / counts.sum()
print(f"validation images        {counts.sum():,} of {numpy.count_nonzero(counts)} classes")
print(f"validation loss          {found['loss']:.4f} nats")
print(f"top-1                    {100 * found['top1']:.2f} %")
print(f"top-5                    {100 * found['top5']:.2f} %")
print(f"most frequent class      {100 * guess:.2f} %")
sys.exit(0 if found["top1"] >= guess + 0.1 else 1)
PYTHON
}

show() {
  hs_part "sheets"
  local one=(--set parallel.data=1 --set parallel.tensor=1 --set parallel.pipeline=1)
  "$python" -m analysis images --samples "$run/data/train" --output "$run/report/images.png"
  "$hyperslab" bench "$deck" --mode data "${settings[@]}" "${one[@]}" --samples "$run/report/augmented.npy"
  "$python" -m analysis images --samples "$run/report/augmented.npy" --output "$run/report/augmented.png"
  "$hyperslab" eval "$deck" "${settings[@]}" "${one[@]}" --checkpoint "$run/checkpoints" \
    --predictions "$run/report/predictions.csv"
  "$python" -m analysis images --samples "$run/data/validation" --predictions "$run/report/predictions.csv" \
    --output "$run/report/predictions.png"
}
