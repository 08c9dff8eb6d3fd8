#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# jobs/data/openwebtext.sh [--small] [--keep]
# Fetches OpenWebText (Gokaslan & Cohen 2019; 24 GB of parquet files, 9 billion tokens), file by
# file, and tokenizes it with GPT-2's vocabulary for inputs/openwebtext-124m.yaml; the first 4,000
# documents are for validation. --small: the first file alone. --keep: keeps the parquet files.
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

data_begin openwebtext "" "$@"
list=
# The folder was renamed once.
for below in plain_text data; do
  list=$(data_list Skylion007/openwebtext "$below" "$below/train-*.parquet" 2>/dev/null) && break
done
[[ -n $list ]] || list=$(data_list Skylion007/openwebtext "" "train-*.parquet")
((small)) && list=${list%%$'\n'*}
data_vocabulary
data_tables Skylion007/openwebtext "$list" 4000
data_end inputs/openwebtext-124m.yaml
