# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the scripts in jobs/data/ share: options, downloads that go on where they stopped, checksums,
# free space, tables of text in parquet files, tokenizing. They run on a machine with internet.
# HYPERSLAB_DATA_URL: where files come from (default https://huggingface.co; file:// works)
# HYPERSLAB_DATA: where data goes (default data, the folder that the decks name)
# HYPERSLAB_BINARY: the program (default build/bin/hyperslab)
# HF_TOKEN: access token for data sets on huggingface.co that ask for an account
# HYPERSLAB_PYTHON: a python3 with pyarrow (default: one that is made in $HYPERSLAB_DATA/venv)
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib.sh"

: "${HYPERSLAB_DATA_URL:=https://huggingface.co}"
: "${HYPERSLAB_DATA:=data}"
: "${HYPERSLAB_BINARY:=build/bin/hyperslab}"
: "${HYPERSLAB_PYTHON:=}"

# data_begin NAME "--option ..." ARGUMENT...: reads --small, --keep and the script's own options
# into $small, $keep, ...; $folder gets this data's tokens or images: it is called NAME, or $data_name.
data_begin() {
  local name=$1 own=$2 word
  shift 2
  small=0
  keep=0
  while (($# > 0)); do
    word=${1#--}
    case " --small --keep $own " in
      *" $1 "*) printf -v "$word" 1 ;;
      *)
        if [[ $1 == -h || $1 == --help ]]; then
          sed -n '3,/^source/s/^# //p' "$0"
          exit 0
        fi
        hs_die 2 "jobs/data/$name.sh: unknown option $1; see jobs/data/$name.sh --help"
        ;;
    esac
    shift
  done
  for word in curl python3 sha256sum; do
    command -v "$word" >/dev/null || hs_die 2 "$word is missing: install it (Debian: apt-get install curl python3 coreutils)"
  done
  [[ -x $HYPERSLAB_BINARY ]] || hs_die 2 "$HYPERSLAB_BINARY is missing: run jobs/build.sh first, or set HYPERSLAB_BINARY"
  folder=$HYPERSLAB_DATA/${data_name:-$name}
  # A part of the data must not be taken for all of it.
  ((small == 0)) || folder+=-small
  mkdir -p -- "$folder/source" || hs_die 5 "cannot make $folder/source: set HYPERSLAB_DATA to a folder that can be written"
}

# data_space BYTES: ends with 5 if the folder's file system has fewer.
data_space() {
  local need=$1 free
  free=$(df -P -B1 -- "$folder" | awk 'NR == 2 {print $4}')
  ((free >= need)) ||
    hs_die 5 "$folder: $((need >> 20)) MiB are needed, $((free >> 20)) MiB are free: set HYPERSLAB_DATA to a larger disk"
}

data_sha256() { sha256sum -- "$1" | cut -d ' ' -f 1; }

# data_curl URL FILE [OPTION...]: one download, with words for what went wrong.
data_curl() {
  local url=$1 file=$2 status=0
  shift 2
  # From a file, so that other users of the machine do not see it; curl sends it to no other host.
  [[ -z ${HF_TOKEN:-} || $url != https://huggingface.co/* ]] ||
    set -- "$@" --header "@"<(printf 'Authorization: Bearer %s\n' "$HF_TOKEN")
  curl --fail --location --silent --show-error --retry 5 --connect-timeout 30 "$@" --output "$file" "$url" || status=$?
  # A server that cannot go on at the end of FILE, or has no more than that: the caller begins again.
  if ((status == 22 || status == 33 || status == 36)) && [[ " $* " == *" --continue-at "* && -s $file ]]; then
    return "$status"
  fi
  case $status in
    0) return 0 ;;
    5 | 6 | 7) hs_die 3 "cannot reach $url: is this machine on the internet? (proxy: https_proxy; mirror: HYPERSLAB_DATA_URL)" ;;
    23) hs_die 5 "cannot write $file: free space, or set HYPERSLAB_DATA to another disk" ;;
    *) hs_die 3 "cannot fetch $url (curl ended with $status); what came so far is kept: run this again" ;;
  esac
}

# data_verify FILE SHA256 NAME: ends with 3 and removes FILE if it is another one. Without a
# published checksum, the one of the first download is kept in NAME.sha256 and holds from then on.
data_verify() {
  local file=$1 expected=$2 name=$3 found from="published"
  if [[ -z $expected && -s $name.sha256 ]]; then
    read -r expected _ <"$name.sha256"
    from="of the first download, in $name.sha256"
  fi
  found=$(data_sha256 "$file")
  if [[ -z $expected ]]; then
    hs_say "no checksum of ${name##*/} is published: $found is recorded in $name.sha256"
    printf '%s  %s\n' "$found" "${name##*/}" >"$name.sha256"
  elif [[ $found != "$expected" ]]; then
    rm -f -- "$file"
    hs_die 3 "$name: its SHA-256 is $found, expected $expected ($from); it is removed: run this again"
  fi
}

# data_fetch PATH FILE [SHA256]: FILE is there and right, or the script ends. Goes on with FILE.part.
data_fetch() {
  local url=$HYPERSLAB_DATA_URL/$1 file=$2 expected=${3:-}
  if [[ -e $file ]]; then
    data_verify "$file" "$expected" "$file"
    return 0
  fi
  hs_say "fetching $url"
  if [[ ! -s $file.part || -z $expected || $(data_sha256 "$file.part") != "$expected" ]]; then
    if ! data_curl "$url" "$file.part" --continue-at -; then
      rm -f -- "$file.part"
      data_curl "$url" "$file.part" || hs_die 3 "cannot fetch $url"
    fi
  fi
  data_verify "$file.part" "$expected" "$file"
  mv -- "$file.part" "$file"
}

