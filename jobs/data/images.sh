# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the scripts for sets of images share: unpacking, and shards by `hyperslab pack-images`.
# A script may set HYPERSLAB_DATA_URL, where its files come from, before it sources this.
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

# images_begin NAME "--option ..." ARGUMENT...: data_begin; image sets have no small form.
images_begin() {
  data_begin "$@"
  # shellcheck disable=SC2154  # data_begin sets it
  ((small == 0)) || hs_die 2 "jobs/data/$1.sh: there is no --small of this set"
}

# images_packed: whether both splits are in shards already.
images_packed() { [[ -s $folder/train/set.json && -s $folder/validation/set.json ]]; }

# images_pack SPLIT FOLDER [FILE...]: shards in $folder/SPLIT of that split of a folder that has both,
# or of files that have the one alone; nothing if they are there.
images_pack() {
  local split=$1 which=()
  shift
  [[ ! -s $folder/$split/set.json ]] || return 0
  [[ ! -d $1 ]] || which=(--split "$split")
  "$HYPERSLAB_BINARY" pack-images --input "$@" --output "$folder/$split" "${which[@]}" </dev/null
}

# images_end DECK: removes what was fetched, unless --keep, and says how to train.
images_end() {
  local deck=$1 settings=""
  if [[ $HYPERSLAB_DATA != data ]]; then
    settings=" --set 'data.train=[$folder/train]' --set 'data.validation=[$folder/validation]'"
  fi
  # shellcheck disable=SC2154  # data_begin sets it
  ((keep)) || find "$folder/source" -mindepth 1 -delete
  hs_say "the images are in $folder; train with"
  printf '%s train %s%s\n' "$HYPERSLAB_BINARY" "$deck" "$settings"
}
