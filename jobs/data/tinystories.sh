#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# jobs/data/tinystories.sh [--small] [--keep]
# Fetches TinyStories (Eldan & Li 2023; version 2, by GPT-4: 2.2 GB), trains a vocabulary of 10,000
# on it and tokenizes it for inputs/tinystories-17m.yaml. --small: its validation file alone
# (22 MB), a tenth held back. --keep: keeps the text.
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

data_begin tinystories "" "$@"
from=datasets/roneneldan/TinyStories/resolve/main
train=$folder/source/TinyStoriesV2-GPT4-train.txt
validation=$folder/source/TinyStoriesV2-GPT4-valid.txt
vocabulary=$folder/vocabulary
data_space $((small ? 100 << 20 : 5 << 30))

data_fetch "$from/${validation##*/}" "$validation" \
  6874bae9a4c1a4e7edcf0e53b86c17817e9cf881fc75ff2368da457b80c0585d
if ((small)); then
  # At a line that ends a story.
  awk -v "train=$folder/source/train.txt" -v "validation=$folder/source/validation.txt" '
    {print >(stories % 10 == 9 ? validation : train)}
    /^<\|endoftext\|>/ {++stories}' "$validation"
  train=$folder/source/train.txt
  validation=$folder/source/validation.txt
else
  data_fetch "$from/${train##*/}" "$train" \
    6418d412de72888f52b5142c761ac21a582f7d1166f0bfbdb5f03ccfdec90443
fi
"$HYPERSLAB_BINARY" tokenize --train-vocab 10000 --input "$train" --output-vocab "$vocabulary"
data_tokenize "$folder/train.bin" "$train"
data_tokenize "$folder/validation.bin" "$validation"
data_end inputs/tinystories-17m.yaml
