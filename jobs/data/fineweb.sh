#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# jobs/data/fineweb.sh [--small] [--tokenized] [--keep]
# Fetches the sample of 10 billion tokens of FineWeb (Penedo et al. 2024; 30 GB of parquet files),
# file by file, and tokenizes it with GPT-2's vocabulary for inputs/fineweb-124m.yaml; the first
# 15,000 documents are for validation. --tokenized: fetches 10.3 billion tokens of it that others
# have tokenized alike (kjj0/fineweb10B-gpt2, 20 GB). --small: the first file alone. --keep: keeps
# the parquet files.
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

tokenized=0
data_begin fineweb "--tokenized" "$@"

fetch_tokens() {
  local repository=kjj0/fineweb10B-gpt2 list sha bytes path name all=0
  list=$(data_list "$repository" "" "fineweb_*.bin")
  ((small)) && list=$(grep -E 'fineweb_(train_000001|val_000000)\.bin$' <<<"$list")
  while read -r sha bytes path; do
    all=$((all + bytes))
  done <<<"$list"
  data_space "$all"
  while read -r sha bytes path; do
    [[ $sha != - ]] || sha=
    name=${path#fineweb_}
    data_fetch "datasets/$repository/resolve/main/$path" "$folder/${name/#val_/validation_}" "$sha"
  done <<<"$list"
}

data_vocabulary
if ((tokenized)); then
  fetch_tokens
else
  list=$(data_list HuggingFaceFW/fineweb sample/10BT "sample/10BT/*.parquet")
  ((small)) && list=${list%%$'\n'*}
  data_tables HuggingFaceFW/fineweb "$list" 15000
fi
data_end inputs/fineweb-124m.yaml
