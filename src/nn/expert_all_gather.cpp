// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/expert_group.hpp"
#include "hyperslab/ops/elementwise.hpp"

namespace hyperslab::nn {
namespace {

class AllGather final : public ExpertExchange {
 public:
  explicit AllGather(comm::Communicator* group)
      : group_(group),
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
    if (is_alone()) return way;
    way.used = way.first_rows.slice(E, 1);
    way.chosen = take({size_ * tokens, rule.active}, ".chosen of all");
    return way;
  }

  [[nodiscard]] Room take_room(Arena& arena, const Sizes& sizes,
                               const ops::RouterRule& rule) const override {
    Room room;
    if (is_alone()) return room;
    const Dim all = size_ * sizes.tokens;
    room.tokens = arena.take(sizes.compute, {all, sizes.width}, "tokens of expert ranks");
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
    wait(ctx, of_pairs);
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
                                             const Transfer& tokens, View here) const override {
    wait(ctx, tokens);
    ops::GatheredRows rows(tokens.values);
    rows.pairs = way.pairs.slice(0, here.shape()[0]);
    rows.divisor = way.rows.shape()[1];
    rows.room = here;
    rows.used = way.used;
    return rows;
  }

  [[nodiscard]] Transfer start_to_tokens(Context& ctx, const Way& way, const Room& room, CView here,
                                         View tokens) const override {
    const View terms = is_alone() ? tokens : room.tokens;
    ops::sum_rows(ctx, here, way.rows, terms);
    if (is_alone()) return {};
    if (!group_->is_shared(terms)) return {group_->reduce_scatter(ctx, terms, tokens), {}};
    return {group_->reduce_scatter_others(ctx, terms, room.received, 0, room.received.numel()),
            room.received};
  }

  void to_tokens(Context& ctx, const Room& room, const Transfer& sums, View tokens) const override {
    wait(ctx, sums);
    if (!sums.values) return;
    const Dim own = tokens.shape()[0];
    ops::add(ctx, room.tokens.slice(rank_ * own, own), sums.values, tokens);
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

  comm::Communicator* group_;
  int rank_;
  int size_;
};

}  // namespace

ExpertExchange::Way ExpertExchange::Way::of_tokens(Dim N, Dim K, Dim ranks, Dim most) const {
  Way way = *this;
  const bool all = static_cast<bool>(chosen);
  way.rows = rows.slice(0, all ? ranks * N : N);
  way.pairs = pairs.slice(0, all ? most : N * K);
  if (all) way.chosen = chosen.slice(0, ranks * N);
  return way;
}

ExpertExchange::Room ExpertExchange::Room::of_tokens(Dim N, Dim K, Dim ranks) const {
  Room room = *this;
  if (tokens) {
    room.tokens = tokens.slice(0, ranks * N);
    room.received = received.slice(0, N);
    room.weights = weights.slice(0, ranks * N);
  }
  if (values) {
    room.values = values.slice(0, N * K);
    room.row_weights = row_weights.slice(0, N * K);
  }
  return room;
}

std::shared_ptr<const ExpertExchange> exchange_by_all_gather(comm::Communicator* group) {
  return std::make_shared<AllGather>(group);
}

}  // namespace hyperslab::nn
