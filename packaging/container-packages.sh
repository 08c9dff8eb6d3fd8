#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the installed program and its reports need in an image of Debian or Ubuntu. Libraries whose
# names carry a version are found by pattern, for releases name them differently.
set -eu
apt-get update
newest() { apt-cache pkgnames "$1" | grep -E "^$1$2\$" | sort -V | tail -n 1; }
export DEBIAN_FRONTEND=noninteractive
apt-get install -y --no-install-recommends openmpi-bin openssh-client libopenblas0-openmp libpcre2-8-0 \
  libgomp1 python3 python3-h5py python3-numpy python3-matplotlib \
  "$(newest libhdf5- '[0-9]+(-[0-9]+)?(t64)?')" "$(newest libyaml-cpp '[0-9.]+')" \
  "$(newest libboost-program-options '[0-9.]+')" "$(newest libfmt '[0-9]+')" \
  "$(newest libspdlog '[0-9.]+(-fmt[0-9]+)?')" "$(newest libssl '[0-9.]+(t64)?')" \
  "$(newest libopenmpi '[0-9]+(t64)?')"
rm -rf /var/lib/apt/lists/*
