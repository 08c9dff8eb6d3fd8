#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# jobs/data/tinyimagenet.sh [--keep]
# Fetches TinyImageNet (Le and Yang 2015; 248 MB: 100,000 and 10,000 JPEG images of 64 x 64 pixels in
# 200 classes) and packs it for inputs/vit-tiny-64.yaml. --keep: keeps what was fetched.
: "${HYPERSLAB_DATA_URL:=http://cs231n.stanford.edu}"
source "$(dirname -- "${BASH_SOURCE[0]}")/images.sh"

images_begin tinyimagenet "" "$@"
if ! images_packed; then
  data_space $((1500 << 20))
  archive=$folder/source/tiny-imagenet-200.zip
  data_fetch "${archive##*/}" "$archive" \
    6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821
  python3 -m zipfile -e "$archive" "$folder/source" ||
    hs_die 5 "cannot unpack $archive: free space, or remove it and run this again"
  for split in train validation; do images_pack "$split" "${archive%.zip}"; done
fi
images_end inputs/vit-tiny-64.yaml
