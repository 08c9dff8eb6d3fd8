// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "hyperslab/comm/communicator.hpp"
#include "hyperslab/core/arena.hpp"
#include "hyperslab/layout/layout.hpp"
#include "hyperslab/ops/experts.hpp"

namespace hyperslab::nn {

/// The ranks that hold other experts of the same layers, as the layers see them (Lepikhin et al.
/// 2021, "GShard", section 3.2). Rank r of P holds experts [r E / P, (r + 1) E / P). The rows of a
/// rank's tokens, ordered by expert, travel to the ranks of their experts, and results come back
/// the same way. An expert sees its rows ordered by rank, then by token, which is the order of all
/// tokens in a group of one. In a group of one nothing is sent, and both are the same views.
class ExpertGroup {
 public:
  ExpertGroup() = default;
  explicit ExpertGroup(comm::Communicator* group)
      : group_(group),
        rank_(group == nullptr ? 0 : group->rank()),
        size_(group == nullptr ? 1 : group->size()),
        counts_(std::make_shared<Counts>(static_cast<std::size_t>(size_))) {}

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] bool is_alone() const { return size_ == 1; }
  /// This rank's experts, of so many in all.
  [[nodiscard]] Dim here(Dim experts) const { return experts / size_; }
  [[nodiscard]] Dim first(Dim experts) const { return rank_ * here(experts); }
  /// The most rows that this rank's experts get, if every rank has so many tokens: no token is left
  /// out, so memory is planned for all tokens coming here.
  [[nodiscard]] Dim most_rows(Dim tokens, const ops::RouterRule& rule) const {
    return size_ * tokens * std::min(rule.active, here(rule.count));
  }
  /// The placement of tensors of one expert.
  [[nodiscard]] layout::Placement placement() const {
    return is_alone() ? layout::replicate() : layout::shard(0);
  }

  /// The way of the rows of a microbatch. Views of counts and orders are i32, on the host's side of
  /// memory. In a group of one both
  /// first_rows are one view, and the others absent.
  struct Way {
    View all_first_rows;  ///< (E + 1): this rank's rows of every expert, ops::sort_by_expert()
    View first_rows;      ///< (E / P + 1): all ranks' rows of this rank's experts
    View sent;            ///< (E): rows for every expert
    View arrived;         ///< (P, E / P): rows of every rank
    View order;           ///< (most rows): the place on arrival of an expert's row
    View inverse;         ///< (most rows): the other way round
  };
  [[nodiscard]] Way take_way(Arena& arena, Dim tokens, const ops::RouterRule& rule,
                             const std::string& label) const;
  /// Agrees on the numbers of rows, from all_first_rows. Waits for the group.
  void agree(Context& ctx, const Way& way) const;
  /// Rows that this rank's experts got; on `meta` as many as this rank sends, as if loads were
  /// equal.
  [[nodiscard]] Dim arrivals(const Context& ctx, const Way& way, Dim sent) const;
  /// rows: (R, C) in the order of all_first_rows -> experts: (arrivals, C) in that of first_rows.
  /// arrival: memory of at least so many rows.
  void to_experts(Context& ctx, const Way& way, CView rows, View arrival, View experts) const;
  /// The way back. experts: (arrivals, C); rows: (R, C).
  void to_tokens(Context& ctx, const Way& way, CView experts, View arrival, View rows) const;

 private:
  /// Rows to and from every member; their memory stays from pass to pass.
  struct Counts {
    explicit Counts(std::size_t ranks) : to(ranks), from(ranks) {}
    std::vector<Dim> to;
    std::vector<Dim> from;
  };
  [[nodiscard]] const Counts& counts_of(const Context& ctx, const Way& way, Dim rows) const;

  comm::Communicator* group_ = nullptr;
  int rank_ = 0;
  int size_ = 1;
  std::shared_ptr<Counts> counts_;
};

}  // namespace hyperslab::nn
