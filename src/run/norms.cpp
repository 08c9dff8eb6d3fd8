// SPDX-License-Identifier: Apache-2.0
#include "norms.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "hyperslab/core/transfer.hpp"
#include "hyperslab/ops/elementwise.hpp"

namespace hyperslab::run {

void NormsLog::append(std::int64_t step, train::Trainer& trainer) {
  trainer.state().complete_values();
  Context& ctx = trainer.context();
  Tensor one(ctx.device(), DType::f32, {1});
  Tensor host(Device::cpu, DType::f32, {1});
  const auto rms = [&](CView view) {
    ops::root_mean_square(ctx, view, one.view());
    copy(ctx, one.view(), host.view());
    synchronize(ctx);
    return static_cast<double>(host.view().data<float>()[0]);
  };
  nlohmann::ordered_json line;
  line["step"] = step;
  const model::Stage& stage = trainer.stage();
  for (int unit = 0; unit + 1 < stage.units(); ++unit) {
    line["activation_rms"][stage.name(unit)] = rms(stage.activation({}, unit));
  }
  for (const param::Param& param : stage.params().params()) {
    if (!param.value) continue;  // stored quantized
    const double root = std::sqrt(static_cast<double>(param.numel()));
    line["weight_norm"][param.name] = root * rms(param.master ? param.master : param.value);
    if (param.gradient) line["gradient_norm"][param.name] = root * rms(param.gradient);
  }
  lines_.append(line.dump());
}

}  // namespace hyperslab::run
