// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>

#include "hyperslab/comm/communicator.hpp"
#include "hyperslab/ops/matmul.hpp"
#include "hyperslab/param/store.hpp"

namespace hyperslab::nn {

/// The ranks that share every layer (Shoeybi et al. 2019), as the layers see them. In a group of
/// one every sum has one term, and nothing is sent.
///
/// Sequence parallelism (Korthikanti et al. 2022, section 4.2.2) cuts the residual stream by rows:
/// of the N = B T rows of a microbatch, in order of (b, t), rank r of t holds rows
/// [r N / t, (r + 1) N / t) as (1, N / t, C). A column-parallel product then begins with an
/// all-gather of rows, and a row-parallel one ends with a reduce-scatter. They replace one
/// all-reduce.
class TensorGroup {
 public:
  TensorGroup() = default;
  TensorGroup(comm::Communicator* group, bool sequence)
      : group_(group),
        rank_(group == nullptr ? 0 : group->rank()),
        size_(group == nullptr ? 1 : group->size()),
        sequence_(sequence && size_ > 1) {}

  /// This group for layers that have all rows on every rank.
  [[nodiscard]] TensorGroup of_whole_rows() const { return {group_, false}; }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] bool is_alone() const { return size_ == 1; }
  [[nodiscard]] bool is_first() const { return rank_ == 0; }
  /// True if the residual stream is cut by rows.
  [[nodiscard]] bool cuts_rows() const { return sequence_; }
  /// Shape of the residual stream on this rank.
  [[nodiscard]] Shape stream_shape(Dim B, Dim T, Dim C) const {
    return sequence_ ? Shape{1, B * T / size_, C} : Shape{B, T, C};
  }
  /// This rank's shard of a tensor along `dim`, whose size the group's size divides.
  [[nodiscard]] Hyperslab shard(const Shape& shape, int dim) const {
    return split(Hyperslab::whole(shape), dim, rank_, size_);
  }
  /// The placement of a tensor of which every rank holds all: `whole`. In a group of one: a shard.
  [[nodiscard]] layout::Placement placement(layout::Placement whole) const {
    return size_ == 1 ? layout::shard(0) : whole;
  }

  /// Returns all rows. If rows are cut, it gathers them into `full`; else they are `x`.
  CView gather(Context& ctx, CView x, View full) const;
  /// Begins gather(); wait() ends it. Work that is enqueued in between runs beside it.
  [[nodiscard]] comm::Ticket start_gather(Context& ctx, CView x, View full) const;
  /// Begins to add up all ranks' `partial`; wait() ends it. If rows are cut, `out` gets
  /// this rank's rows of the sum; else `out` is `partial`, and gets the whole sum.
  [[nodiscard]] comm::Ticket start_sum(Context& ctx, View partial, View out) const;
  void sum(Context& ctx, View partial, View out) const;
  /// The most pieces into which a product is cut.
  static constexpr int kMostPieces = 4;
  /// The fewest rows of a piece: a product of fewer leaves processors idle.
  static constexpr Dim kLeastRows = 1024;
  /// The fewest rows, of all ranks, that ranks write into each other's memory: NCCL moves fewer as
  /// quickly.
  static constexpr Dim kLeastShared = 512;
  /// Into how many pieces to cut the rows of a row-parallel product, so that the sum of one piece
  /// travels while the next is computed (Wang et al. 2023, "Overlap communication with dependent
  /// computation via decomposition"). `inner`: the length of the product's sums on this rank. One
  /// piece on a CPU, if rows are cut, and if a piece takes less time than the sum before it.
  [[nodiscard]] int pieces(const Context& ctx, Dim rows, Dim inner) const;
  /// True if sum_products() replaces start_sum() of a whole product: ranks write right into each
  /// other's `out`, and `term` has enough rows for the whole sum.
  [[nodiscard]] bool sums_at_members(CView term, CView out) const {
    return writes_at_members(term) && group_->is_shared(out);
  }
  /// True if of_gathered() replaces gather(): rows are cut, ranks write right into each other's
  /// `full`, and it has enough rows.
  [[nodiscard]] bool gathers_at_members(CView full) const {
    return sequence_ && writes_at_members(full);
  }
  /// Operations to wait for.
  struct Sums {
    std::array<comm::Ticket, kMostPieces> tickets{};
  };
  /// Adds up the results of all ranks' products, while they compute. product(begin, count, to,
  /// accumulate) enqueues rows [begin, begin + count) of this rank's product into `to`, or adds
  /// them to it. `term` comes from term(). `out` is complete after wait() of the returned ticket:
  /// it has this rank's rows of the sum if rows are cut, else the whole sum.
  ///
  /// Each rank owns one of `size()` equal parts of the rows. First it computes the rows that others
  /// own and sends them to their owners. Then it computes its own rows, and adds them to the
  /// others' rows, so that no kernel is needed to add. If rows are not cut, it sends these sums to
  /// the others. It does so piece by piece: one piece travels while the next is computed.
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
  /// Gathers `x` into `full` beside work on its rows; only if rows are cut. work(rows, begin,
  /// count) enqueues the work on rows [begin, begin + count) of `full`, whose values are in `rows`.
  /// It is called for each part of the rows once: first for this rank's rows, which are there
  /// already.
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
  /// Makes work that is enqueued afterwards see the sums.
  void wait(Context& ctx, const Sums& sums) const {
    for (const comm::Ticket ticket : sums.tickets) wait(ctx, ticket);
  }
  /// The view for this rank's term of the sum of a row-parallel product: `scratch` if rows are cut,
  /// else `out`.
  [[nodiscard]] View term(View out, View scratch) const { return sequence_ ? scratch : out; }
  /// Puts the views of all ranks into `all`, in order of rank, and waits for it.
  void all_gather(Context& ctx, CView mine, View all) const;
  /// Makes work that is enqueued afterwards run after the operation; ticket 0 stands for none.
  void wait(Context& ctx, comm::Ticket ticket) const;

 private:
  /// True if ranks write right into each other's view of all rows, beside computation.
  [[nodiscard]] bool writes_at_members(CView all) const {
    return size_ > 1 && all.rows() % size_ == 0 && all.rows() >= kLeastShared &&
           group_->is_shared(all);
  }

  comm::Communicator* group_ = nullptr;
  int rank_ = 0;
  int size_ = 1;
  bool sequence_ = false;
};

}  // namespace hyperslab::nn
