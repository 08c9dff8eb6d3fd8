// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/train/trainer_state.hpp"

#include <algorithm>
#include <utility>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "staging.hpp"
#include "step_records.hpp"

namespace hyperslab::train {

using param::SlabsOf;

/// A value for every element of a group of parameters, and the prefix of the tensors' names.
struct TrainerState::Stored {
  enum class Which : std::uint8_t { all, adapters, base, body };
  std::string prefix;
  const param::ParamGroup* group;
  param::StateView values;
  Which which = Which::all;
  [[nodiscard]] bool holds(const param::Param& param) const {
    if (which == Which::body) return !param.name.starts_with("head.");
    return which == Which::all ||
           (which == Which::adapters) == (param.role == param::Role::adapter);
  }
};

namespace {

constexpr std::size_t kStagingBytes = std::size_t{1} << 30;  // host memory while a GPU loads
constexpr const char* kModel = "model/";

bool holds_averages(const io::CheckpointReader& reader) {
  const std::string prefix = std::string("optimizer/") + optim::Optimizer::kAverage + "/";
  const auto first = reader.tensors().lower_bound(prefix);
  return first != reader.tensors().end() && first->first.starts_with(prefix);
}

}  // namespace

TrainerState::TrainerState(const Parts& parts)
    : parts_(parts),  // random weights have a base of their own
      base_fingerprint_((parts.config.run.seed + 1) * 0x9E3779B97F4A7C15ULL) {}

void TrainerState::initialize() {
  parts_.stage.initialize(parts_.ctx);
  if (parts_.optimizer == nullptr) return;
  const param::ParamGroup& trained = parts_.stage.params().trained();
  for (const param::Bucket& bucket : trained.buckets()) {  // gaps between tensors must be finite
    ops::fill(parts_.ctx, 0, trained.gradient(bucket));
  }
  parts_.optimizer->initialize(parts_.ctx);
  restart_averages();
}

void TrainerState::wait_for_snapshot() {
  parts_.ctx.stream().wait(std::exchange(snapshot_ready_, {}));
}

ops::StepState TrainerState::step_state() const { return parts_.records.read_state(); }

/// The parameters in checkpoints of the run: adapters, or the whole model.
std::vector<TrainerState::Stored> TrainerState::own_parameters() const {
  const param::ParamStore& params = parts_.stage.params();
  const auto which = parts_.config.adapter ? Stored::Which::adapters : Stored::Which::all;
  return {{kModel, &params.trained(), params.trained().master(), which},
          {kModel, &params.frozen(), params.frozen().value(), which},
          {kModel, &params.buffers(), params.buffers().value(), which}};
}

/// The parameters that checkpoint.initial gives: a base for adapters, the whole model, or all but
/// its head.
std::vector<TrainerState::Stored> TrainerState::initial_parameters() const {
  std::vector<Stored> initial = own_parameters();
  for (Stored& part : initial) {
    if (parts_.config.adapter) part.which = Stored::Which::base;
    if (parts_.config.checkpoint.new_head) part.which = Stored::Which::body;
  }
  return initial;
}

void TrainerState::wait_all() {
  parts_.executor.finish(parts_.ctx);
  parts_.presence.values().wait_all(parts_.ctx);
  if (parts_.optimizer) parts_.optimizer->wait_for_state(parts_.ctx);
}

void TrainerState::wait_for_updates() {
  parts_.presence.values().wait_for_updates(parts_.ctx);
  if (parts_.optimizer) parts_.optimizer->wait_for_state(parts_.ctx);
}

void TrainerState::complete_values() {
  wait_all();
  parts_.presence.values().complete(parts_.ctx);
}

std::vector<TrainerState::Stored> TrainerState::stored(bool with_averages) const {
  std::vector<Stored> all = own_parameters();
  if (parts_.optimizer == nullptr) return all;
  for (const optim::Optimizer::State& state : parts_.optimizer->state()) {
    if (!with_averages && state.name == optim::Optimizer::kAverage) continue;
    all.push_back(
        {"optimizer/" + state.name + "/", &parts_.stage.params().trained(), state.values});
  }
  return all;
}

/// Views of the rank's own memory, but for values in 16 bits, of which the slabs own f32 copies.
std::vector<io::Slab> TrainerState::views_of(const std::vector<Stored>& all) {
  wait_for_updates();
  std::vector<io::Slab> out;
  for (const Stored& source : all) {
    for (const param::ParamSlab& slab : slabs_of(*source.group, source.values, SlabsOf::owner)) {
      if (!source.holds(*slab.param)) continue;
      out.push_back(
          {source.prefix + slab.param->name, slab.param->global_shape, slab.part, slab.data});
    }
  }
  widen(parts_.ctx, out);
  return out;
}

std::vector<io::Slab> TrainerState::fetch(std::span<const io::Slab> slabs) {
  std::vector<io::Slab> out(slabs.begin(), slabs.end());
  if (parts_.ctx.device() != Device::cpu) copy_to_host(parts_.ctx, out);
  return out;
}

std::vector<io::Slab> TrainerState::slabs() { return fetch(views_of(stored())); }
std::vector<io::Slab> TrainerState::slabs_in_place() { return views_of(stored()); }

std::vector<io::Slab> TrainerState::gradient_slabs() {
  return fetch(views_of(
      {{"gradient/", &parts_.stage.params().trained(), parts_.presence.gradients().sums()}}));
}

std::size_t TrainerState::checkpoint_bytes() const {
  std::size_t bytes = 0;
  for (const Stored& source : stored()) {
    for (const param::ParamSlab& slab : slabs_of(*source.group, source.values, SlabsOf::owner)) {
      if (!source.holds(*slab.param)) continue;
      const std::size_t each =
          is_narrow(slab.data.dtype()) ? sizeof(float) : size_of(slab.data.dtype());
      bytes += SnapshotBuffer::room_bytes(static_cast<std::size_t>(slab.data.numel()) * each);
    }
  }
  return bytes;
}

Snapshot TrainerState::snapshot(SnapshotBuffer& buffer) {
  Snapshot taken = buffer.take(parts_.ctx, slabs_in_place());
  snapshot_ready_ = taken.ready;
  return taken;
}

void TrainerState::fill_meta(io::CheckpointMeta& meta) const {
  const ops::StepState now = step_state();
  meta.adam_step = now.adam_step;
  meta.skipped_steps = now.skipped_steps;
  meta.scales_loss = parts_.config.precision.compute == Precision::fp16;
  meta.loss_scale = now.loss_scale;
  meta.good_steps = now.good_steps;
  if (!parts_.config.adapter) return;
  meta.base_fingerprint = base_fingerprint_;
  meta.base_step = base_step_;
}

void TrainerState::read(const io::CheckpointReader& reader, const std::vector<Stored>& all) {
  snapshot_ready_.wait();
  wait_for_updates();
  std::vector<io::SlabTarget> targets;
  for (const Stored& target : all) {
    for (const param::ParamSlab& slab : slabs_of(*target.group, target.values, SlabsOf::holder)) {
      if (!target.holds(*slab.param)) continue;
      targets.push_back(
          {target.prefix + slab.param->name, slab.param->global_shape, slab.part, slab.data});
    }
  }
  const bool in_place = parts_.ctx.device() == Device::cpu &&
                        std::ranges::none_of(targets, [](const io::SlabTarget& t) {
                          return is_narrow(t.data.dtype());
                        });
  if (in_place) {
    reader.read(targets);
  } else {
    read_staged(parts_.ctx, reader, targets, kStagingBytes);
  }
  if (!parts_.stage.params().trained().master().sharded)
    parts_.presence.values().masters_changed(parts_.ctx);
}

/// Fake quantization rounds values of the compute dtype, so a model that it trained is rounded from
/// these; the base of adapters is the same on every device.
DType TrainerState::rounds_first() const {
  return parts_.config.quantization ? parts_.compute : DType::f32;
}

/// Matrices that are stored quantized belong to a base, or to a model that is not trained.
void TrainerState::load_parameters(const io::CheckpointReader& reader) {
  read_quantized(parts_.ctx, reader, parts_.stage.params(), rounds_first());
  read(reader, initial_parameters());
  restart_averages();
}

void TrainerState::load(const io::CheckpointReader& reader) {
  if (!parts_.config.adapter)
    read_quantized(parts_.ctx, reader, parts_.stage.params(), rounds_first());
  const bool has_averages = holds_averages(reader);
  read(reader, stored(has_averages));
  if (!has_averages) restart_averages();  // a run that keeps an average from here on
  ops::StepState now;
  now.adam_step = reader.meta().adam_step;
  now.skipped_steps = reader.meta().skipped_steps;
  if (parts_.config.precision.compute == Precision::fp16) {
    const bool goes_on = reader.meta().scales_loss;
    now.loss_scale = goes_on ? static_cast<float>(reader.meta().loss_scale) : kFirstLossScale;
    now.good_steps = goes_on ? static_cast<std::int32_t>(reader.meta().good_steps) : 0;
  }
  parts_.records.write_state(now);
  parts_.records.forget_results();
}

/// The average starts over from the present weights.
void TrainerState::restart_averages() {
  if (!averages()) return;
  for (const param::ElementRange& range : parts_.presence.values().updated_ranges()) {
    parts_.optimizer->restart_average(parts_.ctx, range);
  }
}

/// Exchanges masters and averages, and gathers the other ranks' values as after an update.
void TrainerState::exchange_averages() {
  require(averages(), "exchange_averages: no average is kept");
  wait_all();  // until the newest parameters are here
  parts_.ctx.stream().wait(snapshot_ready_);
  const std::vector<param::ElementRange>& ranges = parts_.presence.values().updated_ranges();
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    parts_.optimizer->exchange_average(parts_.ctx, ranges[i]);
    parts_.presence.values().after_update(parts_.ctx, i);
  }
  parts_.presence.values().wait_all(parts_.ctx);
}

void TrainerState::share_initial_values() {
  const param::ParamStore& params = parts_.stage.params();
  if (params.trained().value().sharded || params.gathers_fp8()) share_values();
}

void TrainerState::share_values() {
  if (parts_.stage.params().trained().master().sharded) parts_.presence.filled(parts_.ctx);
}

}  // namespace hyperslab::train
