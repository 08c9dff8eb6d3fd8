// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/dropout.hpp"

#include "backend.hpp"
#include "dropout_checks.hpp"

namespace hyperslab::ops {

namespace {

/// Throws unless x is whole or a range of the samples' elements.
void require_range(const Context& ctx, const Dropout& dropout, CView x) {
  const Dim each = dropout.elements_per_sample;
  const Dim B = each == 0 ? x.shape()[0] : dropout.sample_position.numel();
  require_dropout(ctx, dropout, B);
  if (!dropout.active()) return;
  const Dim all = each == 0 ? x.numel() : B * each;
  require(each >= 0 && dropout.first_element >= 0 && dropout.first_element + x.numel() <= all,
          "dropout first_element: x ends after the last sample");
  require(dropout.sample_part >= 0 && dropout.sample_part < dropout.sample_parts,
          "dropout sample_part: there are not so many");
  const MaskColumns columns = mask_columns(dropout, x);
  require(columns.first >= 0 && columns.first + columns.here <= columns.total,
          "dropout first_column: the columns are not among total_columns");
  require(columns.are_all() || (columns.here > 0 && each % columns.here == 0 &&
                                dropout.first_element % columns.here == 0),
          "dropout first_column: a part of the columns is of whole rows");
}

void require_operands(const Context& ctx, const Dropout& dropout, CView x, CView y) {
  require_here(ctx, x, "dropout x");
  require(x.shape().rank() > 0, "dropout x: expected (B, ...)");
  require_operand(ctx, y, x.shape(), x.dtype(), "dropout y");
  require_range(ctx, dropout, x);
}

}  // namespace

void dropout(Context& ctx, const Dropout& dropout, CView x, View y) {
  require_operands(ctx, dropout, x, y);
  if (on_meta(ctx, "dropout", 10.0 * static_cast<double>(x.numel()),
              {x, y, dropout.sample_position})) {
    return;
  }
  dispatch<cuda::dropout, cpu::dropout>(ctx, dropout, x, y);
}

void drop_path(Context& ctx, const Dropout& dropout, CView x, View y) {
  require_operands(ctx, dropout, x, y);
  if (on_meta(ctx, "drop_path", static_cast<double>(x.numel()), {x, y, dropout.sample_position})) {
    return;
  }
  dispatch<cuda::drop_path, cpu::drop_path>(ctx, dropout, x, y);
}

}  // namespace hyperslab::ops
