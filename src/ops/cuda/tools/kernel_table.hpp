// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "hyperslab/core/device.hpp"
#include "hyperslab/core/error.hpp"

// A table has the kernels that compute one op on a GPU, in order of preference. The rows need no
// CUDA, so that any build can say which kernel a problem takes.

namespace hyperslab::ops::cuda {

/// Says in words why a kernel does not compute a problem; empty: it does.
using Reason = std::string_view;

/// The GPUs that run a kernel, as this was built.
enum class Needs : std::uint8_t {
  any_gpu,
  overlap,     ///< compute capability 9.0 and newer: kernels that overlap, clusters
  ring,        ///< overlap, and 227 KiB of shared memory for a block
  warpgroups,  ///< 9.0 alone
};
struct Features {
  bool overlap = false;
  bool ring = false;
  bool warpgroups = false;
  [[nodiscard]] constexpr bool has(Needs needs) const {
    switch (needs) {
      case Needs::any_gpu: return true;
      case Needs::overlap: return overlap;
      case Needs::ring: return ring;
      case Needs::warpgroups: return warpgroups;
    }
    return false;
  }
};
inline constexpr Features kHopper = {true, true, true};
/// The features of the GPU in use, as this was built.
[[nodiscard]] Features features_of_kernels();

/// One row of a table. `Launch` is the signature of the function that enqueues the kernel.
template <class Problem, class Launch>
struct Kernel {
  std::string_view name;
  Needs needs;
  Reason (*suits)(const Problem& problem);
  Launch* launch;              ///< nullptr in builds without CUDA
  std::string_view source{};   ///< file below src/ops/cuda; absent for a library's kernel
  std::string_view kernels{};  ///< names of its kernels in that file, with a space between
};

/// The function for a row: in builds without CUDA it is only declared.
template <auto function>
constexpr auto launch_of() {
  if constexpr (kHasCuda) {
    return function;
  } else {
    return decltype(function){nullptr};
  }
}

/// Says why a row does not compute a problem on GPUs with these features.
template <class Problem, class Launch>
[[nodiscard]] Reason reason_against(const Kernel<Problem, Launch>& kernel, const Problem& problem,
                                    Features features) {
  const Reason reason = kernel.suits(problem);
  if (!reason.empty() || features.has(kernel.needs)) return reason;
  return "another compute capability, or a build without its kernels";
}

/// The first row that computes a problem on GPUs with these features.
template <class Problem, class Launch, std::size_t kRows>
[[nodiscard]] const Kernel<Problem, Launch>& choose(
    const std::array<Kernel<Problem, Launch>, kRows>& table, const Problem& problem,
    Features features) {
  for (const Kernel<Problem, Launch>& kernel : table) {
    if (reason_against(kernel, problem, features).empty()) return kernel;
  }
  throw Error(ExitCode::internal, "no kernel from " + std::string(table.front().name) + " to " +
                                      std::string(table.back().name) + " computes this problem");
}

/// True if views begin at multiples of 16 bytes; absent ones do.
template <class... Views>
[[nodiscard]] bool begin_at_16_bytes(const Views&... views) {
  return ((reinterpret_cast<std::uintptr_t>(views.raw()) % 16 == 0) && ...);
}

}  // namespace hyperslab::ops::cuda
