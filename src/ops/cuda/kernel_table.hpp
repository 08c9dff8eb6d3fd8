// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "hyperslab/core/device.hpp"
#include "hyperslab/core/error.hpp"

// A table has the kernels that compute one op on a GPU, in order of preference. The rows need no
// CUDA, so that any build can say which kernel a problem takes.

namespace hyperslab::ops::cuda {

/// Says in words why a kernel does not compute a problem; empty: it does.
using Reason = std::string_view;

/// One row of a table. `Launch` is the signature of the function that enqueues the kernel.
template <class Problem, class Launch>
struct Kernel {
  std::string_view name;
  /// The compute capability of the only GPUs that run it, 10 times the major number and the minor
  /// one; 0: all GPUs run it.
  int capability;
  Reason (*suits)(const Problem& problem);
  Launch* launch;  ///< nullptr in builds without CUDA
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

/// Says why a row does not compute a problem on GPUs of a capability.
template <class Problem, class Launch>
[[nodiscard]] Reason reason_against(const Kernel<Problem, Launch>& kernel, const Problem& problem,
                                    int capability) {
  const Reason reason = kernel.suits(problem);
  if (!reason.empty() || kernel.capability == 0 || kernel.capability == capability) return reason;
  return "another compute capability, or a build without its kernels";
}

/// The first row that computes a problem. `capability`: of the GPU, 0 if this was not built for it.
template <class Problem, class Launch, std::size_t kRows>
[[nodiscard]] const Kernel<Problem, Launch>& choose(
    const std::array<Kernel<Problem, Launch>, kRows>& table, const Problem& problem,
    int capability) {
  for (const Kernel<Problem, Launch>& kernel : table) {
    if (reason_against(kernel, problem, capability).empty()) return kernel;
  }
  throw Error(ExitCode::internal, "no kernel from " + std::string(table.front().name) + " to " +
                                      std::string(table.back().name) + " computes this problem");
}

}  // namespace hyperslab::ops::cuda
