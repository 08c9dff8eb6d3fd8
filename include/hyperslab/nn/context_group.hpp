// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "hyperslab/comm/communicator.hpp"
#include "hyperslab/core/arena.hpp"
#include "hyperslab/ops/attention.hpp"
#include "hyperslab/ops/dropout.hpp"

namespace hyperslab::nn {

/// The ranks that hold other tokens of the same samples, as the layers see them. Of the T tokens of
/// every sample rank r of P holds [r T / P, (r + 1) T / P). All layers but attention take their
/// tokens alone. Attention takes all tokens of one P-th of the heads: an all-to-all brings each
/// rank's rows there, and another one brings the outputs back (Jacobs et al. 2023, "DeepSpeed
/// Ulysses", section 3.1). So every kernel, mask and document works as in a group of one. In a
/// group of one nothing is sent, and rows and heads are the same views.
class ContextGroup {
 public:
  ContextGroup() = default;
  explicit ContextGroup(comm::Communicator* group)
      : group_(group),
        rank_(group == nullptr ? 0 : group->rank()),
        size_(group == nullptr ? 1 : group->size()) {}

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] bool is_alone() const { return size_ == 1; }
  /// Tokens of a sample on all ranks, if there are `tokens` on each.
  [[nodiscard]] Dim all_tokens(Dim tokens) const { return size_ * tokens; }
  /// The first of this rank's tokens in a sample.
  [[nodiscard]] Dim first_token(Dim tokens) const { return rank_ * tokens; }
  /// The heads whose attention this rank computes; the group's size divides both numbers.
  [[nodiscard]] ops::HeadLayout share(const ops::HeadLayout& heads) const {
    return {heads.heads / size_, heads.kv_heads / size_, heads.head_width};
  }
  /// The mask of dropout of values that all ranks together have of a sample.
  [[nodiscard]] ops::Dropout part_of(ops::Dropout dropout) const {
    dropout.sample_part = rank_;
    dropout.sample_parts = size_;
    return dropout;
  }

  /// Sums a view over the group, in place.
  void sum(Context& ctx, View values) const;

  /// Memory of an exchange: of one dtype, with as many elements as a rank's rows.
  struct Buffers {
    View sent;
    View received;
  };
  [[nodiscard]] Buffers take_buffers(Arena& arena, DType dtype, Dim elements) const;
  /// heads (B, T, W / P) = this rank's heads of all ranks' rows (B, T / P, W). The columns of rows
  /// are sections of `widths`, whose sum is W, and each section is cut into P equal parts. Example:
  /// queries, keys and values.
  void to_heads(Context& ctx, std::span<const Dim> widths, CView rows, const Buffers& buffers,
                View heads) const;
  /// The way back: rows = this rank's tokens of all ranks' heads.
  void to_rows(Context& ctx, std::span<const Dim> widths, CView heads, const Buffers& buffers,
               View rows) const;

 private:
  void exchange(Context& ctx, const Buffers& buffers, Dim elements) const;

  comm::Communicator* group_ = nullptr;
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace hyperslab::nn
