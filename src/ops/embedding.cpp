// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/embedding.hpp"

#include <algorithm>

#include "backend.hpp"
#include "checks.hpp"
#include "hyperslab/core/error.hpp"
#include "quantized_checks.hpp"

namespace hyperslab::ops {
namespace {

void require_first_keys(const Context& ctx, CView first_keys, Dim B, Dim T, const char* what) {
  if (first_keys) require_operand(ctx, first_keys, {B, T}, DType::i32, what);
}

}  // namespace

void embedding_forward(Context& ctx, CView tokens, const EmbeddingTables& tables, float scale,
                       View y) {
  const auto& [table, shard, positions, first_position, first_keys] = tables;
  require_dtype(ctx, tokens, DType::i32, "embedding_forward tokens");
  const auto [B, T] = tokens.dims<2>("embedding_forward tokens");
  require_here(ctx, table, "embedding_forward table");
  const auto [table_rows, C] = table.dims<2>("embedding_forward table");
  require_shard(shard, table_rows, "embedding_forward");
  if (positions) {
    require_dtype(ctx, positions, table.dtype(), "embedding_forward positions");
    const Dim T_max = positions.dims<2>("embedding_forward positions")[0];
    require_shape(positions, {T_max, C}, "embedding_forward positions");
    require_position(ctx, first_position, B, "embedding_forward first_position");
    require_first_keys(ctx, first_keys, B, T, "embedding_forward first_keys");
    require(first_position.value + T <= T_max,
            "embedding_forward first_position: the table of positions ends before the sequence");
  }
  require_operand(ctx, y, {B, T, C}, table.dtype(), "embedding_forward y");
  const CView rows = table.slice(0, std::min(shard.count, B * T));
  if (on_meta(ctx, "embedding_forward", 2.0 * static_cast<double>(y.numel()),
              {tokens, rows, positions, y, first_keys})) {
    return;
  }
  dispatch<cuda::embedding_forward, cpu::embedding_forward>(ctx, tokens, tables, scale, y);
}

void quantized_embedding_forward(Context& ctx, CView tokens, const CQuantizedMatrix& table,
                                 const EmbeddingTables& tables, float scale, View y) {
  const auto& [values, shard, positions, first_position, first_keys] = tables;
  require_dtype(ctx, tokens, DType::i32, "quantized_embedding_forward tokens");
  const auto [B, T] = tokens.dims<2>("quantized_embedding_forward tokens");
  require_quantized(ctx, table, "quantized_embedding_forward table");
  require_shard(shard, table.shape[0], "quantized_embedding_forward");
  const Dim C = table.shape[1];
  require_operand(ctx, y, {B, T, C}, y.dtype(), "quantized_embedding_forward y");
  if (positions) {
    const Dim T_max = positions.dims<2>("quantized_embedding_forward positions")[0];
    require_operand(ctx, positions, {T_max, C}, y.dtype(), "quantized_embedding_forward positions");
    require_position(ctx, first_position, B, "quantized_embedding_forward first_position");
    require_first_keys(ctx, first_keys, B, T, "quantized_embedding_forward first_keys");
    require(first_position.value + T <= T_max,
            "quantized_embedding_forward first_position: the table of positions ends before the "
            "sequence");
  }
  const CView rows = table.codes.slice(0, std::min(shard.count, B * T));
  if (on_meta(ctx, "quantized_embedding_forward", 3.0 * static_cast<double>(y.numel()),
              {tokens, rows, positions, y, first_keys})) {
    return;
  }
  dispatch<cuda::quantized_embedding_forward, cpu::quantized_embedding_forward>(ctx, tokens, table,
                                                                                tables, scale, y);
}

void embedding_backward(Context& ctx, const SortedTokens& sorted, CView dy,
                        const VocabularyShard& shard, float scale, Accumulate accumulate,
                        View dtable) {
  const auto& [tokens, sort_index] = sorted;
  require_dtype(ctx, tokens, DType::i32, "embedding_backward tokens");
  const auto [B, T] = tokens.dims<2>("embedding_backward tokens");
  require_operand(ctx, sort_index, {B * T}, DType::i32, "embedding_backward sort_index");
  require_here(ctx, dy, "embedding_backward dy");
  require_here(ctx, dtable, "embedding_backward dtable");
  const auto [table_rows, C] = dtable.dims<2>("embedding_backward dtable");
  require_gradient(ctx, dtable, {table_rows, C}, dy.dtype(), "embedding_backward dtable");
  require_shard(shard, table_rows, "embedding_backward");
  require_shape(dy, {B, T, C}, "embedding_backward dy");
  const View rows =
      accumulate == Accumulate::yes ? dtable.slice(0, std::min(shard.count, B * T)) : dtable;
  if (on_meta(ctx, "embedding_backward", 2.0 * static_cast<double>(dy.numel()),
              {tokens, sort_index, dy, rows})) {
    return;
  }
  dispatch<cuda::embedding_backward, cpu::embedding_backward>(ctx, sorted, dy, shard, scale,
                                                              accumulate, dtable);
}

void position_backward(Context& ctx, CView dy, Dim first_token, CView first_keys,
                       Accumulate accumulate, View dpositions) {
  require_here(ctx, dy, "position_backward dy");
  const auto [B, T, C] = dy.dims<3>("position_backward dy");
  require_first_keys(ctx, first_keys, B, T, "position_backward first_keys");
  require_here(ctx, dpositions, "position_backward dpositions");
  const Dim T_max = dpositions.dims<2>("position_backward dpositions")[0];
  require_gradient(ctx, dpositions, {std::max(first_token + T, T_max), C}, dy.dtype(),
                   "position_backward dpositions");
  if (on_meta(ctx, "position_backward", static_cast<double>(dy.numel()),
              {dy, dpositions, first_keys})) {
    return;
  }
  dispatch<cuda::position_backward, cpu::position_backward>(ctx, dy, first_token, first_keys,
                                                            accumulate, dpositions);
}

void sinusoidal_table(Context& ctx, View table) {
  require_here(ctx, table, "sinusoidal_table table");
  static_cast<void>(table.dims<2>("sinusoidal_table table"));
  if (on_meta(ctx, "sinusoidal_table", 10.0 * static_cast<double>(table.numel()), {table})) return;
  dispatch<cuda::sinusoidal_table, cpu::sinusoidal_table>(ctx, table);
}

}  // namespace hyperslab::ops
