// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/param/store.hpp"
#include "hyperslab/sharding/converted_weights.hpp"
#include "hyperslab/sharding/frozen_values.hpp"
#include "hyperslab/sharding/gradient_sums.hpp"
#include "hyperslab/sharding/present_values.hpp"
#include "hyperslab/sharding/residence.hpp"

namespace hyperslab::sharding {

/// Brings parameters from where they rest to where layers use them, and gradients back. Owns the
/// memory of masters, values and gradients of a stage.
class Presence {
 public:
  /// `overlaps_updates`: updates run beside the next forward pass.
  explicit Presence(const Residence& residence = zero(0), bool overlaps_updates = false)
      : residence_(residence), overlaps_updates_(overlaps_updates) {}

  /// The dtypes in which parameters are stored. master: f32, or f64 if computing in f64; gradient:
  /// likewise, or bf16 if computing in that.
  struct DTypes {
    DType master;
    DType compute;
    DType gradient;
  };
  [[nodiscard]] bool overlaps_updates() const { return overlaps_updates_; }
  /// The arenas that memory is taken from.
  struct Memory {
    Arena& parameters;
    Arena& host;       ///< for state that rests on the host
    Arena* gradients;  ///< null: the parameters are not trained
  };
  /// Setup, first: takes memory for masters, values and gradients of the trained parameters and for
  /// the values of frozen ones; binds all views. The store must outlive this.
  void allocate(param::ParamStore& store, const Memory& memory, const DTypes& dtypes);
  /// Setup, second, if gradients were taken. The mesh, over whose groups they are summed, must
  /// outlive this.
  void connect(const mesh::Mesh& mesh);

  /// Before for_units() with these arguments, outside of graphs: waits for updates of units [first,
  /// last) and starts to gather what their pass, and the next one in this order, will need.
  void before(Context& ctx, int first, int last, Order order);
  /// Calls `pass` for units [first, last) in this order, each with the values in place that its
  /// layers multiply by. Matrices that rest in another format are dequantized, the next unit's
  /// beside the pass. Every forward pass, and every backward pass but one for weights alone, goes
  /// through it. After before() a graph may hold it.
  template <class Pass>
  void for_units(Context& ctx, int first, int last, Order order, Pass&& pass) {
    const int step = order == Order::ascending ? 1 : -1;
    const int end = order == Order::ascending ? last : first - 1;
    int unit = order == Order::ascending ? first : last - 1;
    const auto prepare = [&](int next) {
      values_.before(ctx, next);  // nothing after before()
      frozen_.before(ctx, next);
      converted_.write(ctx, next);
    };
    if (unit != end) prepare(unit);
    for (; unit != end; unit += step) {
      Event next;
      const bool prefetches = unit + step != end && converted_.has(unit + step);
      if (prefetches) next = ctx.run_beside([&] { prepare(unit + step); });
      values_.before(ctx, unit);
      frozen_.before(ctx, unit);
      pass(unit);
      if (prefetches) ctx.stream().wait(next);
    }
  }
  /// Masters and frozen values were filled from outside: makes the values of all ranks follow.
  /// Collective over kShards.
  void filled(Context& ctx) {
    values_.masters_changed(ctx);
    frozen_.changed(ctx);
  }
  /// Switches fake quantization on or off (ConvertedWeights::set_rounding).
  void set_rounding(bool rounds) { converted_.set_rounding(rounds); }

  /// True if optimizer state has entries for this rank's shards alone, not for every element.
  [[nodiscard]] bool shards_state() const { return is_flat(residence_.state); }
  /// The memory of masters and optimizer state.
  [[nodiscard]] Home state_home() const { return residence_.state.home; }
  /// The movements of a step of so many microbatches: of values, trained and frozen, of matrices
  /// that are converted, then of gradients.
  [[nodiscard]] std::vector<NamedMovement> movements(int microbatches) const;
  [[nodiscard]] PresentValues& values() { return values_; }
  [[nodiscard]] const PresentValues& values() const { return values_; }
  [[nodiscard]] GradientSums& gradients() { return gradients_; }
  [[nodiscard]] const GradientSums& gradients() const { return gradients_; }

 private:
  Residence residence_;
  bool overlaps_updates_ = false;
  PresentValues values_;
  FrozenValues frozen_;
  ConvertedWeights converted_;
  GradientSums gradients_;
};

}  // namespace hyperslab::sharding
