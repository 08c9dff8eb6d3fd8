// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/columns.hpp"

#include "backend.hpp"
#include "checks.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::ops {
namespace {

void require_columns(Context& ctx, CView wide, Dim first, CView narrow) {
  require_here(ctx, wide, "columns wide");
  require_here(ctx, narrow, "columns narrow");
  require(wide.dtype() == narrow.dtype(), "columns: two dtypes");
  require(leading(wide.shape()) == leading(narrow.shape()), "columns: other rows");
  require(first >= 0 && first + narrow.shape().back() <= wide.shape().back(),
          "columns: beyond the last one");
}

}  // namespace

void take_columns(Context& ctx, CView wide, Dim first, View narrow) {
  require_columns(ctx, wide, first, narrow);
  if (on_meta(ctx, "take_columns", 0, {narrow, narrow})) return;  // read and written
  dispatch<cuda::take_columns, cpu::take_columns>(ctx, wide, first, narrow);
}

void put_columns(Context& ctx, CView narrow, Dim first, View wide) {
  require_columns(ctx, wide, first, narrow);
  if (on_meta(ctx, "put_columns", 0, {narrow, narrow})) return;
  dispatch<cuda::put_columns, cpu::put_columns>(ctx, narrow, first, wide);
}

}  // namespace hyperslab::ops
