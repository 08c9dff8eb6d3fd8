// SPDX-License-Identifier: Apache-2.0
#include "muon.hpp"

#include <algorithm>
#include <cmath>

#include "adamw.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/round_up.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/optim/component.hpp"

namespace hyperslab::optim {
namespace {

bool is_16_bits(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }

/// The factor of the learning rate for every matrix of a group.
double rate_of_matrices(const param::ParamGroup& group) {
  const auto& params = group.params();
  const auto first =
      std::ranges::find_if(params, [](const param::Param* param) { return is_matrix(*param); });
  return first == params.end() ? 1 : static_cast<double>((*first)->muon_rate);
}

}  // namespace

Muon::Muon(const OptimizerConfig& config, const param::ParamGroup& group, const StatePlace& place,
           const UpdateGroups& groups)
    : Optimizer(config, group, place),
      exp_avg_(take_state("exp_avg", master_dtype())),
      exp_avg_sq_(take_state("exp_avg_sq", master_dtype())),
      rate_of_matrices_(rate_of_matrices(group)),
      bf16_products_(is_16_bits(group.value().data.dtype())) {
  for (const bool of_experts : {false, true}) {
    exchanges_.emplace_back(group, of_experts, place.sharded, groups, place.device);
  }
  require(!place.host, "muon: whole matrices are updated where their state rests");
  take_space(place.device);
  take_decay();
  find_others();
}

void Muon::take_space(Arena& arena) {
  Dim elements = 0;
  Dim gram = 0;
  for (const MatrixExchange& exchange : exchanges_) {
    for (const MatrixExchange::Round& round : exchange.rounds()) {
      for (const View& batch : round.batches) {
        const Dim side = std::min(batch.shape()[1], batch.shape()[2]);
        elements = std::max(elements, batch.numel());
        gram = std::max(gram, batch.shape()[0] * side * side);
      }
    }
  }
  const DType dtype = bf16_products_ ? DType::bf16 : exp_avg_.data.dtype();
  if (bf16_products_) space_.x = arena.take(dtype, {elements}, "muon rounded");
  space_.other = arena.take(dtype, {elements}, "muon product");
  space_.gram = arena.take(dtype, {gram}, "muon gram");
  space_.polynomial = arena.take(dtype, {gram}, "muon polynomial");
}

/// Tensors of another role start at a granule, so the rest of a matrix's last one is padding.
void Muon::find_others() {
  std::vector<Interval> matrices;
  for (const param::Param* param : group().params()) {
    if (is_matrix(*param)) {
      matrices.push_back({param->flat_begin, param->flat_begin + param->numel()});
    }
  }
  std::ranges::sort(matrices, {}, &Interval::begin);
  matrices.push_back({group().flat_size(), group().flat_size()});
  Dim done = 0;
  for (const auto& [begin, end] : matrices) {
    const Dim from = round_up(done, ops::kDecayGranule);
    if (from < begin) others_.push_back({from, begin});
    done = end;
  }
}

/// The scale by which one learning rate serves matrices and all else.
float Muon::scale_of(const View& batch) const {
  const Dim side = std::max(batch.shape()[1], batch.shape()[2]);
  return static_cast<float>(rate_of_matrices_ * 0.2 * std::sqrt(static_cast<double>(side)));
}

std::vector<Optimizer::State> Muon::moments() const {
  return {{"exp_avg", exp_avg_}, {"exp_avg_sq", exp_avg_sq_}};
}

ops::FinalizeConstants Muon::finalize_constants() const {
  return with_betas(Optimizer::finalize_constants(), config());
}

void Muon::update_whole(Context& ctx, const ops::StepState* state,
                        const param::StateView& gradients) const {
  const Scope scope(ctx.recorder(), kOptimizerComponent);
  for (const MatrixExchange& exchange : exchanges_) {
    for (const MatrixExchange::Round& round : exchange.rounds()) {
      update_round(ctx, state, gradients, exchange, round);
    }
  }
}

void Muon::update_round(Context& ctx, const ops::StepState* state,
                        const param::StateView& gradients, const MatrixExchange& exchange,
                        const MatrixExchange::Round& round) const {
  for (const auto& [range, direction] : round.pieces) {
    ops::muon_direction(ctx, static_cast<float>(config().momentum), state, gradients.at(range),
                        exp_avg_.at(range), direction);
  }
  exchange.gather(ctx, round);
  for (const View& batch : round.batches) {
    ops::OrthogonalizeSpace space = space_;
    if (!bf16_products_) space.x = batch.flat();
    ops::scale(ctx, scale_of(batch), ops::orthogonalize(ctx, batch, space), batch);
  }
  exchange.scatter(ctx, round);
  for (const auto& [range, direction] : round.pieces) {
    ops::UpdateOperands operands = operands_of(gradients, range);
    operands.gradient = direction;
    ops::muon_update(ctx, static_cast<float>(config().weight_decay), decay_rule_of(config()), state,
                     operands);
  }
}

void Muon::update_range(Context& ctx, const ops::StepState* state,
                        const ops::UpdateOperands& operands, std::span<const View> moments,
                        const param::ElementRange& range) const {
  for (const auto& [first, last] : others_) {
    const Dim begin = std::max(first - range.in_flat, Dim{0});
    const Dim size = std::min(last - range.in_flat, range.size) - begin;
    if (size <= 0) continue;
    const auto part = [&](const auto& view) { return view.slice(begin, size); };
    ops::UpdateOperands others;
    others.master = part(operands.master);
    others.gradient = part(operands.gradient);
    if (operands.value) others.value = part(operands.value);
    const Dim granule = ops::kDecayGranule;
    others.decay = operands.decay.slice(begin / granule, (size + granule - 1) / granule);
    ops::adamw(ctx, adamw_constants(config()), state, others, part(moments[0]), part(moments[1]));
  }
}

}  // namespace hyperslab::optim
