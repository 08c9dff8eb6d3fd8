// SPDX-License-Identifier: Apache-2.0
#include "blas_kernels.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

// OpenBLAS's own, which other libraries do not have.
extern "C" {
[[gnu::weak]] char* openblas_get_corename();
}

namespace hyperslab::cli {
namespace {

constexpr const char* kVariable = "OPENBLAS_CORETYPE";

/// Kernels without AVX2 that OpenBLAS takes for processors it does not know.
constexpr std::array<std::string_view, 7> kWithoutAvx2 = {
    "Prescott", "Core2", "Nehalem", "Sandybridge", "Barcelona", "Bulldozer", "Generic"};

/// OpenBLAS's name of the kernels for the widest vectors here; null without AVX2.
const char* widest_kernels() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") == 0 || __builtin_cpu_supports("fma") == 0) return nullptr;
  const bool avx512 =
      __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  return avx512 ? "SkylakeX" : "Haswell";
#else
  return nullptr;
#endif
}

}  // namespace

void use_kernels_of_processor(char** words) {
  if (openblas_get_corename == nullptr || std::getenv(kVariable) != nullptr) return;
  const std::string_view taken = openblas_get_corename();
  const char* const kernels = widest_kernels();
  if (kernels == nullptr || std::ranges::find(kWithoutAvx2, taken) == kWithoutAvx2.end()) return;
  std::error_code refused;
  // Its own path, by which the system names the process.
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", refused);
  if (refused || ::setenv(kVariable, kernels, 1) != 0) return;
  ::execv(program.c_str(), words);  // returns if the system refuses; then products are slow
}

}  // namespace hyperslab::cli
