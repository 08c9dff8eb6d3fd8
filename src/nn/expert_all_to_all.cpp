// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "hyperslab/nn/expert_group.hpp"

namespace hyperslab::nn {
namespace {

class AllToAll final : public ExpertExchange {
 public:
  explicit AllToAll(comm::Communicator& group)
      : group_(group), counts_(static_cast<std::size_t>(group.size())) {}

  [[nodiscard]] Way take_way(Arena& arena, Dim tokens, const ops::RouterRule& rule,
                             const std::string& label) const override {
    const auto take = [&](const Shape& shape, const char* name) {
      return arena.take(DType::i32, shape, label + name);
    };
    const Dim E = rule.count / group_.size();
    Way way;
    way.at_once = most_rows(tokens, rule);
    way.all_first_rows = take({rule.count + 1}, ".first rows");
    way.pairs = take({tokens * rule.active}, ".pairs");
    way.rows = take({tokens, rule.active}, ".rows");
    way.first_rows = take({E + 1}, ".first rows here");
    way.sent = take({rule.count}, ".sent rows");
    way.arrived = take({group_.size(), E}, ".arrived rows");
    way.order = take({most_rows(tokens, rule)}, ".order");
    way.inverse = take({most_rows(tokens, rule)}, ".inverse order");
    return way;
  }

  [[nodiscard]] Room take_room(Arena& arena, const Sizes& sizes,
                               const ops::RouterRule& rule) const override {
    const Dim own = sizes.tokens * rule.active;
    const Dim most = most_rows(sizes.tokens, rule);
    Room room;
    room.values = arena.take(sizes.compute, {own, sizes.width}, "rows of tokens");
    room.row_weights = arena.take(sizes.statistics, {own, 1}, "weights of rows");
    room.arrival = arena.take(sizes.compute, {most, sizes.width}, "rows on arrival");
    room.arrived_weights = arena.take(sizes.statistics, {most, 1}, "weights on arrival");
    return room;
  }

  void sort(Context& ctx, CView chosen, CView /*weights*/, const Way& way,
            const Room& /*room*/) const override {
    ops::sort_by_expert(ctx, chosen, 0, way.all_first_rows, way.pairs, way.rows);
    ops::count_rows(ctx, way.all_first_rows, way.sent);
    {
      const Scope phase(ctx.recorder(), Phase::expert_comm);
      group_.wait(ctx, group_.all_to_all(ctx, way.sent, way.arrived.flat()));
    }
    ops::order_arrivals(ctx, way.arrived, way.first_rows, way.order, way.inverse);
  }

  [[nodiscard]] Dim rows_at_once(Dim tokens, const ops::RouterRule& rule) const override {
    return most_rows(tokens, rule);
  }

  [[nodiscard]] Dim rows_here(const Context& ctx, const Way& way, Dim own,
                              Dim /*most*/) const override {
    if (ctx.device() == Device::meta) return own;
    return way.first_rows.data<std::int32_t>()[way.first_rows.numel() - 1];
  }

  void weights_to_experts(Context& ctx, const Way& way, const Room& room, CView weights,
                          View here) const override {
    const CView pairs = weights.reshaped({weights.numel(), 1});
    ops::gather_rows(ctx, pairs, way.pairs, 1, room.row_weights);
    send(ctx, way, room.row_weights, room.arrived_weights, here.reshaped({here.numel(), 1}));
  }

  /// The rows go when the way is known, all at once, in to_experts().
  [[nodiscard]] Transfer start_to_experts(Context& /*ctx*/, CView tokens,
                                          View /*all*/) const override {
    return {0, tokens};
  }

  [[nodiscard]] ops::GatheredRows to_experts(Context& ctx, const Way& way, const Room& room,
                                             Transfer& tokens, const Part& /*part*/,
                                             View here) const override {
    ops::gather_rows(ctx, tokens.values, way.pairs, way.rows.shape()[1], room.values);
    send(ctx, way, room.values, room.arrival, here);
    return {here};
  }

