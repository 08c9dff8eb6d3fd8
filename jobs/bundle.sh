#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# jobs/bundle.sh DIR [--build FOLDER] [CMAKE-OPTION...]
# Builds for GPUs (preset cuda-release unless options say otherwise; no GPU is needed here) and makes
# DIR: bin/ (program, GPU tests), inputs/, lib/ and DIR/hyperslab, which starts the program with them.
#
# lib/ holds what the programs load beyond the C and C++ runtimes, CUDA, cuDNN, NCCL and MPI, which
# belong to the machine with the GPUs: its driver fits its CUDA, its mpirun fits its libmpi (Open MPI
# 4.1.x of any patch level), and its C++ runtime must be that of GCC 12 or newer. HDF5 is carried,
# because releases of Linux disagree about its name. Processors need AVX2.
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

bundle=
build="build-cuda"
options=()
while (($# > 0)); do
  case $1 in
    --build)
      build=${2:?jobs/bundle.sh: --build wants a folder}
      shift
      ;;
    -h | --help)
      sed -n '3,5s/^# //p' "$hs_root/jobs/bundle.sh"
      exit 0
      ;;
    -D*) options+=("$1") ;;
    -*) hs_die 2 "jobs/bundle.sh: unknown option $1; see jobs/bundle.sh --help" ;;
    *)
      [[ -z $bundle ]] || hs_die 2 "jobs/bundle.sh: one folder, not $bundle and $1"
      bundle=$1
      ;;
  esac
  shift
done
[[ -n $bundle ]] || hs_die 2 "jobs/bundle.sh: which folder? see jobs/bundle.sh --help"
[[ $bundle == /* ]] || bundle=$hs_started_in/$bundle
[[ $build == /* ]] || build=$hs_root/$build

# What is left out: libraries of the target machine.
of_the_machine() {
  case $1 in
    ld-linux* | libc.so* | libm.so* | libpthread.so* | libdl.so* | librt.so* | libresolv.so* | libutil.so* | \
      libstdc++.so* | libgcc_s.so* | linux-vdso*) return 0 ;;
    libcuda.so* | libcudart.so* | libcublas* | libcudnn* | libnv* | libnccl* | libcupti*) return 0 ;;
    libmpi* | libopen-* | libpmix* | libucp* | libucs* | libuct*) return 0 ;;
  esac
  return 1
}
needed_by() { readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'; }

# carry FILE...: the libraries of the files into lib/, and theirs; not those that only left-out libraries need.
carry() {
  local queue=("$@") file name path
  declare -A where=()
  while read -r name _ path _; do
    [[ $path != /* ]] || where[$name]=$path
  done < <(ldd "$@" | grep '=>')
  while ((${#queue[@]} > 0)); do
    file=${queue[0]}
    queue=("${queue[@]:1}")
    while IFS= read -r name; do
      if of_the_machine "$name" || [[ -e $bundle/lib/$name ]]; then continue; fi
      [[ -n ${where[$name]:-} ]] || hs_die 2 "$file needs $name, which is not found here"
      cp -L -- "${where[$name]}" "$bundle/lib/$name"
      queue+=("$bundle/lib/$name")
    done < <(needed_by "$file")
  done
}

hs_part "build"
[[ $(uname -m) != x86_64 ]] || options=(-DCMAKE_CXX_FLAGS=-march=x86-64-v3 "${options[@]}")
HYPERSLAB_CUDA=ON hs_configure "$build" --preset cuda-release -DHYPERSLAB_NATIVE=OFF -DHYPERSLAB_TESTS=ON \
  "-DCMAKE_BUILD_RPATH=\$ORIGIN/../lib" -DCMAKE_EXE_LINKER_FLAGS=-Wl,--enable-new-dtags "${options[@]}"
hs_compile "$build" hyperslab gpu_tests

hs_part "bundle"
rm -rf -- "${bundle:?}/bin" "${bundle:?}/lib" "${bundle:?}/inputs"
mkdir -p -- "$bundle/bin" "$bundle/lib"
mapfile -t programs < <(printf 'hyperslab\n' && grep . "$build/gpu_tests.txt" | cut -d ' ' -f 1)
for program in "${programs[@]}"; do
  cp -- "$build/bin/$program" "$bundle/bin/$program"
  strip -- "$bundle/bin/$program"
done
cp -r -- inputs "$bundle/inputs"
carry "${programs[@]/#/$bundle/bin/}"
cp -- "$build/gpu_tests.txt" "$bundle/gpu_tests.txt"
jobs/gpu-tests.sh --hash >"$bundle/sources.sha256"
hs_commit >"$bundle/commit"

cat >"$bundle/with-libraries" <<'SCRIPT'
#!/usr/bin/env bash
# with-libraries COMMAND...: runs it with the libraries of this folder and, if CUDA came as Python
# packages, with theirs.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
packages=$(python3 - 2>/dev/null <<'PYTHON' || true
import glob, site, sysconfig
roots = [sysconfig.get_path("purelib"), *site.getsitepackages(), site.getusersitepackages()]
print(":".join(p for root in dict.fromkeys(roots) for p in sorted(glob.glob(root + "/nvidia/*/lib"))))
PYTHON
)
export LD_LIBRARY_PATH=$here/lib${packages:+:$packages}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
exec "$@"
SCRIPT
cat >"$bundle/hyperslab" <<'SCRIPT'
#!/usr/bin/env bash
# The program with its libraries: mpirun -np 4 ./hyperslab train inputs/gpt2-124m.yaml
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
exec "$here/with-libraries" "$here/bin/hyperslab" "$@"
SCRIPT
chmod +x -- "$bundle/with-libraries" "$bundle/hyperslab"
hs_say "$bundle: $(du -sh -- "$bundle" | cut -f1), ${#programs[@]} programs"
hs_parts
