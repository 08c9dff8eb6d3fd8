#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# jobs/data/wikitext103.sh [--small] [--unk] [--keep]
# Fetches WikiText-103 (Merity et al. 2016; the raw text, 0.3 GB) and tokenizes it with GPT-2's
# vocabulary for inputs/wikitext103-12l.yaml. --unk: the variant of words, with <unk>. --small:
# WikiText-2 (5 MB). --keep: keeps what was fetched.
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

unk=0
data_begin wikitext103 "--unk" "$@"
name=wikitext-$((small ? 2 : 103))
((unk)) || name+=-raw
name+=-v1
list=$(data_list Salesforce/wikitext "$name" "$name/*.parquet")
data_space $((small ? 100 << 20 : 3 << 30))
data_python
data_vocabulary
for part in train validation test; do
  tables=()
  while read -r sha _ path; do
    [[ ${path##*/} == "$part"* ]] || continue
    [[ $sha != - ]] || sha=
    tables+=("$folder/source/${path##*/}")
    data_fetch "datasets/Salesforce/wikitext/resolve/main/$path" "${tables[-1]}" "$sha"
  done <<<"$list"
  ((${#tables[@]} > 0)) || hs_die 3 "Salesforce/wikitext has no file $name/$part*"
  data_text "$folder/source/$part.txt" --lines "${tables[@]}"
  data_tokenize "$folder/$part.bin" "$folder/source/$part.txt"
done
data_end inputs/wikitext103-12l.yaml
