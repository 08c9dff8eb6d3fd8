// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/train/trainer.hpp"
#include "staging.hpp"
#include "step_records.hpp"

namespace hyperslab::train {

using param::SlabsOf;

/// A value for every element of a group of parameters, and the prefix of the tensors' names.
struct Trainer::Stored {
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

/// The parameters in checkpoints of the run: adapters, or the whole model.
std::vector<Trainer::Stored> Trainer::own_parameters() const {
  const param::ParamStore& params = stage_.params();
  const auto which = config_.adapter ? Stored::Which::adapters : Stored::Which::all;
  return {{kModel, &params.trained(), params.trained().master(), which},
          {kModel, &params.frozen(), params.frozen().value(), which}};
}

/// The parameters that checkpoint.initial gives: a base for adapters, the whole model, or all but
/// its head.
std::vector<Trainer::Stored> Trainer::initial_parameters() const {
  std::vector<Stored> initial = own_parameters();
  for (Stored& part : initial) {
    if (config_.adapter) part.which = Stored::Which::base;
    if (config_.checkpoint.new_head) part.which = Stored::Which::body;
  }
  return initial;
}

void Trainer::wait_all() {
  executor_->finish(*ctx_);
  presence_.values().wait_all(*ctx_);
  if (optimizer_) optimizer_->wait_for_state(*ctx_);
}

void Trainer::wait_for_updates() {
  presence_.values().wait_for_updates(*ctx_);
  if (optimizer_) optimizer_->wait_for_state(*ctx_);
}

void Trainer::complete_values() {
  wait_all();
  presence_.values().complete(*ctx_);
}

std::vector<Trainer::Stored> Trainer::stored(bool with_averages) const {
  std::vector<Stored> all = own_parameters();
  if (optimizer_ == nullptr) return all;
  for (const optim::Optimizer::State& state : optimizer_->state()) {
    if (!with_averages && state.name == optim::Optimizer::kAverage) continue;
    all.push_back({"optimizer/" + state.name + "/", &stage_.params().trained(), state.values});
  }
  return all;
}

/// Views of the rank's own memory, but for values in 16 bits, of which the slabs own f32 copies.
std::vector<io::Slab> Trainer::views_of(const std::vector<Stored>& all) {
  wait_for_updates();
  std::vector<io::Slab> out;
  for (const Stored& source : all) {
    for (const param::ParamSlab& slab : slabs_of(*source.group, source.values, SlabsOf::owner)) {
      if (!source.holds(*slab.param)) continue;
      out.push_back(
          {source.prefix + slab.param->name, slab.param->global_shape, slab.part, slab.data});
    }
  }
  widen(*ctx_, out);
  return out;
}

std::vector<io::Slab> Trainer::fetch(std::span<const io::Slab> slabs) {
  std::vector<io::Slab> out(slabs.begin(), slabs.end());
  if (ctx_->device() != Device::cpu) copy_to_host(*ctx_, out);
  return out;
}

std::vector<io::Slab> Trainer::slabs() { return fetch(views_of(stored())); }
std::vector<io::Slab> Trainer::slabs_in_place() { return views_of(stored()); }

std::vector<io::Slab> Trainer::gradient_slabs() {
  return fetch(views_of({{"gradient/", &stage_.params().trained(), presence_.gradients().sums()}}));
}

std::size_t Trainer::checkpoint_bytes() const {
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

Snapshot Trainer::snapshot(SnapshotBuffer& buffer) {
  Snapshot taken = buffer.take(*ctx_, slabs_in_place());
  snapshot_ready_ = taken.ready;
  return taken;
}

void Trainer::fill_meta(io::CheckpointMeta& meta) const {
  const ops::StepState now = state();
  meta.adam_step = now.adam_step;
  meta.skipped_steps = now.skipped_steps;
  meta.scales_loss = config_.precision.compute == Precision::fp16;
  meta.loss_scale = now.loss_scale;
  meta.good_steps = now.good_steps;
  if (!config_.adapter) return;
  meta.base_fingerprint = base_fingerprint_;
  meta.base_step = base_step_;
}

void Trainer::read(const io::CheckpointReader& reader, const std::vector<Stored>& all) {
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
  const bool in_place =
      ctx_->device() == Device::cpu && std::ranges::none_of(targets, [](const io::SlabTarget& t) {
        return is_narrow(t.data.dtype());
      });
  if (in_place) {
    reader.read(targets);
  } else {
    read_staged(*ctx_, reader, targets, kStagingBytes);
  }
  if (!stage_.params().trained().master().sharded) presence_.values().masters_changed(*ctx_);
}

/// Fake quantization rounds values of the compute dtype, so a model that it trained is rounded from
/// these; the base of adapters is the same on every device.
DType Trainer::rounds_first() const { return config_.quantization ? options_.compute : DType::f32; }

/// Matrices that are stored quantized belong to a base, or to a model that is not trained.
void Trainer::load_parameters(const io::CheckpointReader& reader) {
  read_quantized(*ctx_, reader, stage_.params(), rounds_first());
  read(reader, initial_parameters());
  restart_averages();
}

void Trainer::load(const io::CheckpointReader& reader) {
  if (!config_.adapter) read_quantized(*ctx_, reader, stage_.params(), rounds_first());
  const bool has_averages = holds_averages(reader);
  read(reader, stored(has_averages));
  if (!has_averages) restart_averages();  // a run that keeps an average from here on
  ops::StepState now;
  now.adam_step = reader.meta().adam_step;
  now.skipped_steps = reader.meta().skipped_steps;
  if (config_.precision.compute == Precision::fp16) {
    const bool goes_on = reader.meta().scales_loss;
    now.loss_scale = goes_on ? static_cast<float>(reader.meta().loss_scale) : kFirstLossScale;
    now.good_steps = goes_on ? static_cast<std::int32_t>(reader.meta().good_steps) : 0;
  }
  records_->write_state(now);
  records_->forget_results();
}

/// The average starts over from the present weights.
void Trainer::restart_averages() {
  if (!averages()) return;
  for (const param::ElementRange& range : presence_.values().updated_ranges()) {
    optimizer_->restart_average(*ctx_, range);
  }
}

/// Exchanges masters and averages, and gathers the other ranks' values as after an update.
void Trainer::exchange_averages() {
  require(averages(), "exchange_averages: no average is kept");
  wait_all();  // until the newest parameters are here
  ctx_->stream().wait(snapshot_ready_);
  const std::vector<param::ElementRange>& ranges = presence_.values().updated_ranges();
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    optimizer_->exchange_average(*ctx_, ranges[i]);
    presence_.values().after_update(*ctx_, i);
  }
  presence_.values().wait_all(*ctx_);
}

void Trainer::share_initial_values() {
  const param::ParamStore& params = stage_.params();
  if (params.trained().value().sharded || params.gathers_fp8()) share_values();
}

void Trainer::share_values() {
  if (stage_.params().trained().master().sharded) presence_.filled(*ctx_);
}

}  // namespace hyperslab::train