  void add_rows(Context& ctx, const Way& way, const Room& room, const Part& /*part*/, View here,
                View tokens) const override {
    send_back(ctx, way, here, room.arrival, room.values);
    ops::sum_rows(ctx, room.values, way.rows, tokens);
  }

  [[nodiscard]] Transfer start_to_tokens(Context& /*ctx*/, const Room& /*room*/,
                                         View /*tokens*/) const override {
    return {};
  }

  void to_tokens(Context& /*ctx*/, const Room& /*room*/, const Transfer& /*sums*/,
                 View /*tokens*/) const override {}

  [[nodiscard]] Transfer start_weights_to_tokens(Context& ctx, const Way& way, const Room& room,
                                                 CView here, View weights) const override {
    const Dim pairs = way.rows.numel();
    send_back(ctx, way, here.reshaped({here.numel(), 1}), room.arrived_weights, room.row_weights);
    ops::gather_rows(ctx, room.row_weights, way.rows.reshaped({pairs}), 1,
                     weights.reshaped({pairs, 1}));
    return {};
  }

  void wait(Context& /*ctx*/, const Transfer& /*transfer*/) const override {}

 private:
  /// Rows to and from every member; their memory stays from pass to pass.
  struct Counts {
    explicit Counts(std::size_t ranks) : to(ranks), from(ranks) {}
    std::vector<Dim> to;
    std::vector<Dim> from;
  };

  [[nodiscard]] Dim most_rows(Dim tokens, const ops::RouterRule& rule) const {
    return most_rows_of_rank(tokens, rule, group_.size());
  }

  [[nodiscard]] const Counts& counts_of(const Context& ctx, const Way& way, Dim rows) const {
    const Dim experts = way.arrived.shape()[1];
    for (std::size_t q = 0; q < counts_.to.size(); ++q) {
      const auto member = static_cast<Dim>(q);
      const Dim size = group_.size();
      if (ctx.device() == Device::meta) {
        counts_.to[q] = counts_.from[q] = rows * (member + 1) / size - rows * member / size;
        continue;
      }
      counts_.to[q] = counts_.from[q] = 0;
      for (Dim e = 0; e < experts; ++e) {
        counts_.to[q] += way.sent.data<std::int32_t>()[member * experts + e];
        counts_.from[q] += way.arrived.data<std::int32_t>()[member * experts + e];
      }
    }
    return counts_;
  }

  /// rows: in the order of all_first_rows -> here: in that of first_rows.
  void send(Context& ctx, const Way& way, CView rows, View arrival, View here) const {
    const Dim count = here.shape()[0];
    const View arrived = arrival.slice(0, count);
    const Counts& counts = counts_of(ctx, way, rows.shape()[0]);
    {
      const Scope phase(ctx.recorder(), Phase::expert_comm);
      group_.wait(ctx, group_.all_to_all_rows(ctx, rows, counts.to, arrived, counts.from));
    }
    ops::gather_rows(ctx, arrived, way.order.slice(0, count), 1, here);
  }

  void send_back(Context& ctx, const Way& way, CView here, View arrival, View rows) const {
    const Dim count = here.shape()[0];
    const View arrived = arrival.slice(0, count);
    ops::gather_rows(ctx, here, way.inverse.slice(0, count), 1, arrived);
    const Counts& counts = counts_of(ctx, way, rows.shape()[0]);
    const Scope phase(ctx.recorder(), Phase::expert_comm);
    group_.wait(ctx, group_.all_to_all_rows(ctx, arrived, counts.from, rows, counts.to));
  }

  comm::Communicator& group_;
  mutable Counts counts_;
};

}  // namespace

std::shared_ptr<const ExpertExchange> exchange_by_all_to_all(comm::Communicator& group) {
  return std::make_shared<AllToAll>(group);
}

}  // namespace hyperslab::nn