# data_list REPOSITORY FOLDER PATTERN: a line "SHA256 BYTES PATH" for each file of the data set's
# folder whose path matches, as Hugging Face publishes them.
data_list() {
  local repository=$1 below=$2 pattern=$3 listing
  listing=$folder/source/listing.json
  data_curl "$HYPERSLAB_DATA_URL/api/datasets/$repository/tree/main${below:+/$below}" "$listing"
  python3 - "$listing" "$pattern" <<'PYTHON' || hs_die 3 "$repository: its list of files has no $below/$pattern"
import fnmatch, json, sys
files = [f for f in json.load(open(sys.argv[1], encoding="utf-8"))
         if f["type"] == "file" and fnmatch.fnmatch(f["path"], sys.argv[2])]
for file in sorted(files, key=lambda f: f["path"]):
    print(file.get("lfs", {}).get("oid", "-"), file["size"], file["path"])
sys.exit(0 if files else 1)
PYTHON
}

# data_python: a python3 with pyarrow, which reads parquet files.
data_python() {
  local venv=$HYPERSLAB_DATA/venv
  [[ -n $HYPERSLAB_PYTHON ]] || HYPERSLAB_PYTHON=python3
  "$HYPERSLAB_PYTHON" -c 'import pyarrow.parquet' >/dev/null 2>&1 && return 0
  HYPERSLAB_PYTHON=$venv/bin/python
  "$HYPERSLAB_PYTHON" -c 'import pyarrow.parquet' >/dev/null 2>&1 && return 0
  hs_say "installing pyarrow into $venv"
  if ! python3 -m venv "$venv" >&2 || ! "$venv/bin/pip" install --quiet pyarrow >&2; then
    hs_die 2 "cannot install pyarrow, which reads the data's parquet files, into $venv: it needs Debian's python3-venv
and the internet; or set HYPERSLAB_PYTHON to a python3 that has it"
  fi
}

# data_vocabulary: GPT-2's vocabulary in $vocabulary.
data_vocabulary() {
  vocabulary=$HYPERSLAB_DATA/gpt2
  mkdir -p -- "$vocabulary"
  local from=openai-community/gpt2/resolve/main
  data_fetch "$from/vocab.json" "$vocabulary/vocab.json" \
    196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783
  data_fetch "$from/merges.txt" "$vocabulary/merges.txt" \
    1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5
}

# data_tokenize OUTPUT TEXT [OPTION...]: with $vocabulary.
data_tokenize() {
  local output=$1 text=$2
  shift 2
  "$HYPERSLAB_BINARY" tokenize --vocab "$vocabulary" --input "$text" --output "$output" "$@" </dev/null
}

# data_tables REPOSITORY LIST VALIDATION: every parquet file of LIST (lines of data_list)
# becomes a token file $folder/train_NNNN.bin, and its first VALIDATION documents, of the first file,
# $folder/validation_0000.bin. Parquet files and text are removed as soon as they are tokenized.
data_tables() {
  local repository=$1 list=$2 validation=$3 sha bytes path number=0 all=0 largest=0
  while read -r sha bytes path; do
    all=$((all + bytes))
    ((bytes <= largest)) || largest=$bytes
  done <<<"$list"
  data_space $((all * 4 / 5 + 4 * largest))
  data_python
  while read -r sha bytes path; do
    [[ $sha != - ]] || sha=
    data_table "$repository" "$path" "$sha" "$number" "$validation"
    number=$((number + 1))
  done <<<"$list"
}

# data_table REPOSITORY PATH SHA256 NUMBER VALIDATION: one of them.
data_table() {
  local repository=$1 path=$2 sha=$3 number=$4 validation=$5 table text train skip=0
  printf -v train '%s/train_%04d.bin' "$folder" "$number"
  [[ ! -e $train ]] || return 0
  table=$folder/source/${path##*/}
  text=$folder/source/text
  data_fetch "datasets/$repository/resolve/main/$path" "$table" "$sha"
  if ((number == 0)); then
    skip=$validation
    data_text "$text" --documents "$validation" "$table"
    data_tokenize "$folder/validation_0000.bin" "$text" --document-separator '\x00'
  fi
  data_text "$text" --skip "$skip" "$table"
  data_tokenize "$train" "$text" --document-separator '\x00'
  rm -f -- "$text"
  ((keep)) || rm -f -- "$table"
}

# data_text TEXT [OPTION...] TABLE...: as jobs/data/parquet_text.py takes them.
data_text() {
  local text=$1
  shift
  "$HYPERSLAB_PYTHON" jobs/data/parquet_text.py "$@" >"$text" </dev/null ||
    hs_die 3 "$text cannot be written, or ${!#} not be read (remove it to fetch it again)"
}

# data_end DECK: says how to train.
data_end() {
  local deck=$1 settings=""
  if ((small)) || [[ $HYPERSLAB_DATA != data ]]; then
    settings=" --set 'data.train=[$folder/train*.bin]' --set 'data.validation=[$folder/validation*.bin]'"
    settings+=" --set data.vocabulary=$vocabulary"
  fi
  ((keep)) || find "$folder/source" -type f ! -name '*.sha256' -delete
  hs_say "the tokens are in $folder; train with"
  printf '%s train %s%s\n' "$HYPERSLAB_BINARY" "$deck" "$settings"
}
