// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "hyperslab/nn/expert_group.hpp"
#include "hyperslab/ops/elementwise.hpp"

namespace hyperslab::nn {
namespace {

class AllGather final : public ExpertExchange {
 public:
  AllGather(comm::Communicator* group, double bound)
      : group_(group),
        bound_(bound),
        rank_(group == nullptr ? 0 : group->rank()),
        size_(group == nullptr ? 1 : group->size()) {}

  [[nodiscard]] Way take_way(Arena& arena, Dim tokens, const ops::RouterRule& rule,
                             const std::string& label) const override {
    const auto take = [&](const Shape& shape, const char* name) {
      return arena.take(DType::i32, shape, label + name);
    };
    const Dim E = rule.count / size_;
    Way way;
    way.first_rows = take({E + 1}, ".first rows");
    way.pairs = take({most_rows_of_rank(tokens, rule, size_)}, ".pairs");
    way.rows = take({size_ * tokens, rule.active}, ".rows");
    way.at_once = rows_at_once(tokens, rule);
    if (is_alone()) return way;
    way.used = way.first_rows.slice(E, 1);
    if (const Dim parts = most_parts(rule); parts > 1) {
      way.part_first = take({parts, E + 1}, ".first rows of parts");
    }
    way.chosen = take({size_ * tokens, rule.active}, ".chosen of all");
    return way;
  }

  [[nodiscard]] Room take_room(Arena& arena, const Sizes& sizes,
                               const ops::RouterRule& rule) const override {
    Room room;
    if (is_alone()) return room;
    const Dim all = size_ * sizes.tokens;
    room.tokens = arena.take(sizes.compute, {all, sizes.width}, "tokens of expert ranks");
    room.terms = arena.take(sizes.compute, {all, sizes.width}, "terms of expert ranks");
    if (sizes.trains) {
      room.inputs = arena.take(sizes.compute, {all, sizes.width}, "inputs of expert ranks");
    }
    room.received =
        arena.take(sizes.compute, {sizes.tokens, sizes.width}, "terms of another expert rank");
    room.weights = arena.take(sizes.statistics, {all, rule.active}, "weights of expert ranks");
    return room;
  }

  void sort(Context& ctx, CView chosen, CView weights, const Way& way,
            const Room& room) const override {
    const Dim first = rank_ * (way.first_rows.numel() - 1);
    const Transfer choices = gather(ctx, chosen, way.chosen);
    const Transfer of_pairs = gather(ctx, weights, room.weights);
    wait(ctx, choices);
    ops::sort_by_expert(ctx, choices.values, first, way.first_rows, way.pairs, way.rows);
    if (way.part_first) ops::cut_first_rows(ctx, way.first_rows, way.at_once, way.part_first);
    wait(ctx, of_pairs);
  }

  [[nodiscard]] Dim rows_at_once(Dim tokens, const ops::RouterRule& rule) const override {
    const auto equal = static_cast<double>(tokens * rule.active);
    return std::min(most_rows_of_rank(tokens, rule, size_),
                    static_cast<Dim>(std::ceil(bound_ * equal)));
  }

  [[nodiscard]] Dim rows_here(const Context& ctx, const Way& way, Dim own,
                              Dim most) const override {
    if (is_alone() || ctx.device() == Device::meta) return own;
    return ctx.device() == Device::cpu ? Dim{*way.used.data<std::int32_t>()} : most;
  }

  void weights_to_experts(Context& ctx, const Way& way, const Room& room, CView weights,
                          View here) const override {
    const CView all = is_alone() ? weights : CView(room.weights);
    ops::gather_rows(ctx, all.reshaped({all.numel(), 1}), way.pairs.slice(0, here.numel()), 1,
                     here.reshaped({here.numel(), 1}), way.used);
  }

  [[nodiscard]] Transfer start_to_experts(Context& ctx, CView tokens, View all) const override {
    return gather(ctx, tokens, all);
  }

  [[nodiscard]] ops::GatheredRows to_experts(Context& ctx, const Way& way, const Room& /*room*/,
                                             Transfer& tokens, const Part& part,
                                             View here) const override {
    wait(ctx, tokens);
    tokens.ticket = 0;
    ops::GatheredRows rows(tokens.values);
    rows.pairs = way.pairs.slice(part.first, here.shape()[0]);
    rows.divisor = way.rows.shape()[1];
    rows.room = here;
    rows.used = part.used;
    return rows;
  }

