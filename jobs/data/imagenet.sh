#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# jobs/data/imagenet.sh [--folder DIR] [--classes 100] [--keep]
# Packs ImageNet-1k (Russakovsky et al. 2015; 1,281,167 and 50,000 images in 1,000 classes, 155 GB)
# for inputs/vit-*-imagenet1k.yaml. Its license lets no one pass it on without an account:
# --folder DIR: a copy of yours, class folders n01440764, ... below DIR/train and DIR/val.
# Without it, the tar files timm/imagenet-1k-wds come from Hugging Face, where you must have accepted
# its terms, with your access token in HF_TOKEN.
# --classes 100: ImageNet-100, the classes in jobs/data/imagenet100.txt, of a --folder.
# --keep: keeps what was fetched.
source "$(dirname -- "${BASH_SOURCE[0]}")/images.sh"

classes=1000
copy=
rest=()
while (($# > 0)); do
  case $1 in
    --folder | --classes)
      (($# > 1)) || hs_die 2 "jobs/data/imagenet.sh: $1 needs a value"
      if [[ $1 == --folder ]]; then copy=$2; else classes=$2; fi
      shift
      ;;
    *) rest+=("$1") ;;
  esac
  shift
done
[[ $classes == 1000 || $classes == 100 ]] || hs_die 2 "jobs/data/imagenet.sh: --classes is $classes, expected 100 or 1000"
[[ -z $copy || $copy == /* ]] || copy=$hs_started_in/$copy
data_name=imagenet$classes
[[ $classes == 100 ]] || data_name=imagenet1k
images_begin imagenet "" "${rest[@]}"

# The classes that count, one a line, of a folder of class folders.
classes_of() {
  if ((classes == 100)); then
    cat jobs/data/imagenet100.txt
  else
    find "$1" -mindepth 1 -maxdepth 1 -name 'n????????' -printf '%f\n' | sort
  fi
}

# Links to the class folders of $copy/PART that count, in $folder/source/PART: others may lie among them.
link_classes() {
  local from=$copy/$1 class found=0 links=$folder/source/$1
  [[ -d $from ]] || hs_die 3 "$from: no such folder; --folder needs train/ and val/ with class folders"
  mkdir -p -- "$links"
  while read -r class; do
    [[ -d $from/$class ]] || hs_die 3 "$from has no class folder $class: is this ImageNet-1k, unpacked?"
    ln -sfn -- "$(realpath -- "$from/$class")" "$links/$class"
    found=$((found + 1))
  done < <(classes_of "$from")
  ((found == classes)) || hs_die 3 "$from has $found class folders (n01440764, ...), expected $classes"
}

# Packs the NUMBER tar files of a split, from Hugging Face.
pack_fetched() {
  local split=$1 number=$2 digits=$3 index file tars=()
  [[ ! -s $folder/$split/set.json ]] || return 0
  for ((index = 0; index < number; ++index)); do
    printf -v file 'imagenet1k-%s-%0*d.tar' "$split" "$digits" "$index"
    tars+=("$folder/source/$file")
    data_fetch "datasets/timm/imagenet-1k-wds/resolve/main/$file" "${tars[-1]}"
  done
  images_pack "$split" "${tars[@]}"
  ((keep)) || rm -f -- "${tars[@]}"
}

if images_packed; then
  :
elif [[ -n $copy ]]; then
  for part in train val; do link_classes "$part"; done
  for split in train validation; do images_pack "$split" "$folder/source"; done
elif ((classes == 100)); then
  hs_die 2 "ImageNet-100 is made from a copy of ImageNet-1k on this machine: give --folder DIR"
elif [[ -z ${HF_TOKEN:-} ]]; then
  hs_die 2 "ImageNet-1k cannot be fetched without an account: give a copy with --folder DIR, or accept the terms of
https://huggingface.co/datasets/timm/imagenet-1k-wds and put your access token into HF_TOKEN"
else
  data_space $((320 << 30))
  pack_fetched validation 64 2
  pack_fetched train 1024 4
fi
images_end "inputs/vit-s16-$data_name.yaml"
