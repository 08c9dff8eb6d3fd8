// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/linear.hpp"

#include <algorithm>
#include <array>

#include "hyperslab/core/error.hpp"

namespace hyperslab::nn {

namespace {

constexpr Dim kFewRows = 8;

Dim rows_of(CView x) { return x.as_matrix().shape()[0]; }

}  // namespace

Linear::Linear(param::ParamStore& params, const TensorGroup& group,
               const std::vector<Output>& outputs, const Options& options)
    : adds_bias_(options.parallel == Parallel::column || group.is_first()) {
  const bool is_row = options.parallel == Parallel::row;
  std::vector<param::ParamSpec> weights;
  std::vector<param::ParamSpec> biases;
  Dim rank_outputs = 0;
  Dim outputs_in_all = 0;
  for (const Output& output : outputs) outputs_in_all += output.width;
  for (const Output& output : outputs) {
    param::ParamSpec weight = {output.name + ".weight", {output.width, options.input_width}};
    weight.init_std = options.init.std_of(options.input_width, outputs_in_all);
    const Hyperslab part = output.rows();
    weight.part = is_row ? group.shard(weight.shape, 1)
                         : Hyperslab::whole(weight.shape).narrow(0, part.offset[0], part.count[0]);
    weight.placement.tensor = layout::shard(is_row ? 1 : 0);
    weight.replicas = output.replicas;
    weight.replica = output.replica;
    rank_outputs += weight.part.count[0];
    weights.push_back(weight);
    param::ParamSpec bias = {
        output.name + ".bias", {output.width}, param::Role::bias, param::Init::zeros};
    bias.part = part;
    bias.replicas = output.replicas;
    bias.replica = output.replica;
    // Every rank sees all of dy, and so computes the whole gradient.
    if (is_row) bias.placement.tensor = group.placement(layout::replicate());
    biases.push_back(bias);
  }
  weight_ = params.declare(weights);
  if (options.bias) bias_ = params.declare(biases);
  const Dim rank_inputs = weights.front().part.count[1];
  fp8_ = Fp8Product(options.fp8, outputs_in_all, options.input_width, rank_outputs, rank_inputs);
  if (fp8_ && (options.fp8.caches_weights || options.fp8.gathers_fp8)) {
    const std::size_t bytes = Fp8Product::kept_weight_bytes(options.fp8, rank_outputs, rank_inputs);
    fp8_.keep_weights_in(params.keep_fp8(weight_, bytes, options.fp8.gathers_fp8));
  }
  if (options.adapter) adapter_ = Adapter(params, group, outputs, options);
}

void Linear::multiply(Context& ctx, CView x, const LinearPass& pass, View y) const {
  if (fp8_.takes(rows_of(x))) {
    return fp8_.forward(ctx, x, weight_.value(), bias_value(),
                        {.amax = pass.amax, .input = pass.input_amax, .weights = pass.fp8_weights},
                        y);
  }
  const param::QuantizedWeight* codes = weight_.codes();
  if (codes == nullptr) return ops::linear_forward(ctx, x, weight_.value(), bias_value(), y);
  ops::quantized_linear_forward(ctx, x, ops::as_const(codes->matrix), bias_value(),
                                codes->spec.activations, y);
}

std::optional<ops::BlockWeights> Linear::product() const {
  if (adapter_ || fp8_.takes(1)) return std::nullopt;
  if (weight_.quantized() == nullptr) {
    return ops::BlockWeights{
        .weight = weight_.value(), .codes = std::nullopt, .bias = bias_value()};
  }
  const param::QuantizedWeight* codes = weight_.codes();
  if (codes == nullptr || codes->spec.activations != ops::ActivationFormat::none) {
    return std::nullopt;
  }
  return ops::BlockWeights{
      .weight = {}, .codes = ops::as_const(codes->matrix), .bias = bias_value()};
}

void Linear::forward(Context& ctx, CView x, View y, const LinearPass& pass) const {
  const bool is_plain = !fp8_.takes(rows_of(x)) && weight_.codes() == nullptr;
  // Few rows, as in generation, have kernels of their own, which do not add.
  if (adapter_ && is_plain && rows_of(x) > kFewRows && adapter_.covers(y.shape().back())) {
    // The wide product adds y's values as it ends, which saves a pass over y.
    adapter_.forward(ctx, pass, x, Accumulate::no, y);
    return ops::linear_forward_add(ctx, x, weight_.value(), bias_value(), y);
  }
  multiply(ctx, x, pass, y);
  if (adapter_) adapter_.forward(ctx, pass, x, Accumulate::yes, y);
}

void Linear::forward_summed(Context& ctx, const TensorGroup& group, CView x, View term, View y,
                            const LinearPass& pass) const {
  const Dim width = y.shape().back();
  const Dim rows = term.numel() / std::max<Dim>(1, width);
  if (is_plain(rows) && group.sums_at_members(term, y)) {
    const CView x_all = x.as_matrix();
    return group.wait(
        ctx,
        group.sum_products(ctx, term, y, [&](Dim begin, Dim count, View to, Accumulate accumulate) {
          const auto product =
              accumulate == Accumulate::yes ? ops::linear_forward_add : ops::linear_forward;
          product(ctx, x_all.slice(begin, count), weight_.value(), bias_value(), to);
        }));
  }
  const int pieces = group.pieces(ctx, rows, x.shape().back());
  if (pieces == 1) {
    forward(ctx, x, term, pass);
    return group.sum(ctx, term, y);
  }
  const CView x_rows = x.reshaped({rows, x.shape().back()});
  const View y_rows = y.reshaped({rows, width});
  std::array<comm::Ticket, TensorGroup::kMostPieces> sums{};
  for (int i = 0; i < pieces; ++i) {
    const Dim begin = rows * i / pieces;
    const Dim count = rows * (i + 1) / pieces - begin;
    const View part = y_rows.slice(begin, count);
    LinearPass of_part = pass.rows(x, begin, count);
    if (i > 0 && of_part.fp8_weights == Fp8Weights::renewed) of_part.fp8_weights = Fp8Weights::kept;
    forward(ctx, x_rows.slice(begin, count), part, of_part);
    sums[static_cast<std::size_t>(i)] = group.start_sum(ctx, part, part);
  }
  for (const comm::Ticket sum : sums) group.wait(ctx, sum);
}

void Linear::forward_activated(Context& ctx, CView x, ops::Activation activation, View pre, View y,
                               const LinearPass& pass) const {
  if (adapter_ || fp8_.takes(rows_of(x)) || weight_.codes() != nullptr) {
    forward(ctx, x, pre, pass);
    return ops::activation_forward(ctx, activation, pre, y);
  }
  ops::linear_activation_forward(ctx, x, weight_.value(), bias_value(), activation, pre, y);
}

void Linear::forward_gated(Context& ctx, CView x, ops::Activation activation, View pre, View y,
                           const LinearPass& pass) const {
  if (adapter_ || fp8_.takes(rows_of(x))) {
    forward(ctx, x, pre, pass);
    return ops::gated_forward(ctx, activation, pre, y);
  }
  const param::QuantizedWeight* codes = weight_.codes();
  if (codes == nullptr) {
    return ops::linear_gated_forward(ctx, x, weight_.value(), bias_value(), activation, pre, y);
  }
  ops::quantized_linear_gated_forward(ctx, x, ops::as_const(codes->matrix), bias_value(),
                                      codes->spec.activations, activation, pre, y);
}

Linear::SummedPass Linear::backward_input_summed(Context& ctx, const TensorGroup& group, CView dy,
                                                 View term, View dx, LinearPass pass) const {
  if (!is_plain(rows_of(dy)) || !group.sums_at_members(term, dx)) {
    SummedPass out = {backward_input(ctx, dy, term, pass), {}};
    out.sums.tickets[0] = group.start_sum(ctx, term, dx);
    return out;
  }
  const CView dy_all = dy.as_matrix();
  pass.has_gradient = true;
  return {pass, group.sum_products(ctx, term, dx,
                                   [&](Dim begin, Dim count, View to, Accumulate accumulate) {
                                     ops::linear_backward_input(ctx, dy_all.slice(begin, count),
                                                                weight_.value(), accumulate, to);
                                   })};
}

void Linear::forward_gathered(Context& ctx, const TensorGroup& group, CView x, View full, View y,
                              const LinearPass& pass) const {
  if (!is_plain(rows_of(y)) || !group.gathers_at_members(full)) {
    return forward(ctx, group.gather(ctx, x, full), y, pass);
  }
  group.of_gathered(ctx, x, full, [&](CView rows, Dim begin, Dim count) {
    ops::linear_forward(ctx, rows, weight_.value(), bias_value(),
                        y.as_matrix().slice(begin, count));
  });
}

LinearPass Linear::backward_input_gathered(Context& ctx, const TensorGroup& group, CView dy,
                                           View full, View dx, LinearPass pass) const {
  if (!is_plain(rows_of(dx)) || !group.gathers_at_members(full)) {
    return backward_input(ctx, group.gather(ctx, dy, full), dx, pass);
  }
  group.of_gathered(ctx, dy, full, [&](CView rows, Dim begin, Dim count) {
    ops::linear_backward_input(ctx, rows, weight_.value(), Accumulate::no,
                               dx.as_matrix().slice(begin, count));
  });
  pass.has_gradient = true;
  return pass;
}

bool Linear::is_plain(Dim rows) const {
  return !adapter_ && !fp8_.takes(rows) && weight_.quantized() == nullptr;
}

LinearPass Linear::backward_input(Context& ctx, CView dy, View dx, LinearPass pass) const {
  if (fp8_.takes(rows_of(dy))) {
    // Who trains no weight keeps nothing for its gradient.
    if (!weight_.gradient()) pass.rounded_gradient = {};
    fp8_.backward_input(ctx, dy, weight_.value(),
                        {.gradient = pass.rounded_gradient,
                         .amax = pass.amax,
                         .output_gradient = pass.gradient_amax,
                         .weights = pass.fp8_weights},
                        dx);
    if (adapter_) adapter_.backward_input(ctx, pass, dy, Accumulate::yes, dx);
  } else {
    if (adapter_) adapter_.backward_input(ctx, pass, dy, Accumulate::no, dx);
    ops::linear_backward_input(ctx, dy, weight_.value(),
                               adapter_ ? Accumulate::yes : Accumulate::no, dx);
  }
  pass.has_gradient = true;
  return pass;
}

void Linear::backward_input_activated(Context& ctx, CView dy, CView pre, ops::Activation activation,
                                      const ops::ActivationGradients& gradients) const {
  require(!adapter_ && !fp8_.takes(rows_of(dy)),
          "a layer with adapters or 8-bit products takes its activation's derivative by itself");
  ops::linear_activation_backward_input(ctx, dy, weight_.value(), pre, activation, gradients);
}

CView rounded_input(Context& ctx, const param::FusedParam& weight, CView x, Dim most_rows) {
  if (weight.codes() == nullptr || x.numel() == 0) return x;
  const std::size_t row_bytes = static_cast<std::size_t>(x.shape().back()) * size_of(x.dtype());
  const std::size_t most = static_cast<std::size_t>(most_rows) * row_bytes;
  const View rounded(ctx.workspace("rounded input", std::max(x.bytes(), most)), x.dtype(),
                     x.device(), x.shape());
  ops::fake_quantize(ctx, ops::WeightFormat::int8, x.shape().back(), x.as_matrix(),
                     rounded.as_matrix());
  return rounded;
}

void Linear::backward_weight(Context& ctx, CView dy, CView x, Accumulate accumulate,
                             const LinearPass& pass) const {
  View dweight = weight_.gradient();
  const View dbias = pass.skips_bias ? View() : bias_gradient();
  if (dweight && fp8_.takes(rows_of(dy))) {
    const View kept = pass.has_gradient ? pass.rounded_gradient : View();
    fp8_.backward_weight(
        ctx, dy, x, {.gradient = kept, .amax = pass.amax, .output_gradient = pass.gradient_amax},
        accumulate, dweight);
    dweight = {};
  }
  if (dweight) x = rounded_input(ctx, weight_, x);
  if (dweight || dbias) ops::linear_backward_weight(ctx, dy, x, accumulate, dweight, dbias);
  if (adapter_) adapter_.backward_weight(ctx, pass, dy, x, accumulate);
}

}  // namespace hyperslab::nn