  void add_rows(Context& ctx, const Way& way, const Room& room, const Part& part, View here,
                View tokens) const override {
    const auto accumulate = part.is_first() ? ops::Accumulate::no : ops::Accumulate::yes;
    ops::sum_rows(ctx, here, way.rows, is_alone() ? tokens : room.terms,
                  {part.first, accumulate, part.used});
  }

  [[nodiscard]] Transfer start_to_tokens(Context& ctx, const Room& room,
                                         View tokens) const override {
    if (is_alone()) return {};
    if (!group_->is_shared(room.terms)) {
      return {group_->reduce_scatter(ctx, room.terms, tokens), {}};
    }
    return {group_->reduce_scatter_others(ctx, room.terms, room.received, 0, room.received.numel()),
            room.received};
  }

  void to_tokens(Context& ctx, const Room& room, const Transfer& sums, View tokens) const override {
    wait(ctx, sums);
    if (!sums.values) return;
    const Dim own = tokens.shape()[0];
    ops::add(ctx, room.terms.slice(rank_ * own, own), sums.values, tokens);
  }

  [[nodiscard]] Transfer start_weights_to_tokens(Context& ctx, const Way& way, const Room& room,
                                                 CView here, View weights) const override {
    const View all = is_alone() ? weights : room.weights;
    const Dim pairs = way.rows.numel();
    ops::gather_rows(ctx, here.reshaped({here.numel(), 1}), way.rows.reshaped({pairs}), 1,
                     all.reshaped({pairs, 1}));
    if (is_alone()) return {};
    return {group_->reduce_scatter(ctx, all, weights), weights};
  }

  void wait(Context& ctx, const Transfer& transfer) const override {
    if (transfer.ticket == 0) return;
    const Scope phase(ctx.recorder(), Phase::expert_comm);
    group_->wait(ctx, transfer.ticket);
  }

 private:
  [[nodiscard]] bool is_alone() const { return size_ == 1; }

  /// All ranks' values, in `all`; in a group of one they are `own`.
  Transfer gather(Context& ctx, CView own, View all) const {
    if (is_alone()) return {0, own};
    return {group_->all_gather(ctx, own, all), all};
  }

  /// Parts of rows_at_once() that hold all rows, of any number of tokens.
  [[nodiscard]] Dim most_parts(const ops::RouterRule& rule) const {
    const auto most = static_cast<double>(most_rows_of_rank(1, rule, size_));
    return static_cast<Dim>(std::ceil(most / (bound_ * static_cast<double>(rule.active))));
  }

  comm::Communicator* group_;
  double bound_;  ///< rows in memory at once, divided by those of a rank's tokens
  int rank_;
  int size_;
};

}  // namespace

ExpertExchange::Way ExpertExchange::Way::of_tokens(Dim N, Dim K, Dim ranks, Dim most_rows,
                                                   Dim rows_at_once) const {
  Way way = *this;
  way.at_once = rows_at_once;
  const bool all = static_cast<bool>(chosen);
  way.rows = rows.slice(0, all ? ranks * N : N);
  way.pairs = pairs.slice(0, all ? most_rows : N * K);
  if (all) way.chosen = chosen.slice(0, ranks * N);
  return way;
}

ExpertExchange::Part ExpertExchange::Way::part(Dim index) const {
  if (!part_first) return {0, first_rows, used};
  const View first = part_first.slice(index, 1).flat();
  return {index * at_once, first, first.slice(first.numel() - 1, 1)};
}

ExpertExchange::Room ExpertExchange::Room::of_tokens(Dim N, Dim K, Dim ranks) const {
  Room room = *this;
  if (tokens) {
    room.tokens = tokens.slice(0, ranks * N);
    room.terms = terms.slice(0, ranks * N);
    if (inputs) room.inputs = inputs.slice(0, ranks * N);
    room.received = received.slice(0, N);
    room.weights = weights.slice(0, ranks * N);
  }
  if (values) {
    room.values = values.slice(0, N * K);
    room.row_weights = row_weights.slice(0, N * K);
  }
  return room;
}

std::shared_ptr<const ExpertExchange> exchange_by_all_gather(comm::Communicator* group,
                                                             double bound) {
  return std::make_shared<AllGather>(group, bound);
}

}  // namespace hyperslab::nn
