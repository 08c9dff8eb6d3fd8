// SPDX-License-Identifier: Apache-2.0
#include "library_versions.hpp"

#include <fmt/format.h>

#include "hyperslab/comm/gpus.hpp"
#include "hyperslab/comm/world.hpp"
#include "hyperslab/core/device.hpp"
#include "hyperslab/core/version.hpp"
#include "hyperslab/io/hdf5_version.hpp"
#include "hyperslab/ops/algorithm_cache.hpp"

// OpenBLAS's own, which other libraries do not have.
extern "C" {
[[gnu::weak]] char* openblas_get_config();
}

namespace hyperslab::cli {
namespace {

std::string compiler() {
#if defined(__clang__)
  return "Clang " __clang_version__;
#else
  return "GCC " __VERSION__;
#endif
}

/// Version, threads and kernels of the library that multiplies on CPUs.
std::string blas() {
  return openblas_get_config == nullptr ? "not OpenBLAS" : openblas_get_config();
}

/// The CUDA versions of the build; "off" without the backend.
std::string cuda() {
  return kHasCuda ? fmt::format("{}, {}, cuDNN {}", HYPERSLAB_CUDA_VERSION, ops::gemm_library(),
                                HYPERSLAB_CUDNN_VERSION)
                  : "off in this build";
}

/// Instructions of the processor that the program has kernels for.
std::string vectors() {
  std::string names;
#if defined(__x86_64__)
  const auto add = [&](bool has, const char* name) {
    if (has) names += (names.empty() ? "" : ", ") + std::string(name);
  };
  add(__builtin_cpu_supports("avx2") != 0, "AVX2");
  add(__builtin_cpu_supports("avx512f") != 0, "AVX-512");
  add(__builtin_cpu_supports("avx512vnni") != 0, "AVX512_VNNI");
  add(__builtin_cpu_supports("avx512bf16") != 0, "AVX512_BF16");
#endif
  return names.empty() ? "none that the program asks for" : names;
}

}  // namespace

std::string versions() {
  std::string text = fmt::format("hyperslab {} ({})\n", version(), commit());
  const auto add = [&](const char* name, const std::string& value) {
    text += fmt::format("  {:<10}{}\n", name, value);
  };
  add("compiler", compiler());
  add("MPI", comm::library_version());
  add("HDF5", io::hdf5_version());
  add("BLAS", blas());
  add("CUDA", cuda());
  if (kHasCuda) add("NCCL", comm::nccl_version());
  add("vectors", vectors());
  return text;
}

}  // namespace hyperslab::cli
