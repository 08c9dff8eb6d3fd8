// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace hyperslab::ops {

/// The class of a kernel, as far as its name shows it.
enum class KernelClass : std::uint8_t {
  matmul,
  attention,
  softmax,
  elementwise,
  reduction,
  optimizer,
  communication,
  other,
};
inline constexpr int kKernelClasses = 8;
[[nodiscard]] std::string_view name_of(KernelClass kernel_class);

/// `name`: as hyperslab::readable_kernel gives it, of our own kernels, of the libraries that ops
/// call or of NCCL.
[[nodiscard]] KernelClass class_of_kernel(std::string_view name);

/// `op`: the name of an op of the CPU, as hyperslab::OpProfiler gives it.
[[nodiscard]] KernelClass class_of_op(std::string_view op);

/// For hyperslab::Profiler.
[[nodiscard]] inline bool is_communication(std::string_view kernel) {
  return class_of_kernel(kernel) == KernelClass::communication;
}

}  // namespace hyperslab::ops
