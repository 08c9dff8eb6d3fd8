// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/expert_linear.hpp"

#include "hyperslab/core/error.hpp"
#include "hyperslab/nn/linear.hpp"
#include "hyperslab/ops/experts.hpp"

namespace hyperslab::nn {

using ops::Accumulate;

ExpertLinear::ExpertLinear(param::ParamStore& params, const TensorGroup& group,
                           const std::vector<std::vector<LinearOutput>>& experts,
                           const LinearOptions& options) {
  const bool is_row = options.parallel == Parallel::row;
  std::vector<param::ParamSpec> weights;
  for (const std::vector<LinearOutput>& outputs : experts) {
    Dim width = 0;
    for (const LinearOutput& output : outputs) width += output.width;
    for (const LinearOutput& output : outputs) {
      param::ParamSpec weight = {output.name + ".weight", {output.width, options.input_width}};
      weight.init_std = options.init.std_of(options.input_width, width);
      weight.part = group.shard(weight.shape, is_row ? 1 : 0);
      weight.placement.tensor = layout::shard(is_row ? 1 : 0);
      weight.placement.expert = options.expert;
      weights.push_back(weight);
    }
  }
  weight_ = params.declare(weights);
  for (const std::vector<LinearOutput>& outputs : experts) {
    Adapter adapter(params, group, outputs, options);
    if (adapter) adapters_.push_back(std::move(adapter));
  }
  require(adapters_.empty() || adapters_.size() == experts.size(), "an expert without an adapter");
}

/// Calls work(adapter, pass, first row, rows) for every expert's adapter; on `meta`, where rows are
/// not counted, once for all rows.
template <class Work>
void ExpertLinear::for_adapters(const Context& ctx, const ExpertRows& rows, Dim count,
                                Work&& work) const {
  const auto call = [&](const Adapter& adapter, Dim first, Dim of_expert) {
    const View reduced = rows.reduced.slice(first, of_expert);
    // An adapter asks for memory of its own if either is absent.
    const View gradient =
        rows.reduced_gradient ? rows.reduced_gradient.slice(first, of_expert) : reduced;
    work(adapter, LinearPass{.reduced = reduced, .reduced_gradient = gradient}, first, of_expert);
  };
  if (adapters_.empty()) return;
  if (ctx.device() == Device::meta) return call(adapters_.front(), 0, count);
  require(ctx.device() == Device::cpu, "rows of experts' adapters are counted on the host");
  const auto* first = rows.first_rows.data<std::int32_t>();
  for (std::size_t e = 0; e < adapters_.size(); ++e) {
    call(adapters_[e], Dim{first[e]}, Dim{first[e + 1] - first[e]});
  }
}

/// Adapters and quantized weights take rows in order.
ops::GatheredRows ExpertLinear::readable(Context& ctx, const ops::GatheredRows& rows) const {
  const bool reads_any = adapters_.empty() && weight_.codes() == nullptr;
  return reads_any ? rows : ops::GatheredRows(ops::rows_in_order(ctx, rows));
}

void ExpertLinear::forward(Context& ctx, const ops::GatheredRows& given, const ExpertRows& rows,
                           View y) const {
  const ops::GatheredRows x = readable(ctx, given);
  const param::QuantizedWeight* codes = weight_.codes();
  if (codes == nullptr) {
    ops::experts_forward(ctx, x, weight_.value(), rows.first_rows, y);
  } else {
    ops::quantized_experts_forward(ctx, x.values, ops::as_const(codes->matrix), rows.first_rows,
                                   codes->spec.activations, y);
  }
  for_adapters(ctx, rows, y.rows(),
               [&](const Adapter& adapter, const LinearPass& pass, Dim first, Dim count) {
                 if (count == 0) return;
                 adapter.forward(ctx, pass, x.values.slice(first, count), Accumulate::yes,
                                 y.slice(first, count));
               });
}

void ExpertLinear::backward_input(Context& ctx, const ops::GatheredRows& given,
                                  const ExpertRows& rows, View dx) const {
  const ops::GatheredRows dy = readable(ctx, given);
  ops::experts_backward_input(ctx, dy, weight_.value(), rows.first_rows, dx);
  for_adapters(ctx, rows, dx.rows(),
               [&](const Adapter& adapter, const LinearPass& pass, Dim first, Dim count) {
                 if (count == 0) return;
                 adapter.backward_input(ctx, pass, dy.values.slice(first, count), Accumulate::yes,
                                        dx.slice(first, count));
               });
}

void ExpertLinear::backward_weight(Context& ctx, const ops::GatheredRows& given_dy,
                                   const ops::GatheredRows& given_x, const ExpertRows& rows,
                                   Accumulate accumulate) const {
  const ops::GatheredRows dy = readable(ctx, given_dy);
  const ops::GatheredRows x = readable(ctx, given_x);
  if (const View gradient = weight_.gradient()) {
    const ops::GatheredRows input =
        x.in_order() ? rounded_input(ctx, weight_, x.values, rows.most) : x;
    ops::experts_backward_weight(ctx, dy, input, rows.first_rows, accumulate, gradient);
  }
  for_adapters(ctx, rows, x.matrix().rows(),
               [&](const Adapter& adapter, const LinearPass& pass, Dim first, Dim count) {
                 if (count > 0) {
                   adapter.backward_weight(ctx, pass, dy.values.slice(first, count),
                                           x.values.slice(first, count), accumulate);
                 } else if (accumulate == Accumulate::no) {
                   adapter.clear_gradients(ctx);
                 }
               });
}

}  // namespace hyperslab::nn
