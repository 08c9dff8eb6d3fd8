# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the scripts in jobs/ share: sourced, it goes to the repository's root and defines functions
# and package lists. HYPERSLAB_NO_INSTALL=1 (or the scripts' --no-install) trusts the environment
# as it is: loaded modules, Spack, CMAKE_PREFIX_PATH.
set -euo pipefail

hs_root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# Where the user stands: relative paths on the command line start there.
# shellcheck disable=SC2034
hs_started_in=$PWD
cd -- "$hs_root"
: "${HYPERSLAB_NO_INSTALL:=0}"

# Names are equal in Debian 12 and Ubuntu 24.04 (universe).
# The scripts that source this file read the lists.
# shellcheck disable=SC2034
{
  hs_build_packages=(build-essential cmake ninja-build git pkg-config libopenmpi-dev openmpi-bin
    libhdf5-dev libopenblas-openmp-dev libyaml-cpp-dev libboost-program-options-dev libspdlog-dev
    libfmt-dev nlohmann-json3-dev libpcre2-dev libutf8proc-dev libssl-dev libturbojpeg0-dev libpng-dev ccache)
  hs_analysis_packages=(python3 python3-h5py python3-numpy python3-matplotlib python3-yaml python3-jinja2)
  # Only the PDF of a report needs it.
  hs_pdf_packages=(weasyprint)
  # bible-kjv unpacks the text of bible-kjv-text, which is stored in a format of its own.
  hs_text_packages=(bible-kjv bible-kjv-text)
  hs_test_packages=(python3 libgtest-dev libgmock-dev librapidcheck-dev hdf5-tools)
  # The slow test of the batch scripts plays a cluster; a browser opens reports, and is no must.
  hs_slow_packages=(slurm-wlm chromium)
  # libFuzzer and ThreadSanitizer are of Clang (jobs/fuzz.sh, the preset cpu-tsan).
  hs_fuzz_packages=(clang-16 libclang-rt-16-dev libomp-16-dev)
  # Only checks of style need these, and not every release has them under these names (Ubuntu may
  # carry clang-*-18 alone): what cannot be had is skipped and named.
  hs_lint_packages=(clang-format-16 clang-tidy-16 libomp-16-dev codespell shellcheck yamllint)
}

# Where commands write what nobody reads unless they fail.
hs_logs=${HYPERSLAB_LOGS:-$hs_root/build/logs}

hs_say() { printf '== %s\n' "$*"; }
hs_die() {
  printf 'hyperslab: %s\n' "$2" >&2
  exit "$1"
}

# hs_as_root COMMAND...: runs it as root, at once or through sudo without a password.
hs_as_root() {
  if [[ $(id -u) -eq 0 ]]; then "$@"; else sudo -n -- "$@"; fi
}
hs_can_be_root() {
  [[ $(id -u) -eq 0 ]] || { command -v sudo >/dev/null && sudo -n true 2>/dev/null; }
}

# hs_missing PACKAGE...: the names of those that are not installed, one a line.
hs_missing() {
  local package
  for package in "$@"; do
    # shellcheck disable=SC2016  # the format is dpkg's
    [[ $(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true) == "install ok installed" ]] ||
      printf '%s\n' "$package"
  done
}

# mawk, Debian's awk, would wait for 4 KiB of a pipe.
hs_awk=(awk)
if [[ $(awk -W version 2>/dev/null </dev/null) == mawk* ]]; then hs_awk=(awk -W interactive); fi

# hs_progress: from the output of Ninja or make, the share of the commands that ran: a line that is
# written over on a terminal, else a line at every tenth.
hs_progress() {
  local terminal=0
  [[ ! -t 2 ]] || terminal=1
  # shellcheck disable=SC2016 # a program of awk
  "${hs_awk[@]}" -v terminal="$terminal" '
    match($0, /^\[ *[0-9]+\/[0-9]+\]/) {
      split(substr($0, RSTART + 1, RLENGTH - 2), part, "/")
      percent = int(100 * part[1] / part[2])
    }
    match($0, /^\[ *[0-9]+%\]/) { percent = substr($0, RSTART + 1, RLENGTH - 3) + 0 }
    percent != shown && (terminal || int(percent / 10) != int(shown / 10)) {
      printf(terminal ? "\r   %3d %%" : "   %3d %%\n", percent); fflush(); shown = percent
    }
    END { if (terminal && shown != "") printf("\n") }' >&2
}

