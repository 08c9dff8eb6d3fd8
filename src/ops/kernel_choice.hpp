// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "cuda/tools/kernel_table.hpp"
#include "hyperslab/core/context.hpp"

namespace hyperslab::ops {

/// On `meta`, if a GPU, Hopper, is planned: counts in the ledger which row of a table a problem
/// takes, and why other rows do not suit. text(): the problem in words.
template <class Problem, class Launch, std::size_t kRows, class Text>
void note_kernel(Context& ctx, std::string_view op,
                 const std::array<cuda::Kernel<Problem, Launch>, kRows>& table,
                 const Problem& problem, Text&& text) {
  if (ctx.device() != Device::meta || ctx.planned() != Device::cuda) return;
  KernelChoice choice;
  for (const auto& kernel : table) {
    const cuda::Reason reason = cuda::reason_against(kernel, problem, cuda::kHopper);
    if (choice.kernel.empty() && reason.empty()) {
      choice.kernel = kernel.name;
      choice.source = kernel.source;
      if (!kernel.kernels.empty()) choice.source += ": " + std::string(kernel.kernels);
      continue;
    }
    auto& rows = choice.kernel.empty() ? choice.before : choice.after;
    rows.push_back({std::string(kernel.name), std::string(reason)});
  }
  ctx.ledger().add_kernel(op, text(), choice);
}

}  // namespace hyperslab::ops
