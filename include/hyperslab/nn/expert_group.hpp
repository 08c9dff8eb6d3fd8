// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "hyperslab/comm/communicator.hpp"
#include "hyperslab/layout/layout.hpp"
#include "hyperslab/nn/expert_exchange.hpp"

namespace hyperslab::nn {

/// The ranks that hold other experts of the same layers, as the layers see them (Lepikhin et al.
/// 2021, "GShard", section 3.2). Rank r of P holds experts [r E / P, (r + 1) E / P).
class ExpertGroup {
 public:
  /// A group of one: every rank holds all experts.
  ExpertGroup() : exchange_(exchange_by_all_gather(nullptr, 1)) {}
  ExpertGroup(const comm::Communicator& group, std::shared_ptr<const ExpertExchange> exchange)
      : rank_(group.rank()), size_(group.size()), exchange_(std::move(exchange)) {}

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] bool is_alone() const { return size_ == 1; }
  /// This rank's experts, of so many in all.
  [[nodiscard]] Dim here(Dim experts) const { return experts / size_; }
  [[nodiscard]] Dim first(Dim experts) const { return rank_ * here(experts); }
  [[nodiscard]] Dim most_rows(Dim tokens, const ops::RouterRule& rule) const {
    return most_rows_of_rank(tokens, rule, size_);
  }
  [[nodiscard]] Dim rows_at_once(Dim tokens, const ops::RouterRule& rule) const {
    return exchange_->rows_at_once(tokens, rule);
  }
  /// The placement of tensors of one expert.
  [[nodiscard]] layout::Placement placement() const {
    return is_alone() ? layout::replicate() : layout::shard(0);
  }
  [[nodiscard]] const ExpertExchange& exchange() const { return *exchange_; }

 private:
  int rank_ = 0;
  int size_ = 1;
  std::shared_ptr<const ExpertExchange> exchange_;
};

}  // namespace hyperslab::nn
