// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <span>

#include "hyperslab/layout/movement.hpp"

namespace hyperslab::sharding {

/// Brings the values of a bucket, whose ranges ranks update, to all of them: a movement between
/// views that it knows.
class ValueGather {
 public:
  ValueGather() = default;
  virtual ~ValueGather() = default;
  ValueGather(const ValueGather&) = delete;
  ValueGather& operator=(const ValueGather&) = delete;
  ValueGather(ValueGather&&) = delete;
  ValueGather& operator=(ValueGather&&) = delete;

  /// Setup. The mesh outlives this.
  virtual void connect(const mesh::Mesh& mesh) = 0;
  /// The steps of start() and wait().
  [[nodiscard]] virtual std::span<const layout::Step> steps() const = 0;
  /// The steps of updated(), unless steps() has them.
  [[nodiscard]] virtual std::span<const layout::Step> update_steps() const { return {}; }
  /// This rank's range is updated on ctx. By all ranks, of all buckets in their order.
  virtual void updated(Context& /*ctx*/) {}
  /// After updated(): starts to gather. By all ranks in the same order.
  virtual void start(Context& ctx) = 0;
  /// Makes work that is enqueued on ctx after this call see the values that layers multiply by.
  virtual void wait(Context& ctx) = 0;
  /// After wait(): brings the values that no forward pass of training reads. Collective.
  virtual void complete(Context& /*ctx*/) {}
};

/// A gather by one movement.
class MovedValues final : public ValueGather {
 public:
  MovedValues(const layout::Layout& updated, const layout::Layout& present, View from, View to)
      : updated_(updated), present_(present), from_(from), to_(to) {}
  void connect(const mesh::Mesh& mesh) override {
    const std::array shapes = {Shape{to_.numel()}};
    movement_ = std::make_unique<layout::Movement>(
        layout::Movement::plan(mesh, shapes, updated_, present_));
  }
  [[nodiscard]] std::span<const layout::Step> steps() const override { return movement_->steps(); }
  void start(Context& ctx) override { movement_->start(ctx, from_, to_, {}); }
  void wait(Context& ctx) override { movement_->wait(ctx); }

 private:
  layout::Layout updated_, present_;
  View from_, to_;
  std::unique_ptr<layout::Movement> movement_;
};

}  // namespace hyperslab::sharding
