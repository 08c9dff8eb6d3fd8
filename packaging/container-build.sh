#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# packaging/container-build.sh CUDA MARCH PREFIX: builds in an image and installs below PREFIX.
source "$(dirname -- "${BASH_SOURCE[0]}")/../jobs/lib.sh"
cuda=${1:?CUDA: ON or OFF} march=${2:?MARCH} prefix=${3:?PREFIX}

hs_install "${hs_build_packages[@]}"
HYPERSLAB_CUDA=$cuda hs_configure build-image -DHYPERSLAB_TESTS=OFF -DHYPERSLAB_NATIVE=OFF \
  "-DCMAKE_CXX_FLAGS=-march=$march" "-DCMAKE_INSTALL_PREFIX=$prefix"
hs_compile build-image
cmake --install build-image --strip

# The packages that own the libraries which the program loads: an image that only runs it needs these.
runtime=$prefix/share/hyperslab/runtime-packages.txt
ldd "$prefix/bin/hyperslab" | awk '$3 ~ /^\// {print $3}' | while IFS= read -r library; do
  library=$(readlink -f -- "$library")
  { dpkg-query -S "$library" || dpkg-query -S "${library#/usr}" || true; } 2>/dev/null | sed 's/[:,].*//'
done | sort -u >"$runtime"
hs_say "runtime packages: $(tr '\n' ' ' <"$runtime")"
