// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/argmax.hpp"

#include "backend.hpp"
#include "checks.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::ops {

void argmax(Context& ctx, CView x, Dim V, View index) {
  const auto [rows, columns] = x.dims<2>("argmax x");
  require_here(ctx, x, "argmax x");
  require(V > 0 && V <= columns, "argmax: x has fewer columns than it shall look at");
  require_operand(ctx, index, {rows}, DType::i32, "argmax index");
  if (on_meta(ctx, "argmax", 0, {x, index})) return;
  dispatch<cuda::argmax, cpu::argmax>(ctx, x, V, index);
}

}  // namespace hyperslab::ops
