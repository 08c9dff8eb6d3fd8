// SPDX-License-Identifier: Apache-2.0
#include "muon.hpp"

#include <algorithm>
#include <cmath>

#include "adamw.hpp"

namespace hyperslab::optim {
namespace {

bool is_matrix(const param::Param& param) {
  return param.role == param::Role::matrix && param.part.count.rank() == 2 && param.numel() > 0;
}

std::vector<const param::Param*> matrices_of(const param::ParamGroup& group) {
  std::vector<const param::Param*> matrices;
  for (const param::Param* param : group.params()) {
    if (is_matrix(*param)) matrices.push_back(param);
  }
  std::sort(matrices.begin(), matrices.end(),
            [](const auto* a, const auto* b) { return a->flat_begin < b->flat_begin; });
  return matrices;
}

/// The elements `size` from `begin` of what an update reads and writes, without its decays.
ops::UpdateOperands part_of(const ops::UpdateOperands& all, Dim begin, Dim size) {
  ops::UpdateOperands part;
  part.master = all.master.slice(begin, size);
  part.gradient = all.gradient.slice(begin, size);
  if (all.value) part.value = all.value.slice(begin, size);
  return part;
}

}  // namespace

Muon::Muon(const OptimizerConfig& config, const param::ParamGroup& group, bool sharded,
           Arena& arena)
    : Optimizer(config, group, sharded),
      exp_avg_(take_state(arena, "exp_avg")),
      exp_avg_sq_(take_state(arena, "exp_avg_sq")),
      matrices_(matrices_of(group)) {
  take_decay(arena);
  Dim elements = 0;
  Dim gram = 0;
  for (const param::Param* matrix : matrices_) {
    const Dim side = std::min(matrix->part.count[0], matrix->part.count[1]);
    elements = std::max(elements, matrix->numel());
    gram = std::max(gram, side * side);
  }
  const DType dtype = exp_avg_.data.dtype();
  direction_ = arena.take(dtype, {elements}, "muon direction");
  space_.other = arena.take(dtype, {elements}, "muon product");
  space_.gram = arena.take(dtype, {gram}, "muon gram");
  space_.polynomial = arena.take(dtype, {gram}, "muon polynomial");
  space_.sums = arena.take(dtype, {ops::kSumCount}, "muon norm");
}

std::vector<Optimizer::State> Muon::state() const {
  return {{"exp_avg", exp_avg_}, {"exp_avg_sq", exp_avg_sq_}};
}

ops::FinalizeConstants Muon::finalize_constants() const {
  return with_betas(Optimizer::finalize_constants(), config());
}

void Muon::update_range(Context& ctx, const ops::StepState* state,
                        const ops::UpdateOperands& operands,
                        const param::ElementRange& range) const {
  const Dim begin = range.in_flat;
  const Dim end = begin + range.size;
  Dim done = begin;
  for (const param::Param* matrix : matrices_) {
    if (matrix->flat_begin < begin || matrix->flat_begin >= end) continue;
    update_others(ctx, state, operands, begin, {done, matrix->flat_begin});
    update_matrix(ctx, state, operands, begin, *matrix);
    done = matrix->flat_begin + matrix->numel();
  }
  update_others(ctx, state, operands, begin, {done, end});
}

void Muon::update_matrix(Context& ctx, const ops::StepState* state,
                         const ops::UpdateOperands& operands, Dim begin,
                         const param::Param& matrix) const {
  const Dim size = matrix.numel();
  const Dim rows = matrix.part.count[0];
  const Dim columns = matrix.part.count[1];
  ops::UpdateOperands part = part_of(operands, matrix.flat_begin - begin, size);
  const View direction = direction_.slice(0, size);
  ops::muon_direction(ctx, static_cast<float>(config().momentum), state, part.gradient,
                      exp_avg_.data.slice(matrix.flat_begin, size), direction);
  part.gradient = ops::orthogonalize(ctx, direction.reshaped({rows, columns}), space_).flat();
  const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns)));
  ops::muon_update(ctx, static_cast<float>(scale), static_cast<float>(config().weight_decay), state,
                   part);
}

/// Tensors of another role start at a granule, so the rest of a matrix's last one is padding.
void Muon::update_others(Context& ctx, const ops::StepState* state,
                         const ops::UpdateOperands& operands, Dim begin,
                         const std::array<Dim, 2>& from_to) const {
  const Dim granule = ops::kDecayGranule;
  const Dim from = (from_to[0] + granule - 1) / granule * granule;
  const Dim size = from_to[1] - from;
  if (size <= 0) return;
  ops::UpdateOperands part = part_of(operands, from - begin, size);
  part.decay = operands.decay.slice((from - begin) / granule, (size + granule - 1) / granule);
  ops::adamw(ctx, adamw_constants(config()), state, part, exp_avg_.data.slice(from, size),
             exp_avg_sq_.data.slice(from, size));
}

}  // namespace hyperslab::optim
