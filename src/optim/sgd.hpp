// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/core/error.hpp"
#include "hyperslab/optim/optimizer.hpp"

namespace hyperslab::optim {

/// Stochastic gradient descent with momentum, as torch.optim.SGD with dampening 0.
class Sgd final : public Optimizer {
 public:
  Sgd(const OptimizerConfig& config, const param::ParamGroup& group, bool sharded, Arena& arena)
      : Optimizer(config, group, sharded),
        momentum_buffer_(take_state(arena, "momentum_buffer", master_dtype())) {
    take_decay(arena);
    take_rate(arena);
    require(!rate(), "sgd has one learning rate for all parameters");
  }

 private:
  [[nodiscard]] std::vector<State> moments() const override {
    return {{"momentum_buffer", momentum_buffer_}};
  }
  void update_range(Context& ctx, const ops::StepState* state, const ops::UpdateOperands& operands,
                    const param::ElementRange& range) const override {
    ops::sgd(ctx, static_cast<float>(config().momentum), state, operands,
             momentum_buffer_.at(range));
  }
  param::StateView momentum_buffer_;
};

}  // namespace hyperslab::optim
