// SPDX-License-Identifier: Apache-2.0
#include "backend.hpp"
#include "cuda/tools/check.hpp"
#include "cuda/tools/handles.hpp"

namespace hyperslab::ops::cuda {
namespace {

/// Rows of `row_bytes` each, `from_pitch` and `to_pitch` bytes apart.
struct Rows {
  const void* from = nullptr;
  std::size_t from_pitch = 0;
  void* to = nullptr;
  std::size_t to_pitch = 0;
  std::size_t row_bytes = 0;
  std::size_t count = 0;
};

void copy_rows(Context& ctx, const Rows& rows, const char* op) {
  if (rows.count == 0 || rows.row_bytes == 0) return;
  check_cuda(cudaMemcpy2DAsync(rows.to, rows.to_pitch, rows.from, rows.from_pitch, rows.row_bytes,
                               rows.count, cudaMemcpyDeviceToDevice, backend_of(ctx).stream),
             op, "cudaMemcpy2DAsync");
}

std::size_t row_bytes(CView view) {
  return static_cast<std::size_t>(view.shape().back()) * size_of(view.dtype());
}

std::size_t offset(CView view, Dim first) {
  return static_cast<std::size_t>(first) * size_of(view.dtype());
}

}  // namespace

void take_columns(Context& ctx, CView wide, Dim first, View narrow) {
  copy_rows(ctx,
            {.from = static_cast<const std::byte*>(wide.raw()) + offset(wide, first),
             .from_pitch = row_bytes(wide),
             .to = narrow.raw(),
             .to_pitch = row_bytes(narrow),
             .row_bytes = row_bytes(narrow),
             .count = static_cast<std::size_t>(narrow.rows())},
            "take_columns");
}

void put_columns(Context& ctx, CView narrow, Dim first, View wide) {
  copy_rows(ctx,
            {.from = narrow.raw(),
             .from_pitch = row_bytes(narrow),
             .to = static_cast<std::byte*>(wide.raw()) + offset(wide, first),
             .to_pitch = row_bytes(wide),
             .row_bytes = row_bytes(narrow),
             .count = static_cast<std::size_t>(narrow.rows())},
            "put_columns");
}

}  // namespace hyperslab::ops::cuda
