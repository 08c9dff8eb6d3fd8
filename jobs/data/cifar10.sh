#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# jobs/data/cifar10.sh [--keep]
# Fetches CIFAR-10 (Krizhevsky 2009; the binary version, 170 MB: 50,000 and 10,000 images of
# 32 x 32 pixels in 10 classes) and packs it for inputs/vit-cifar10.yaml. --keep: keeps what was
# fetched.
: "${HYPERSLAB_DATA_URL:=https://www.cs.toronto.edu}"
source "$(dirname -- "${BASH_SOURCE[0]}")/images.sh"

images_begin cifar10 "" "$@"
if ! images_packed; then
  data_space $((600 << 20))
  archive=$folder/source/cifar-10-binary.tar.gz
  data_fetch "~kriz/${archive##*/}" "$archive" \
    c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd
  tar -xzf "$archive" -C "$folder/source" || hs_die 5 "cannot unpack $archive: free space, or remove it and run this again"
  for split in train validation; do images_pack "$split" "$folder/source/cifar-10-batches-bin"; done
fi
images_end inputs/vit-cifar10.yaml
