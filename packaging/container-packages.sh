#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# packaging/container-packages.sh PREFIX: installs what the program below PREFIX and its reports load,
# as container-build.sh noted it, in an image of the same release.
set -eu
prefix=${1:?PREFIX}
apt-get update
# shellcheck disable=SC2046  # a word a package
DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends openmpi-bin openssh-client \
  python3 python3-h5py python3-numpy python3-matplotlib python3-yaml python3-jinja2 weasyprint \
  $(cat "$prefix/share/hyperslab/runtime-packages.txt")
rm -rf /var/lib/apt/lists/*
