// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/low_rank.hpp"

#include <cstdint>

#include "backend.hpp"
#include "checks.hpp"
#include "cuda/products/low_rank.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::ops {
namespace {

constexpr const char* kName = "low_rank_backward";

Dim rank_of(const LowRankPart& part) { return part.b.shape()[1]; }

void require_parts(Context& ctx, CView dy, const std::vector<LowRankPart>& parts, CView u,
                   View du) {
  require(!parts.empty(), "low_rank_backward: no part");
  require_here(ctx, dy, "low_rank_backward dy");
  const Dim rank = rank_of(parts.front());
  const Dim rows = dy.rows();
  const Dim ranks = static_cast<Dim>(parts.size()) * rank;
  require_rows(ctx, u, rows, ranks, dy.dtype(), "low_rank_backward u");
  require_rows(ctx, du, rows, ranks, dy.dtype(), "low_rank_backward du");
  for (const LowRankPart& part : parts) {
    require(part.first >= 0 && part.count >= 0 && part.first + part.count <= dy.shape().back(),
            "low_rank_backward: a part beyond the last column");
    require_operand(ctx, part.b, {part.count, rank}, dy.dtype(), "low_rank_backward b");
    require_operand(ctx, part.db, {part.count, rank}, statistic_dtype(dy.dtype()),
                    "low_rank_backward db");
  }
}

/// The columns of all parts, which one reading of dy touches.
Dim columns_of(const std::vector<LowRankPart>& parts) {
  Dim columns = 0;
  for (const LowRankPart& part : parts) columns += part.count;
  return columns;
}

void multiply_twice(Context& ctx, CView dy, const std::vector<LowRankPart>& parts, CView u,
                    float scale, Accumulate accumulate, View du) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto& [first, count, b, db] = parts[i];
    const Dim rank = rank_of(parts[i]);
    const Dim column = static_cast<Dim>(i) * rank;
    matmul_columns(ctx, {dy.as_matrix(), first, count}, all_columns(b), scale, Accumulate::no,
                   {du.as_matrix(), column, rank});
    matmul_columns(ctx, {dy.as_matrix(), first, count, Trans::yes}, {u.as_matrix(), column, rank},
                   1, accumulate, all_columns(db));
  }
}

}  // namespace

namespace cuda {

bool suits_low_rank(CView dy, const std::vector<LowRankPart>& parts, CView u, CView du) {
  const auto on_boundary = [](CView view) {
    return reinterpret_cast<std::uintptr_t>(view.raw()) % 16 == 0;
  };
  const Dim rank = rank_of(parts.front());
  const bool short_elements = dy.dtype() == DType::bf16 || dy.dtype() == DType::f16;
  bool suits = short_elements && parts.size() <= kMostLowRankParts && dy.rows() > 0 &&
               (rank == 8 || rank == 16 || rank == 32) && dy.shape().back() % 8 == 0 &&
               on_boundary(dy) && on_boundary(u) && on_boundary(du);
  for (const LowRankPart& part : parts) {
    suits = suits && part.first % 8 == 0 && part.count % 8 == 0 && part.count > 0 &&
            on_boundary(part.b) && on_boundary(part.db);
  }
  return suits;
}

LowRankShape low_rank_shape(CView dy, const std::vector<LowRankPart>& parts) {
  Dim strips = 0;
  for (const LowRankPart& part : parts) strips += low_rank_strips(part.count);
  return low_rank_shape(strips, dy.rows());
}

}  // namespace cuda

void low_rank_backward(Context& ctx, CView dy, const std::vector<LowRankPart>& parts, CView u,
                       float scale, Accumulate accumulate, View du) {
  require_parts(ctx, dy, parts, u, du);
  if (ctx.planned() != Device::cuda || !cuda::suits_low_rank(dy, parts, u, du)) {
    return multiply_twice(ctx, dy, parts, u, scale, accumulate, du);
  }
  const Dim rank = rank_of(parts.front());
  const Dim columns = columns_of(parts);
  const CView read(dy.raw(), dy.dtype(), dy.device(), {dy.rows(), columns});
  const CView b(parts.front().b.raw(), dy.dtype(), dy.device(), {columns, rank});
  const CView db(parts.front().db.raw(), parts.front().db.dtype(), dy.device(), {columns, rank});
  const double flops = 4.0 * static_cast<double>(dy.rows()) * static_cast<double>(columns * rank);
  if (ctx.device() == Device::meta) {
    (void)on_meta(ctx, kName, flops, {read, b, db, u, du},
                  cuda::low_rank_workspace(cuda::low_rank_shape(dy, parts), dy.rows(), rank));
    return;
  }
  if constexpr (kHasCuda) {
    if (!cuda::has_room_for_low_rank(rank)) {
      return multiply_twice(ctx, dy, parts, u, scale, accumulate, du);
    }
    const OpScope scope(ctx, kName);
    cuda::low_rank_backward(ctx, dy, parts, u, scale, accumulate, du);
  }
}

}  // namespace hyperslab::ops