# hs_quietly NAME COMMAND...: its output goes to build/logs/NAME.log, a person sees the progress. A
# command that fails shows its errors, or the end of the log.
hs_quietly() {
  local log=$hs_logs/$1.log status=0
  shift
  mkdir -p -- "$hs_logs"
  "$@" 2>&1 | tee -- "$log" | hs_progress || status=${PIPESTATUS[0]}
  ((status != 0)) || return 0
  grep -E -m 40 '^FAILED|error:|CMake Error|^E: ' "$log" >&2 || tail -n 30 -- "$log" >&2
  printf 'all output: %s\n' "$log" >&2
  return "$status"
}

hs_apt() {
  hs_as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 \
    -o Dpkg::Use-Pty=0 -o Acquire::Retries=3 "$@" >&2
}

# Lists of packages are brought up to date once a script.
hs_apt_updated=0
hs_apt_install() {
  if ((hs_apt_updated == 0)); then
    hs_quietly apt-update hs_apt update || return
    hs_apt_updated=1
  fi
  hs_quietly apt-install hs_apt install --no-install-recommends "$@"
}

# hs_install PACKAGE...: installs those that are missing. Without root, or if packages are not
# Debian's, says what is missing and ends with 2.
hs_install() {
  [[ $HYPERSLAB_NO_INSTALL == 1 ]] && return 0
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    hs_require_tools
    return 0
  fi
  local missing
  mapfile -t missing < <(hs_missing "$@")
  ((${#missing[@]} == 0)) && return 0
  if ! hs_can_be_root; then
    hs_die 2 "missing packages: ${missing[*]}
They need root: apt-get install --no-install-recommends ${missing[*]}
or load modules for: GCC 12 or newer, CMake 3.25, MPI, HDF5, OpenBLAS, yaml-cpp, Boost, spdlog, fmt,
nlohmann_json, PCRE2, utf8proc, OpenSSL, Python with h5py, NumPy, matplotlib, PyYAML and Jinja2 (tests: GoogleTest, RapidCheck),
and run this again with HYPERSLAB_NO_INSTALL=1."
  fi
  hs_say "installing ${missing[*]}"
  hs_apt_install "${missing[@]}" || hs_die 2 "apt-get could not install: ${missing[*]}"
}

# Another system than Debian: modules must have brought these; CMake finds the rest or names it.
hs_require_tools() {
  local tool missing=()
  for tool in cmake c++ mpicxx mpirun git; do
    command -v "$tool" >/dev/null || missing+=("$tool")
  done
  ((${#missing[@]} == 0)) || hs_die 2 "not found: ${missing[*]}; load modules for: GCC 12 or newer, \
CMake 3.25, MPI, HDF5, OpenBLAS, yaml-cpp, Boost, spdlog, fmt, nlohmann_json, PCRE2, utf8proc, OpenSSL"
}

# hs_install_optional PACKAGE...: installs those that can be had, one by one; never an error.
hs_install_optional() {
  [[ $HYPERSLAB_NO_INSTALL == 1 ]] && return 0
  command -v dpkg-query >/dev/null && command -v apt-get >/dev/null && hs_can_be_root || return 0
  local missing package
  mapfile -t missing < <(hs_missing "$@")
  ((${#missing[@]} == 0)) && return 0
  hs_say "installing ${missing[*]}"
  hs_apt_install "${missing[@]}" && return 0
  for package in "${missing[@]}"; do
    hs_apt_install "$package" 2>/dev/null || hs_say "not to be had here: $package"
  done
}

# Cores that this process may use: affinity, and the CPU quota of a container.
hs_cores() {
  local cores quota period
  cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
  if read -r quota period 2>/dev/null </sys/fs/cgroup/cpu.max && [[ $quota != max ]]; then
    local allowed=$(((quota + period - 1) / period))
    ((allowed < cores)) && cores=$allowed
  fi
  printf '%d\n' "$cores"
}

# Compilers at once: as many as cores, but each needs about 1 GiB.
hs_jobs() {
  local jobs memory_gib
  jobs=$(hs_cores)
  memory_gib=$(awk '/^MemAvailable:/ {print int($2 / 1048576)}' /proc/meminfo)
  ((memory_gib < jobs)) && jobs=$memory_gib
  printf '%d\n' $((jobs > 0 ? jobs : 1))
}

# hs_fresh FOLDER: --fresh if FOLDER was configured for other sources (a copied tree).
hs_fresh() {
  if [[ -f $1/CMakeCache.txt ]] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$hs_root" \
    "$1/CMakeCache.txt"; then
    printf -- '--fresh\n'
  fi
}

# hs_configure FOLDER [CMAKE-OPTION...]: Release, Ninja if it is there. On a machine with a GPU and a
# CUDA toolkit, libraries of CUDA that are missing are installed, and CMake runs again.
hs_configure() {
  local folder=$1 options=() missing status=0
  shift
  mapfile -t options < <(hs_fresh "$folder")
  if ((${#options[@]} > 0)) || [[ ! -f $folder/CMakeCache.txt ]]; then
    command -v ninja >/dev/null && options+=(-G Ninja)
  fi
  # AUTO builds the CUDA backend if there are a toolkit and a driver.
  options+=("-DHYPERSLAB_CUDA=${HYPERSLAB_CUDA:-AUTO}" -DCMAKE_BUILD_TYPE=Release "$@")
  rm -f -- "$folder/cuda_missing.txt"
  mkdir -p -- "$hs_logs"
  hs_quietly configure cmake -S . -B "$folder" "${options[@]}" 2>"$hs_logs/configure.errors" || status=$?
  mapfile -t missing < <(cat -- "$folder/cuda_missing.txt" 2>/dev/null)
  if ((${#missing[@]} > 0)) && hs_install_cuda "$folder" "${missing[@]}"; then
    status=0
    hs_quietly configure cmake -S . -B "$folder" "${options[@]}" || status=$?
  else
    cat -- "$hs_logs/configure.errors" >&2
  fi
  grep -E '^-- CUDA backend' "$hs_logs/configure.log" >&2 || true
  return "$status"
}

# hs_compile FOLDER [TARGET...]
hs_compile() {
  local folder=$1 target=()
  shift
  (($# > 0)) && target=(--target "$@")
  hs_quietly build cmake --build "$folder" --parallel "$(hs_jobs)" "${target[@]}"
}

# hs_install_cuda FOLDER PART...: what CMake misses of toolkit, cudnn, nccl and cudnn-frontend: from
# packages of NVIDIA or the distribution where root has them, else as Python wheels in FOLDER/wheels.
# Fails with one line if a part cannot be had.
hs_install_cuda() {
  local folder=$1 part major python wheels=()
  shift
  [[ $HYPERSLAB_NO_INSTALL == 1 ]] && return 1
  if [[ " $* " == *" toolkit "* ]]; then
    hs_say "no CUDA backend: a GPU is here, but no CUDA toolkit: install one (cuda-toolkit of NVIDIA's repository,
   nvidia-cuda-toolkit of the distribution), or load its module, and run this again"
    return 1
  fi
  major=$("$(hs_nvcc)" --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
  for part in "$@"; do
    hs_install_cuda_package "$part" "$major" && continue
    case $part in
      cudnn-frontend) wheels+=(nvidia-cudnn-frontend) ;;
      *) wheels+=("nvidia-$part-cu$major") ;;
    esac
  done
  ((${#wheels[@]} > 0)) || return 0
  if ! python=$(hs_pip); then
    hs_say "no CUDA backend: not found: $*; install pip and run this again, or: pip install --target $folder/wheels ${wheels[*]}"
    return 1
  fi
  hs_say "installing ${wheels[*]} into $folder/wheels"
  hs_quietly wheels "$python" -m pip install --disable-pip-version-check --root-user-action=ignore \
    --no-deps --upgrade --target "$folder/wheels" "${wheels[@]}" && return 0
  hs_say "no CUDA backend: pip could not install ${wheels[*]}; install them by hand (docs/clusters.md) and run this again"
  return 1
}

# hs_install_cuda_package PART CUDA-MAJOR: by apt, if a package of that CUDA is to be had.
hs_install_cuda_package() {
  local cuda_packages
  case $1 in
    cudnn) cuda_packages=("libcudnn9-dev-cuda-$2") ;;
    nccl) cuda_packages=(libnccl-dev libnccl2) ;;
    *) return 1 ;;
  esac
  command -v apt-cache >/dev/null && hs_can_be_root || return 1
  local candidate
  candidate=$(apt-cache policy "${cuda_packages[0]}" | sed -n 's/^ *Candidate: //p')
  # NVIDIA's NCCL says in its version which CUDA it is of; 2.28 is the oldest that will do.
  [[ -n $candidate && $candidate != "(none)" ]] || return 1
  if [[ $1 == nccl ]]; then
    [[ $candidate == *+cuda$2.* ]] && dpkg --compare-versions "$candidate" ge 2.28 || return 1
  fi
  hs_say "installing ${cuda_packages[*]}"
  hs_apt_install "${cuda_packages[@]}"
}

hs_nvcc() { command -v nvcc || printf '%s\n' "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc"; }

# hs_pip: a python3 that has pip; installs Debian's where root can.
hs_pip() {
  local python
  for python in python3 /usr/bin/python3; do
    if "$python" -m pip --version >/dev/null 2>&1; then
      command -v "$python"
      return 0
    fi
  done
  hs_install_optional python3-pip >&2
  /usr/bin/python3 -m pip --version >/dev/null 2>&1 || return 1
  printf '/usr/bin/python3\n'
}

# The first python3 that has what analysis/ needs; ends with 2 if there is none.
hs_python() {
  local python
  for python in python3 /usr/bin/python3; do
    if "$python" -c 'import h5py, jinja2, matplotlib, numpy, yaml' >/dev/null 2>&1; then
      command -v "$python"
      return 0
    fi
  done
  hs_die 2 "no python3 with h5py, NumPy, matplotlib, PyYAML and Jinja2: install python3-h5py python3-numpy \
python3-matplotlib python3-yaml python3-jinja2 or load a module"
}

# hs_mpirun RANKS COMMAND...: on this machine, as root too, with more ranks than cores too. Unbound
# ranks share all cores: the program decides on threads and yielding. Containers may forbid a rank
# to read another's memory. After Ctrl-C mpirun waits 5 s, sends SIGTERM, at which `train` saves, and
# kills the ranks 5 s later.
hs_mpirun() {
  local ranks=$1
  shift
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none \
    OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_odls_base_sigkill_timeout=5 \
    mpirun --quiet -np "$ranks" "$@" </dev/null
}

# hs_sources_hash PATH...: of the files there that git knows or would add; all of them if there is
# no checkout.
hs_sources_hash() {
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files --cached --others --exclude-standard -- "$@"
  else
    find "$@" -type f
  fi | LC_ALL=C sort -u | while IFS= read -r file; do
    [[ ! -f $file ]] || printf '%s\0' "$file"
  done | xargs -0 sha256sum | sha256sum | cut -d ' ' -f 1
}
# hs_commit: of the checkout, with "+" at its end if something is not committed; HYPERSLAB_COMMIT says it of sources that
# were copied without one.
hs_commit() {
  git describe --always --abbrev=12 --dirty=+ 2>/dev/null || printf '%s\n' "${HYPERSLAB_COMMIT:-unknown}"
}
# hs_check_record FILE HASH REMEDY: whether recorded results are of the sources with that hash.
hs_check_record() {
  local found
  if [[ ! -f $1 ]]; then
    printf 'STALE: there is no %s; %s\n' "$1" "$3"
    return 0
  fi
  found=$(sed -n 's/.*"sources_sha256": "\([0-9a-f]*\)".*/\1/p' "$1")
  if [[ $found == "$2" ]]; then
    printf 'current: %s is of the present sources\n' "$1"
  else
    printf 'STALE: %s is of other sources; %s\n' "$1" "$3"
  fi
}

# hs_junit FILE NAME: a number of what CTest left with --output-junit, such as tests or failures.
hs_junit() {
  local value
  value=$(grep -o "\b$2=\"[0-9]*\"" "$1" 2>/dev/null | head -n 1 | tr -cd '0-9') || true
  printf '%d\n' "${value:-0}"
}

# hs_record_options SCRIPT LAST-LINE RECORD OPTION...: of a script that writes a record, whose lines 3 to LAST-LINE say
# what it does: --no-install, --help, and another file than RECORD. Sets record.
# shellcheck disable=SC2034  # the script reads record
hs_record_options() {
  local script=$1 last=$2
  record=$3
  shift 3
  while (($# > 0)); do
    case $1 in
      --no-install) HYPERSLAB_NO_INSTALL=1 ;;
      -h | --help)
        sed -n "3,${last}s/^# //p" "$hs_root/$script"
        exit 0
        ;;
      -*) hs_die 2 "$script: unknown option $1; see $script --help" ;;
      /*) record=$1 ;;
      *) record=$(realpath -m -- "$hs_started_in/$1") ;;
    esac
    shift
  done
}

# hs_part NAME: begins a part of the work; its seconds are kept for hs_parts, which prints them all.
hs_part_names=()
hs_part_starts=()
hs_part() {
  hs_part_names+=("$1")
  hs_part_starts+=("$SECONDS")
  hs_say "$1"
}
hs_parts() {
  local i end
  hs_part_starts+=("$SECONDS")
  for i in "${!hs_part_names[@]}"; do
    end=${hs_part_starts[i + 1]}
    printf '%6d s  %s\n' $((end - hs_part_starts[i])) "${hs_part_names[i]}"
  done
  printf '%6d s  total\n' "$SECONDS"
}
