// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>

#include "hyperslab/comm/communicator.hpp"
#include "hyperslab/ops/matmul.hpp"
#include "hyperslab/param/store.hpp"

namespace hyperslab::nn {

/// The ranks that share every layer (Shoeybi et al. 2019), as the layers see them. A group of one
/// is the trivial case: sums are what they are, and nothing is sent.
///
/// With sequence parallelism (Korthikanti et al. 2022, section 4.2.2) the residual stream is cut by
/// rows: of the N = B T rows of a microbatch, in order of (b, t), rank r of t holds rows
/// [r N / t, (r + 1) N / t) as (1, N / t, C). A column-parallel product begins with an all-gather
/// of rows, a row-parallel one ends with a reduce-scatter, in place of one all-reduce.
class TensorGroup {
 public:
  TensorGroup() = default;
  TensorGroup(comm::Communicator* group, bool sequence)
      : group_(group),
        rank_(group == nullptr ? 0 : group->rank()),
        size_(group == nullptr ? 1 : group->size()),
        sequence_(sequence && size_ > 1) {}

  /// The same ranks, as layers see them that work on whole rows on every rank.
  [[nodiscard]] TensorGroup of_whole_rows() const { return {group_, false}; }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] bool is_alone() const { return size_ == 1; }
  [[nodiscard]] bool is_first() const { return rank_ == 0; }
  /// Whether the residual stream is cut by rows.
  [[nodiscard]] bool cuts_rows() const { return sequence_; }
  /// Shape of the residual stream on this rank.
  [[nodiscard]] Shape stream_shape(Dim B, Dim T, Dim C) const {
    return sequence_ ? Shape{1, B * T / size_, C} : Shape{B, T, C};
  }
  /// This rank's shard of a tensor along `dim`, whose size the group's size divides.
  [[nodiscard]] Hyperslab shard(const Shape& shape, int dim) const {
    return split(Hyperslab::whole(shape), dim, rank_, size_);
  }
  /// The placement of a tensor that every rank of several holds whole; with one rank, a shard.
  [[nodiscard]] param::Placement placement(param::Placement whole) const {
    return size_ == 1 ? param::shard(0) : whole;
  }

  /// All rows: `x` itself, or gathered into `full` if rows are cut.
  CView gather(Context& ctx, CView x, View full) const;
  /// The same in two halves, so that work can be enqueued in between.
  [[nodiscard]] comm::Ticket start_gather(Context& ctx, CView x, View full) const;
  /// Sums over the group what every rank has in `partial`: in place (`out` is `partial`), or this
  /// rank's rows of the sum into `out` if rows are cut.
  [[nodiscard]] comm::Ticket start_sum(Context& ctx, View partial, View out) const;
  void sum(Context& ctx, View partial, View out) const;
  /// Pieces, by rows, of a row-parallel product whose sum overlaps it: the sum of one piece travels
  /// while the next is computed (Wang et al. 2023, "Overlap communication with dependent
  /// computation via decomposition"). `inner`: the length of the product's sums on this rank. One
  /// on a CPU, if the sum cuts rows, and if a piece takes less time than the sum before it.
  static constexpr int kMostPieces = 4;
  /// Rows of a piece: a product of fewer leaves processors idle.
  static constexpr Dim kLeastRows = 1024;
  /// Rows of what members write into each other's: with fewer NCCL is as quick.
  static constexpr Dim kLeastShared = 512;
  [[nodiscard]] int pieces(const Context& ctx, Dim rows, Dim inner) const;
  /// Whether members write right into each other's `view` beside computation: then sum_products()
  /// adds up better than start_sum() of a whole product, and of_gathered() than gather().
  [[nodiscard]] bool writes_at_members(CView view) const {
    return size_ > 1 && view.rows() % size_ == 0 && view.rows() >= kLeastShared &&
           group_->is_shared(view);
  }
  /// The sum over the group of products, of each of which product(begin, count, to, accumulate)
  /// enqueues rows [begin, begin + count) of this member's term into `to`: into `out`, or, if rows
  /// are cut, this member's rows of the sum (`term` as term() gives it). Every member owns the rows
  /// that it has if rows are cut. It first computes the rows of the others, which travel while it
  /// computes more; its own product then adds to what the others sent, so that no pass adds; and
  /// its sums travel to the others. All in pieces. What is returned is to be waited for.
  struct Sums {
    std::array<comm::Ticket, kMostPieces> tickets{};
  };
  template <class Product>
  [[nodiscard]] Sums sum_products(Context& ctx, View term, View out, Product&& product) const {
    const View terms = term.as_matrix();
    const Dim width = terms.shape()[1];
    const Dim part = terms.shape()[0] / size_;
    const Dim own = rank_ * part;
    const View sum = sequence_ ? out.as_matrix() : terms.slice(own, part);
    const Dim pieces = std::clamp<Dim>(part / kLeastRows, 1, kMostPieces);
    std::array<comm::Ticket, kMostPieces> sent{};
    Sums sums;
    for (Dim piece = 0; piece <= pieces; ++piece) {
      const Dim begin = part * piece / pieces;
      if (piece < pieces) {
        const Dim count = part * (piece + 1) / pieces - begin;
        for (int i = 1; i < size_; ++i) {
          const Dim first = (rank_ + i) % size_ * part + begin;
          product(first, count, terms.slice(first, count), ops::Accumulate::no);
        }
        sent[static_cast<std::size_t>(piece)] =
            group_->reduce_scatter_others(ctx, terms, sum, begin * width, count * width);
      }
      if (piece == 0) continue;
      const Dim first = part * (piece - 1) / pieces;
      wait(ctx, sent[static_cast<std::size_t>(piece - 1)]);
      product(own + first, begin - first, sum.slice(first, begin - first), ops::Accumulate::yes);
      if (sequence_) continue;
      sums.tickets[static_cast<std::size_t>(piece - 1)] =
          group_->all_gather_piece(ctx, terms, first * width, (begin - first) * width);
    }
    return sums;
  }
  /// If rows are cut: gathers `x` into `full` while work(x, begin, count) does what is to be done
  /// with each row of all, rows [begin, begin + count) of all at a time, of which x has the values;
  /// this member's own first, for which nothing need travel.
  template <class Work>
  void of_gathered(Context& ctx, CView x, View full, Work&& work) const {
    const View all = full.as_matrix();
    const Dim part = all.shape()[0] / size_;
    const Dim own = rank_ * part;
    const comm::Ticket rows = start_gather(ctx, x, full);
    work(x.as_matrix(), own, part);
    wait(ctx, rows);
    if (own > 0) work(all.slice(0, own), 0, own);
    const Dim after = all.shape()[0] - own - part;
    if (after > 0) work(all.slice(own + part, after), own + part, after);
  }
  void wait(Context& ctx, const Sums& sums) const {
    for (const comm::Ticket ticket : sums.tickets) wait(ctx, ticket);
  }
  /// What a row-parallel product puts its term into: `scratch` if rows are cut, else `out` itself.
  [[nodiscard]] View term(View out, View scratch) const { return sequence_ ? scratch : out; }
  /// The views of all ranks, one after the other.
  void all_gather(Context& ctx, CView mine, View all) const;
  /// Ticket 0 stands for nothing to wait for.
  void wait(Context& ctx, comm::Ticket ticket) const;

 private:
  comm::Communicator* group_ = nullptr;
  int rank_ = 0;
  int size_ = 1;
  bool sequence_ = false;
};

}  // namespace hyperslab::nn
