#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# jobs/build.sh [--test|--no-test] [--no-install] [CMAKE-OPTION...]
# Installs what is missing and builds into build/; --test (the default) builds the tests too. What the
# commands of the documents use comes along: the Python packages of analysis/, a text to train on.
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

tests=ON
options=()
while (($# > 0)); do
  case $1 in
    --test) tests=ON ;;
    --no-test) tests=OFF ;;
    --no-install) HYPERSLAB_NO_INSTALL=1 ;;
    -h | --help)
      sed -n '3,5s/^# //p' "$hs_root/jobs/build.sh"
      exit 0
      ;;
    -D* | -G*) options+=("$1") ;;
    *) hs_die 2 "jobs/build.sh: unknown option $1; see jobs/build.sh --help" ;;
  esac
  shift
done

hs_part "install"
hs_install "${hs_build_packages[@]}" "${hs_analysis_packages[@]}"
hs_install_optional "${hs_text_packages[@]}"
[[ $tests == OFF ]] || hs_install "${hs_test_packages[@]}"
hs_part "configure"
hs_configure build "-DHYPERSLAB_TESTS=$tests" "${options[@]}"
hs_part "build"
hs_compile build
hs_say "built build/bin/hyperslab"
hs_parts
