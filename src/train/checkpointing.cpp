// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/train/trainer.hpp"
#include "staging.hpp"
#include "step_records.hpp"

namespace hyperslab::train {

/// A value for every parameter, in the flat space or in this rank's shards of it, and the prefix
/// of the tensors' names.
struct Trainer::Stored {
  const char* prefix;
  View view;
  bool in_shards = false;
};

namespace {

constexpr std::size_t kStagingBytes = std::size_t{1} << 30;  // of the host, while a GPU loads

/// `local` is relative to this rank's hyperslab of the parameter.
Shape shifted(const Shape& offset, const Shape& local) {
  return offset.rank() == 1 ? Shape{offset[0] + local[0]}
                            : Shape{offset[0] + local[0], offset[1] + local[1]};
}

}  // namespace

std::vector<Trainer::Stored> Trainer::stored() const {
  const nn::ParamTable& params = stage_.params();
  std::vector<Stored> all = {{"model/", params.master(), params.masters_are_sharded()}};
  if (optimizer_ != nullptr) {
    all.push_back({"optimizer/exp_avg/", optimizer_->exp_avg(), optimizer_->is_sharded()});
    all.push_back({"optimizer/exp_avg_sq/", optimizer_->exp_avg_sq(), optimizer_->is_sharded()});
  }
  return all;
}

/// Of the ranks that hold the same part of a tensor, one gives it.
bool Trainer::gives(const nn::Param& param) const {
  const auto bucket =
      std::ranges::find_if(stage_.params().buckets(), [&](const nn::Bucket& candidate) {
        return param.flat_begin >= candidate.begin && param.flat_begin < candidate.end;
      });
  switch (bucket->kind) {
    case nn::BucketKind::tied: return mesh_.is_first_stage();
    case nn::BucketKind::summed:
    case nn::BucketKind::equal: return mesh_.at().tensor == 0;
    case nn::BucketKind::parts: break;
  }
  return param.replica == 0;
}

std::vector<io::Slab> Trainer::slabs_of(const std::vector<Stored>& all) {
  std::vector<io::Slab> out;
  for (const Stored& source : all) {
    for (const auto& [param, piece, in_flat, in_space] : nn::shard_pieces(stage_.params())) {
      if (!gives(*param)) continue;
      const Dim place = source.in_shards ? in_space : in_flat;
      const CView data = source.view.slice(place, piece.count.numel()).reshaped(piece.count);
      out.push_back({source.prefix + param->name, param->global_shape,
                     shifted(param->offset, piece.offset), piece.count, data});
    }
  }
  if (ctx_->device() != Device::cpu) copy_to_host(*ctx_, out);
  return out;
}

std::vector<io::Slab> Trainer::slabs() { return slabs_of(stored()); }

std::vector<io::Slab> Trainer::gradient_slabs() {
  const nn::ParamTable& params = stage_.params();
  const bool in_shards = static_cast<bool>(params.gradient_shards());
  return slabs_of(
      {{"gradient/", in_shards ? params.gradient_shards() : params.gradient(), in_shards}});
}

void Trainer::fill_meta(io::CheckpointMeta& meta) const {
  const ops::StepState now = state();
  meta.adam_step = now.adam_step;
  meta.skipped_steps = now.skipped_steps;
  meta.scales_loss = config_.precision.compute == Precision::fp16;
  meta.loss_scale = now.loss_scale;
  meta.good_steps = now.good_steps;
}

/// What this rank holds of every tensor, where it lies.
std::vector<io::SlabTarget> Trainer::targets_of(const Stored& stored) const {
  const nn::ParamTable& params = stage_.params();
  std::vector<io::SlabTarget> targets;
  const auto add = [&](const nn::Param& param, const Shape& offset, const Shape& count, Dim place) {
    if (count.numel() == 0) return;
    targets.push_back({stored.prefix + param.name, param.global_shape, offset, count,
                       stored.view.slice(place, count.numel()).reshaped(count)});
  };
  if (stored.in_shards) {
    for (const auto& [param, piece, in_flat, in_space] : nn::shard_pieces(params)) {
      add(*param, shifted(param->offset, piece.offset), piece.count, in_space);
    }
  } else {
    for (const nn::Param& param : params.params()) {
      add(param, param.offset, param.count, param.flat_begin);
    }
  }
  return targets;
}

void Trainer::read(const io::CheckpointReader& reader, const std::vector<Stored>& all) {
  const nn::ParamTable& params = stage_.params();
  std::vector<io::SlabTarget> targets;
  for (const Stored& target : all) {
    const std::vector<io::SlabTarget> more = targets_of(target);
    targets.insert(targets.end(), more.begin(), more.end());
  }
  if (ctx_->device() == Device::cpu) {
    reader.read(targets);
  } else {
    read_staged(*ctx_, reader, targets, kStagingBytes);
  }
  if (!params.masters_are_sharded() && params.value().dtype() != params.master().dtype()) {
    ops::cast(*ctx_, params.master(), params.value());
  }
}

void Trainer::load_parameters(const io::CheckpointReader& reader) {
  read(reader, {stored().front()});
}

void Trainer::load(const io::CheckpointReader& reader) {
  read(reader, stored());
  ops::StepState now;
  now.adam_step = reader.meta().adam_step;
  now.skipped_steps = reader.meta().skipped_steps;
  if (config_.precision.compute == Precision::fp16) {
    const bool goes_on = reader.meta().scales_loss;
    now.loss_scale = goes_on ? static_cast<float>(reader.meta().loss_scale) : kFirstLossScale;
    now.good_steps = goes_on ? static_cast<std::int32_t>(reader.meta().good_steps) : 0;
  }
  records_->write_state(now);
}

void Trainer::share_values() {
  const nn::ParamTable& params = stage_.params();
  if (!params.masters_are_sharded()) return;
  for (std::size_t i = 0; i < params.buckets().size(); ++i) {
    const nn::Bucket& bucket = params.buckets()[i];
    const Dim size = params.shard_size(bucket);
    ops::cast(*ctx_, params.master().slice(params.shard_in_space(bucket), size),
              params.value().slice(params.shard_in_flat(bucket), size));
    gather_->start(*ctx_, i);
  }
  gather_->finish(*ctx_);
}

}  // namespace hyperslab::train
