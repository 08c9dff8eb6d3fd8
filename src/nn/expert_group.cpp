// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/expert_group.hpp"

#include <vector>

namespace hyperslab::nn {

ExpertGroup::Way ExpertGroup::take_way(Arena& arena, Dim tokens, const ops::RouterRule& rule,
                                       const std::string& label) const {
  const auto take = [&](const Shape& shape, const char* name) {
    return arena.take(DType::i32, shape, label + name);
  };
  Way way;
  way.all_first_rows = take({rule.count + 1}, ".first rows");
  way.first_rows = way.all_first_rows;
  if (is_alone()) return way;
  way.first_rows = take({here(rule.count) + 1}, ".first rows here");
  way.sent = take({rule.count}, ".sent rows");
  way.arrived = take({size_, here(rule.count)}, ".arrived rows");
  way.order = take({most_rows(tokens, rule)}, ".order");
  way.inverse = take({most_rows(tokens, rule)}, ".inverse order");
  return way;
}

void ExpertGroup::agree(Context& ctx, const Way& way) const {
  if (is_alone()) return;
  ops::count_rows(ctx, way.all_first_rows, way.sent);
  {
    const Scope phase(ctx.recorder(), Phase::expert_comm);
    group_->wait(ctx, group_->all_to_all(ctx, way.sent, way.arrived.flat()));
  }
  ops::order_arrivals(ctx, way.arrived, way.first_rows, way.order, way.inverse);
}

Dim ExpertGroup::arrivals(const Context& ctx, const Way& way, Dim sent) const {
  if (is_alone() || ctx.device() == Device::meta) return sent;
  return way.first_rows.data<std::int32_t>()[way.first_rows.numel() - 1];
}

const ExpertGroup::Counts& ExpertGroup::counts_of(const Context& ctx, const Way& way,
                                                  Dim rows) const {
  Counts& counts = *counts_;
  const Dim experts = way.arrived.shape()[1];
  for (std::size_t q = 0; q < counts.to.size(); ++q) {
    const auto member = static_cast<Dim>(q);
    if (ctx.device() == Device::meta) {
      counts.to[q] = counts.from[q] = rows * (member + 1) / size_ - rows * member / size_;
      continue;
    }
    counts.to[q] = counts.from[q] = 0;
    for (Dim e = 0; e < experts; ++e) {
      counts.to[q] += way.sent.data<std::int32_t>()[member * experts + e];
      counts.from[q] += way.arrived.data<std::int32_t>()[member * experts + e];
    }
  }
  return counts;
}

void ExpertGroup::to_experts(Context& ctx, const Way& way, CView rows, View arrival,
                             View experts) const {
  if (is_alone()) return;
  const Dim count = experts.shape()[0];
  const View arrived = arrival.as_matrix().slice(0, count);
  const Counts& counts = counts_of(ctx, way, rows.shape()[0]);
  {
    const Scope phase(ctx.recorder(), Phase::expert_comm);
    group_->wait(ctx, group_->all_to_all_rows(ctx, rows, counts.to, arrived, counts.from));
  }
  ops::gather_rows(ctx, arrived, way.order.slice(0, count), 1, experts);
}

void ExpertGroup::to_tokens(Context& ctx, const Way& way, CView experts, View arrival,
                            View rows) const {
  if (is_alone()) return;
  const Dim count = experts.shape()[0];
  const View arrived = arrival.as_matrix().slice(0, count);
  ops::gather_rows(ctx, experts, way.inverse.slice(0, count), 1, arrived);
  const Counts& counts = counts_of(ctx, way, rows.shape()[0]);
  const Scope phase(ctx.recorder(), Phase::expert_comm);
  group_->wait(ctx, group_->all_to_all_rows(ctx, arrived, counts.from, rows, counts.to));
}

}  // namespace hyperslab::nn
