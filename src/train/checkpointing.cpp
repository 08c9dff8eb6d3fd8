// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "hyperslab/core/error.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/train/trainer.hpp"

namespace hyperslab::train {
namespace {

/// A flat buffer that holds a value for every parameter, and the prefix of its tensors' names.
struct Stored {
  const char* prefix;
  View flat;
};

std::vector<Stored> stored(const model::Stage& stage,
                           const std::optional<optim::AdamW>& optimizer) {
  std::vector<Stored> all = {{"model/", stage.params().master()}};
  if (optimizer) {
    all.push_back({"optimizer/exp_avg/", optimizer->exp_avg()});
    all.push_back({"optimizer/exp_avg_sq/", optimizer->exp_avg_sq()});
  }
  return all;
}

/// `local` is relative to this rank's hyperslab of the parameter.
Shape shifted(const Shape& offset, const Shape& local) {
  return offset.rank() == 1 ? Shape{offset[0] + local[0]}
                            : Shape{offset[0] + local[0], offset[1] + local[1]};
}

}  // namespace

std::vector<io::Slab> Trainer::slabs() const {
  // All replicas hold the same values: each gives an equal share of the flat space.
  const Dim size = stage_.params().flat_size();
  const auto ranks = static_cast<Dim>(config_.parallel.data);
  const Dim share_begin = size * mesh_.at().data / ranks;
  const Dim share_end = size * (mesh_.at().data + 1) / ranks;
  std::vector<io::Slab> out;
  for (const Stored& source : stored(stage_, optimizer_)) {
    for (const nn::Param& param : stage_.params().params()) {
      const Dim begin = std::max(share_begin - param.flat_begin, Dim{0});
      const Dim end = std::min(share_end - param.flat_begin, param.numel());
      for (const nn::Hyperslab& piece : nn::hyperslabs_of_range(param.count, begin, end)) {
        const CView data = source.flat.slice(param.flat_begin + piece.first, piece.count.numel());
        out.push_back({source.prefix + param.name, param.global_shape,
                       shifted(param.offset, piece.offset), piece.count,
                       data.reshaped(piece.count)});
      }
    }
  }
  return out;
}

void Trainer::fill_meta(io::CheckpointMeta& meta) const {
  meta.adam_step = state_->adam_step;
  meta.skipped_steps = state_->skipped_steps;
  meta.loss_scale = state_->loss_scale;
  meta.good_steps = state_->good_steps;
}

void Trainer::load(const io::CheckpointReader& reader) {
  std::vector<io::SlabTarget> targets;
  for (const Stored& target : stored(stage_, optimizer_)) {
    for (const nn::Param& param : stage_.params().params()) {
      const View data = target.flat.slice(param.flat_begin, param.numel()).reshaped(param.count);
      targets.push_back(
          {target.prefix + param.name, param.global_shape, param.offset, param.count, data});
    }
  }
  reader.read(targets);
  const nn::ParamTable& params = stage_.params();
  if (params.value().dtype() != params.master().dtype()) {
    ops::cast(*ctx_, params.master(), params.value());
  }
  state_->adam_step = reader.meta().adam_step;
  state_->skipped_steps = reader.meta().skipped_steps;
  state_->loss_scale = static_cast<float>(reader.meta().loss_scale);
  state_->good_steps = static_cast<std::int32_t>(reader.meta().good_steps);
}

}  // namespace hyperslab::train
