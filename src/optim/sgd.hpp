// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/core/error.hpp"
#include "hyperslab/optim/optimizer.hpp"

namespace hyperslab::optim {

/// Stochastic gradient descent with momentum, as torch.optim.SGD with dampening 0.
class Sgd final : public Optimizer {
 public:
  Sgd(const OptimizerConfig& config, const param::ParamGroup& group, const StatePlace& place)
      : Optimizer(config, group, place),
        momentum_buffer_(take_state("momentum_buffer", master_dtype())) {
    take_decay();
    take_rate();
    require(!rate(), "sgd has one learning rate for all parameters");
  }

 private:
  [[nodiscard]] std::vector<State> moments() const override {
    return {{"momentum_buffer", momentum_buffer_}};
  }
  void update_range(Context& ctx, const ops::StepState* state, const ops::UpdateOperands& operands,
                    std::span<const View> moments,
                    const param::ElementRange& /*range*/) const override {
    ops::sgd(ctx, static_cast<float>(config().momentum), state, operands, moments[0]);
  }
  param::StateView momentum_buffer_;
};

}  // namespace hyperslab::optim
