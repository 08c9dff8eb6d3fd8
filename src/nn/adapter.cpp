// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/adapter.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "hyperslab/core/arena.hpp"
#include "hyperslab/core/round_up.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/ops/low_rank.hpp"

namespace hyperslab::nn {

using ops::Accumulate;
using ops::Trans;

float AdapterConfig::scale() const {
  const auto r = static_cast<double>(rank);
  return static_cast<float>(alpha / (rank_scaled ? std::sqrt(r) : r));
}

bool is_target(std::string_view layer, AdapterTarget target) {
  const std::string_view name = name_of(target);
  if (layer.ends_with(name)) return true;
  constexpr std::string_view kOfBlock = "mlp";
  if (!name.starts_with(kOfBlock)) return false;
  const std::string_view end = name.substr(kOfBlock.size());  // ".gate"
  if (!layer.ends_with(end)) return false;
  const std::string_view expert = layer.substr(0, layer.size() - end.size());
  return expert.substr(0, expert.rfind('.')).ends_with(".experts");
}

bool AdapterConfig::applies_to(std::string_view layer) const {
  if (rank == 0) return false;
  const auto names = [&](AdapterTarget target) { return is_target(layer, target); };
  return targets.empty() ? std::ranges::any_of(kAdapterTargets, names)
                         : std::ranges::any_of(targets, names);
}

bool AdapterConfig::is_of_mlp() const {
  const auto of_mlp = [](AdapterTarget target) { return target >= AdapterTarget::gate; };
  return rank > 0 && (targets.empty() || std::ranges::any_of(targets, of_mlp));
}

namespace {

/// A begins as PEFT's does, in variance: uniform in +- 1 / sqrt(C_in).
float init_std_of(Dim input_width) { return 1 / std::sqrt(3.0F * static_cast<float>(input_width)); }

param::ParamSpec spec_of_a(const TensorGroup& group, const LinearOutput& output,
                           const LinearOptions& options) {
  param::ParamSpec a = {output.name + ".lora_A.weight",
                        {options.adapter.rank, options.input_width},
                        param::Role::adapter};
  a.init_std = init_std_of(options.input_width);
  if (options.parallel == Parallel::row) {
    a.part = group.shard(a.shape, 1);
    a.placement.tensor = layout::shard(1);
  } else {
    a.placement.tensor = group.placement(layout::partial());
  }
  a.placement.expert = options.expert;
  return a;
}

param::ParamSpec spec_of_b(const TensorGroup& group, const LinearOutput& output,
                           const LinearOptions& options) {
  param::ParamSpec b = {output.name + ".lora_B.weight",
                        {output.width, options.adapter.rank},
                        param::Role::adapter,
                        param::Init::zeros};
  b.placement.expert = options.expert;
  if (options.parallel == Parallel::row) {
    b.placement.tensor = group.placement(layout::partial());
    return b;
  }
  const Hyperslab rows = output.rows();
  b.part = Hyperslab::whole(b.shape).narrow(0, rows.offset[0], rows.count[0]);
  b.replicas = output.replicas;
  b.replica = output.replica;
  return b;
}

}  // namespace

Adapter::Adapter(param::ParamStore& params, const TensorGroup& group,
                 const std::vector<LinearOutput>& outputs, const LinearOptions& options)
    : rank_(options.adapter.rank), scale_(rank_ > 0 ? options.adapter.scale() : 1) {
  std::vector<param::ParamSpec> a;
  std::vector<param::ParamSpec> b;
  Dim column = 0;
  for (const LinearOutput& output : outputs) {
    const Dim columns = output.rows().count[0];
    if (options.adapter.applies_to(output.name)) {
      a.push_back(spec_of_a(group, output, options));
      b.push_back(spec_of_b(group, output, options));
      parts_.push_back({column, columns});
    }
    column += columns;
  }
  if (parts_.empty()) return;
  a_ = params.declare(a);
  b_ = params.declare(b);
}

LinearPass LinearPass::rows(CView x, Dim begin, Dim count) const {
  LinearPass part = *this;
  part.amax = {};  // backward needs the amax of all rows, and this is a part
  if (reduced) part.reduced = reduced.as_matrix().slice(begin, count);
  if (dropout.active()) {
    part.dropout.elements_per_sample =
        x.numel() / std::max<Dim>(1, dropout.sample_position.numel());
    part.dropout.first_element = begin * x.shape().back();
  }
  return part;
}

/// Memory of one call: values in between, and the layer's input or its gradient with dropout.
struct Adapter::Scratch {
  View reduced;           ///< (rows, ranks): s x A^T
  View reduced_gradient;  ///< (rows, ranks): s dy B
  View dropped;           ///< (rows, inputs), as x; absent without dropout
};

Adapter::Scratch Adapter::take_scratch(Context& ctx, const LinearPass& pass, CView x) const {
  const Shape between = {x.rows(), ranks()};
  const auto padded_bytes = [&](const Shape& shape) {
    return round_up(static_cast<std::size_t>(shape.numel()) * size_of(x.dtype()),
                    Arena::kAlignment);
  };
  // On `meta` memory is a null pointer, so sums are done on integers.
  std::size_t bytes = 0;
  const auto place = [&](View& view, const Shape& shape) {
    view = View(reinterpret_cast<void*>(bytes), x.dtype(), x.device(), shape);
    bytes += padded_bytes(shape);
  };
  Scratch scratch;
  if (!pass.reduced) place(scratch.reduced, between);
  if (!pass.reduced_gradient) place(scratch.reduced_gradient, between);
  if (pass.dropout.active()) place(scratch.dropped, x.shape());
  if (bytes > 0) {
    const auto memory = reinterpret_cast<std::uintptr_t>(ctx.workspace("adapter", bytes));
    for (View* view : {&scratch.reduced, &scratch.reduced_gradient, &scratch.dropped}) {
      if (!*view) continue;
      const auto offset = reinterpret_cast<std::uintptr_t>(view->raw());
      *view = View(reinterpret_cast<void*>(memory + offset), x.dtype(), x.device(), view->shape());
    }
  }
  // A layer with fewer ranks than the widest takes the beginning.
  const auto narrowed = [&](View whole) {
    return whole.flat().slice(0, between.numel()).reshaped(between);
  };
  if (pass.reduced) scratch.reduced = narrowed(pass.reduced);
  if (pass.reduced_gradient) scratch.reduced_gradient = narrowed(pass.reduced_gradient);
  return scratch;
}

ops::CColumns Adapter::of_part(CView reduced, std::size_t part, Trans trans) const {
  return {reduced, static_cast<Dim>(part) * rank_, rank_, trans};
}

/// The input after dropout.
CView Adapter::dropped(Context& ctx, const LinearPass& pass, CView x, const Scratch& scratch) {
  if (!pass.dropout.active()) return x;
  ops::dropout(ctx, pass.dropout, x, scratch.dropped);
  return scratch.dropped;
}

/// scratch.reduced = s x A^T.
void Adapter::reduce(Context& ctx, CView x, const Scratch& scratch) const {
  ops::matmul_columns(ctx, ops::all_columns(x), ops::all_columns(a_.value(), Trans::yes), scale_,
                      Accumulate::no, ops::all_columns(scratch.reduced));
}

/// scratch.reduced_gradient = s dy B, part by part.
void Adapter::reduce_gradient(Context& ctx, CView dy, const Scratch& scratch) const {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const auto& [first, columns] = parts_[i];
    ops::matmul_columns(ctx, {dy.as_matrix(), first, columns},
                        ops::all_columns(CView(b_.members()[i]->value)), scale_, Accumulate::no,
                        {scratch.reduced_gradient, static_cast<Dim>(i) * rank_, rank_});
  }
}

