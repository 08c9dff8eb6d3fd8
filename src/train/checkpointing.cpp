// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/train/trainer.hpp"
#include "step_records.hpp"

namespace hyperslab::train {
namespace {

/// A flat buffer that holds a value for every parameter, and the prefix of its tensors' names.
struct Stored {
  const char* prefix;
  View flat;
};

std::vector<Stored> stored(const model::Stage& stage, const optim::AdamW* optimizer) {
  std::vector<Stored> all = {{"model/", stage.params().master()}};
  if (optimizer != nullptr) {
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

View Trainer::host_mirror(std::size_t which, View flat) {
  if (flat.device() == Device::cpu) return flat;
  Tensor& mirror = mirrors_.at(which);
  if (!mirror.view()) mirror = Tensor(Device::cpu, flat.dtype(), flat.shape());
  return mirror.view();
}

std::vector<io::Slab> Trainer::slabs() {
  // All replicas hold the same values: each gives an equal share of the flat space.
  const Dim size = stage_.params().flat_size();
  const auto ranks = static_cast<Dim>(config_.parallel.data);
  const Dim share_begin = size * mesh_.at().data / ranks;
  const Dim share_end = size * (mesh_.at().data + 1) / ranks;
  std::vector<io::Slab> out;
  std::size_t which = 0;
  for (const Stored& source : stored(stage_, optimizer_.get())) {
    const View flat = host_mirror(which++, source.flat);
    if (flat.raw() != source.flat.raw()) copy(*ctx_, source.flat, flat);
    for (const nn::Param& param : stage_.params().params()) {
      const Dim begin = std::max(share_begin - param.flat_begin, Dim{0});
      const Dim end = std::min(share_end - param.flat_begin, param.numel());
      for (const nn::Hyperslab& piece : nn::hyperslabs_of_range(param.count, begin, end)) {
        const CView data = flat.slice(param.flat_begin + piece.first, piece.count.numel());
        out.push_back({source.prefix + param.name, param.global_shape,
                       shifted(param.offset, piece.offset), piece.count,
                       data.reshaped(piece.count)});
      }
    }
  }
  synchronize(*ctx_);
  return out;
}

void Trainer::fill_meta(io::CheckpointMeta& meta) const {
  const ops::StepState now = state();
  meta.adam_step = now.adam_step;
  meta.skipped_steps = now.skipped_steps;
  meta.loss_scale = now.loss_scale;
  meta.good_steps = now.good_steps;
}

void Trainer::load(const io::CheckpointReader& reader) {
  std::vector<io::SlabTarget> targets;
  const std::vector<Stored> all = stored(stage_, optimizer_.get());
  for (std::size_t which = 0; which < all.size(); ++which) {
    const Stored& target = all[which];
    const View flat = host_mirror(which, target.flat);
    if (flat.raw() != target.flat.raw()) std::memset(flat.raw(), 0, flat.bytes());  // padding
    for (const nn::Param& param : stage_.params().params()) {
      const View data = flat.slice(param.flat_begin, param.numel()).reshaped(param.count);
      targets.push_back(
          {target.prefix + param.name, param.global_shape, param.offset, param.count, data});
    }
  }
  reader.read(targets);
  for (std::size_t which = 0; which < all.size(); ++which) {
    const View flat = host_mirror(which, all[which].flat);
    if (flat.raw() != all[which].flat.raw()) copy(*ctx_, flat, all[which].flat);
  }
  const nn::ParamTable& params = stage_.params();
  if (params.value().dtype() != params.master().dtype()) {
    ops::cast(*ctx_, params.master(), params.value());
  }
  ops::StepState now;
  now.adam_step = reader.meta().adam_step;
  now.skipped_steps = reader.meta().skipped_steps;
  now.loss_scale = static_cast<float>(reader.meta().loss_scale);
  now.good_steps = static_cast<std::int32_t>(reader.meta().good_steps);
  records_->write_state(now);
}

}  // namespace hyperslab::train
