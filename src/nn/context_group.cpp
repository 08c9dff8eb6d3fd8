// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/context_group.hpp"

#include "hyperslab/core/error.hpp"
#include "hyperslab/ops/columns.hpp"

namespace hyperslab::nn {
namespace {

/// Walks over the blocks of a buffer of an exchange: for each rank a matrix (B, tokens, width / P)
/// of every section, one after the other. visit(rank, first column of the section, its width on a
/// rank, the matrix)
template <class Visit>
void for_blocks(View buffer, int ranks, Dim B, Dim tokens, std::span<const Dim> widths,
                Visit&& visit) {
  Dim begin = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    Dim column = 0;
    for (const Dim width : widths) {
      const Dim part = width / ranks;
      const View block = buffer.slice(begin, B * tokens * part).reshaped({B, tokens, part});
      visit(rank, column, part, block);
      begin += B * tokens * part;
      column += width;
    }
  }
}

/// Rows [first, first + count) of sample b.
template <class AnyView>
AnyView tokens_of(AnyView heads, Dim b, Dim first, Dim count) {
  const auto [B, T, width] = heads.template dims<3>("heads of a context group");
  return heads.reshaped({B * T, width}).slice(b * T + first, count);
}

}  // namespace

ContextGroup::Buffers ContextGroup::take_buffers(Arena& arena, DType dtype, Dim elements) const {
  if (is_alone()) return {};
  return {arena.take(dtype, {elements}, "context.sent"),
          arena.take(dtype, {elements}, "context.received")};
}

void ContextGroup::sum(Context& ctx, View values) const {
  if (is_alone()) return;
  const Scope phase(ctx.recorder(), Phase::context_comm);
  group_->wait(ctx, group_->all_reduce(ctx, values, comm::ReduceOp::sum));
}

void ContextGroup::exchange(Context& ctx, const Buffers& buffers, Dim elements) const {
  const Scope phase(ctx.recorder(), Phase::context_comm);
  group_->wait(ctx, group_->all_to_all(ctx, buffers.sent.slice(0, elements),
                                       buffers.received.slice(0, elements)));
}

void ContextGroup::to_heads(Context& ctx, std::span<const Dim> widths, CView rows,
                            const Buffers& buffers, View heads) const {
  if (is_alone()) return;
  const auto [B, tokens, all] = rows.dims<3>("rows of a context group");
  for_blocks(buffers.sent, size_, B, tokens, widths,
             [&](int rank, Dim column, Dim part, View block) {
               ops::take_columns(ctx, rows, column + rank * part, block);
             });
  exchange(ctx, buffers, rows.numel());
  for_blocks(buffers.received, size_, B, tokens, widths,
             [&, n = tokens](int rank, Dim column, Dim /*part*/, View block) {
               for (Dim b = 0; b < block.shape()[0]; ++b) {
                 ops::put_columns(ctx, block.as_matrix().slice(b * n, n), column / size_,
                                  tokens_of(heads, b, rank * n, n));
               }
             });
}

void ContextGroup::to_rows(Context& ctx, std::span<const Dim> widths, CView heads,
                           const Buffers& buffers, View rows) const {
  if (is_alone()) return;
  const auto [B, tokens, all] = rows.dims<3>("rows of a context group");
  for_blocks(buffers.sent, size_, B, tokens, widths,
             [&, n = tokens](int rank, Dim column, Dim /*part*/, View block) {
               for (Dim b = 0; b < block.shape()[0]; ++b) {
                 ops::take_columns(ctx, tokens_of(heads, b, rank * n, n), column / size_,
                                   block.as_matrix().slice(b * n, n));
               }
             });
  exchange(ctx, buffers, rows.numel());
  for_blocks(buffers.received, size_, B, tokens, widths,
             [&](int rank, Dim column, Dim part, View block) {
               ops::put_columns(ctx, block, column + rank * part, rows);
             });
}

}  // namespace hyperslab::nn