/// scratch.reduced_gradient = s dy B and the gradients of B, of one reading of dy.
void Adapter::gradients_of(Context& ctx, CView dy, const Scratch& scratch,
                           Accumulate accumulate) const {
  std::vector<ops::LowRankPart> parts;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const param::Param& b = *b_.members()[i];
    parts.push_back({parts_[i].first_column, parts_[i].columns, b.value, b.gradient});
  }
  ops::low_rank_backward(ctx, dy, parts, scratch.reduced, scale_, accumulate,
                         scratch.reduced_gradient);
}

void Adapter::clear_gradients(Context& ctx) const {
  ops::fill(ctx, 0, a_.gradient());
  ops::fill(ctx, 0, b_.gradient());
}

bool Adapter::covers(Dim outputs) const {
  Dim covered = 0;
  for (const Part& part : parts_) covered += part.columns;
  return covered == outputs;
}

void Adapter::forward(Context& ctx, const LinearPass& pass, CView x, Accumulate accumulate,
                      View y) const {
  const Scratch scratch = take_scratch(ctx, pass, x);
  reduce(ctx, dropped(ctx, pass, x, scratch), scratch);
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const auto& [first, columns] = parts_[i];
    ops::matmul_columns(ctx, of_part(scratch.reduced, i),
                        ops::all_columns(CView(b_.members()[i]->value), Trans::yes), 1, accumulate,
                        {y.as_matrix(), first, columns});
  }
}

void Adapter::backward_input(Context& ctx, const LinearPass& pass, CView dy, Accumulate accumulate,
                             View dx) const {
  const Scratch scratch = take_scratch(ctx, pass, dx);
  const bool drops = pass.dropout.active();
  const bool adds_after = drops && accumulate == Accumulate::yes;
  if (pass.weights_follow && pass.reads_once()) {
    gradients_of(ctx, dy, scratch, *pass.weights_follow);
  } else {
    reduce_gradient(ctx, dy, scratch);
  }
  const View term = adds_after ? scratch.dropped : dx;
  ops::matmul_columns(ctx, ops::all_columns(CView(scratch.reduced_gradient)),
                      ops::all_columns(a_.value()), 1, drops ? Accumulate::no : accumulate,
                      ops::all_columns(term));
  if (drops) ops::dropout(ctx, pass.dropout, term, term);
  if (adds_after) ops::add(ctx, dx, term, dx);
}

void Adapter::backward_weight(Context& ctx, const LinearPass& pass, CView dy, CView x,
                              Accumulate accumulate) const {
  const Scratch scratch = take_scratch(ctx, pass, x);
  bool has_gradients_of_b = pass.has_gradient && pass.reads_once();
  if (pass.keeps() && !pass.has_gradient) {
    // First: the op uses the workspace, where the input after dropout will lie.
    gradients_of(ctx, dy, scratch, accumulate);
    has_gradients_of_b = true;
  }
  const CView input = dropped(ctx, pass, x, scratch);
  if (!pass.reduced) reduce(ctx, input, scratch);
  if (!has_gradients_of_b && (!pass.has_gradient || !pass.reduced_gradient)) {
    reduce_gradient(ctx, dy, scratch);
  }
  // The values between A and B have the scale already.
  ops::matmul_columns(ctx, ops::all_columns(CView(scratch.reduced_gradient), Trans::yes),
                      ops::all_columns(input), 1, accumulate, ops::all_columns(a_.gradient()));
  if (has_gradients_of_b) return;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const auto& [first, columns] = parts_[i];
    ops::matmul_columns(ctx, {dy.as_matrix(), first, columns, Trans::yes},
                        of_part(scratch.reduced, i), 1, accumulate,
                        ops::all_columns(b_.members()[i]->gradient));
  }
}

}  // namespace hyperslab::nn
