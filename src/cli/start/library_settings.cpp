// SPDX-License-Identifier: Apache-2.0
#include "library_settings.hpp"

#include <omp.h>
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

constexpr const char* kKernels = "OPENBLAS_CORETYPE";
constexpr const char* kSpins = "GOMP_SPINCOUNT";
/// Some tens of microseconds, as long as a thread takes to sleep and to wake. GCC's OpenMP spins
/// for milliseconds unless it is asked for less.
constexpr const char* kSpinCount = "3000";

/// By these a user chooses how threads wait.
constexpr std::array kWaitVariables = {kSpins, "OMP_WAIT_POLICY", "GOMP_CPU_AFFINITY"};

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

/// True if a setting was made.
bool set_kernels() {
  if (openblas_get_corename == nullptr || std::getenv(kKernels) != nullptr) return false;
  const std::string_view taken = openblas_get_corename();
  const char* const kernels = widest_kernels();
  if (kernels == nullptr || std::ranges::find(kWithoutAvx2, taken) == kWithoutAvx2.end()) {
    return false;
  }
  return ::setenv(kKernels, kernels, 1) == 0;
}

/// True if a setting was made. Ranks that own a GPU are no exception (which rank does is not known
/// here, before the deck is read): it is useful there and harms nothing. Their steps launch kernels
/// from one thread; parallel regions are where data is opened and weights are drawn, before the
/// first step, so that waking a thread costs no step anything. Threads that spin after them take
/// cores from those of NCCL, the loader and the watchdog, and from the ranks of the other GPUs.
bool set_spins() {
  const auto is_set = [](const char* name) { return std::getenv(name) != nullptr; };
  if (omp_get_max_threads() < 2 || std::ranges::any_of(kWaitVariables, is_set)) return false;
  return ::setenv(kSpins, kSpinCount, 1) == 0;
}

}  // namespace

void start_again_with_settings(char** words) {
  const bool kernels_set = set_kernels();
  const bool spins_set = set_spins();
  if (!kernels_set && !spins_set) return;
  std::error_code refused;
  // Its own path, by which the system names the process.
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", refused);
  if (!refused) ::execv(program.c_str(), words);  // returns if the system refuses; then it is slow
}

}  // namespace hyperslab::cli
