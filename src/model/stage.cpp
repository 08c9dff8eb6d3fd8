// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/model/stage.hpp"

#include <algorithm>
#include <utility>

#include "hyperslab/core/error.hpp"
#include "hyperslab/model/vision_transformer.hpp"
#include "hyperslab/ops/deferred_reductions.hpp"
#include "hyperslab/ops/elementwise.hpp"

namespace hyperslab::model {
namespace {

bool trains(const StageOptions& options, param::Role role) {
  if (!options.training) return false;
  if (options.adapter) return role == param::Role::adapter;
  const std::vector<param::Role>& roles = options.trained_roles;
  return roles.empty() || std::ranges::find(roles, role) != roles.end();
}

}  // namespace

Stage::Stage(const ModelSpec& spec, const StageOptions& options, Arenas& arenas,
             sharding::Presence& presence)
    : Stage(make_architecture(spec, options), options, arenas, presence) {}

Stage::Stage(std::unique_ptr<Architecture> architecture, const StageOptions& options,
             Arenas& arenas, sharding::Presence& presence)
    : options_(options),
      architecture_(std::move(architecture)),
      presence_(presence),
      params_(
          options.position, [&](param::Role role) { return trains(options, role); },
          options.storage, architecture_->parametrization()) {
  options_.cache_size = options_.cache_size.resolved(options_.B, options_.T);
  if (options_.chunks.empty()) options_.chunks = {{0, architecture_->units(), 1}};
  make_units();
  params_.lay_out(options_.bucket_bytes);
  presence.allocate(
      params_, {arenas.parameters, arenas.host, options_.training ? &arenas.gradients : nullptr},
      {options_.statistics(), options_.compute, options_.gradients()});
  architecture_->plan_shared(arenas);
  for (const Held& held : units_) held.unit->plan_shared(arenas);
  cache_bytes_ = static_cast<std::int64_t>(arenas.activations.used_bytes());
  for (int chunk = 0; chunk < chunks(); ++chunk) plan_slots(arenas.activations, chunk);
}

void Stage::make_units() {
  for (int chunk = 0; chunk < chunks(); ++chunk) {
    const Chunk& range = options_.chunks[index(chunk)];
    for (int unit = range.first_unit; unit < range.first_unit + range.units; ++unit) {
      params_.begin_unit();
      units_.push_back(
          {architecture_->make(unit, params_), chunk, unit, architecture_->info(unit).name});
    }
  }
}

void Stage::plan_slots(Arena& activations, int chunk) {
  const std::size_t before = activations.used_bytes();
  std::vector<Slot>& slots = slots_.emplace_back(index(options_.chunks[index(chunk)].slots));
  for (Slot& slot : slots) plan_slot(activations, chunk, slot);
  const std::size_t taken = activations.used_bytes() - before;
  slot_bytes_.push_back(static_cast<std::int64_t>(taken / slots.size()));
}

void Stage::plan_slot(Arena& activations, int chunk, Slot& slot) {
  const Shape stream = architecture_->stream();
  const DType compute = options_.compute;
  slot.allocations.first = activations.allocations().size();
  const auto keeps = [&](int unit) {  // assigns allocations since the last call
    slot.allocations.units.resize(activations.allocations().size() - slot.allocations.first, unit);
  };
  slot.batch = architecture_->plan_batch(activations, {begins_model(chunk), ends_model(chunk)});
  if (!begins_model(chunk)) slot.input = activations.take(compute, stream, "stage input");
  keeps(kWholeSlot);
  CView in = slot.input;
  const UnitRange range = units(chunk);
  for (int unit = range.first; unit < range.last; ++unit) {
    in = at(unit).unit->plan(activations, in);
    keeps(unit);
  }
  if (!ends_model(chunk)) slot.output = activations.take(compute, stream, "stage output");
  if (options_.training) slot.d = activations.take(compute, stream, "d_residual");
  keeps(kWholeSlot);
}

Stage::UnitRange Stage::units(int chunk) const {
  UnitRange range;
  for (int i = 0; i < chunk; ++i) range.first += options_.chunks[index(i)].units;
  range.last = range.first + options_.chunks[index(chunk)].units;
  return range;
}

bool Stage::begins_model(int chunk) const { return options_.chunks[index(chunk)].first_unit == 0; }

bool Stage::ends_model(int chunk) const {
  const Chunk& range = options_.chunks[index(chunk)];
  return range.first_unit + range.units == architecture_->units();
}

BatchViews Stage::reads(int chunk, Mode mode) const {
  BatchViews all;
  const UnitRange range = units(chunk);
  for (int unit = range.first; unit < range.last; ++unit) all |= at(unit).unit->reads(mode);
  return all;
}

void Stage::initialize(Context& ctx) {
  if (ctx.device() == Device::meta) return;
  architecture_->initialize(ctx);
  for (const Held& held : units_) held.unit->initialize(ctx);
  for (const param::ParamGroup& group : params_.groups()) {
    param::initialize(ctx, group, options_.seed);
  }
  param::initialize_quantized(ctx, params_, options_.seed);
}

void Stage::after_step(Context& ctx, const StepViews& step) {
  for (const Held& held : units_) held.unit->after_step(ctx, step.loads, step.state);
}

void Stage::forward(Context& ctx, SlotId id, int unit, Mode mode, const StepViews& step,
                    Accumulate accumulate) {
  Slot& slot = this->slot(id);
  const UnitRange range = units(id.chunk);
  if (unit == range.first) slot.stream = {slot.input, {}};
  const UnitCall call = {.slot = id.slot,
                         .batch = slot.batch,
                         .mode = mode,
                         .step = step,
                         .accumulate = accumulate,
                         .d = slot.d};
  slot.stream = at(unit).unit->forward(ctx, call, slot.stream);
  if (unit + 1 == range.last && !ends_model(id.chunk)) finish_forward(ctx, slot);
}

void Stage::finish_forward(Context& ctx, const Slot& slot) const {
  if (slot.stream.delta) {
    ops::add(ctx, slot.stream.residual, slot.stream.delta, slot.output);
  } else {
    ops::cast(ctx, slot.stream.residual, slot.output);
  }
}

void Stage::backward(Context& ctx, SlotId id, int unit, const StepViews& step,
                     Accumulate accumulate, nn::BackwardPart part) {
  require(options_.training, "this stage was planned without gradients");
  const Slot& slot = this->slot(id);
  ops::with_deferred_reductions(ctx, [&] {
    at(unit).unit->backward(ctx, {.slot = id.slot,
                                  .batch = slot.batch,
                                  .step = step,
                                  .accumulate = accumulate,
                                  .part = part,
                                  .d = slot.d});
  });
}

void Stage::decode(Context& ctx, View tokens, const ops::TokenPosition& past, View logits) {
  decode(ctx, {tokens, past, {}, tokens.shape()[1] - 1}, logits);
}

void Stage::decode(Context& ctx, const PagedStep& step, View logits) {
  require(options_.generation == Generation::cached, "this stage was planned without a cache");
  require(!options_.tensor.cuts_rows() && units() == architecture_->units(),
          "generation takes the whole model, and whole rows on every tensor rank");
  Batch batch;
  batch.tokens = step.tokens;
  run_units(ctx, {.batch = batch,
                  .mode = Mode::decode,
                  .texts = {step.past, step.pages},
                  .logits = {.to = logits, .last = step.last}});
}

void Stage::read_whole(Context& ctx, std::span<const Dim> rows, View logits) {
  require(options_.generation == Generation::whole, "this stage was not planned for whole texts");
  const UnitCall call = {
      .batch = slot({0, 0}).batch, .mode = Mode::evaluate, .logits = {.to = logits, .rows = rows}};
  run_units(ctx, call);
}

void Stage::run_units(Context& ctx, const UnitCall& call) {
  nn::ResidualStream stream;
  presence_.for_units(ctx, 0, units(), sharding::Order::ascending,
                      [&](int unit) { stream = at(unit).unit->forward(ctx, call, stream); });
}

CView Stage::activation(SlotId id, int unit) const {
  require(options_.training, "a forward-only stage keeps no activations");
  if (unit + 1 == units(id.chunk).last && !ends_model(id.chunk)) return slot(id).output;
  return at(unit + 1).unit->input(id.slot);
}

}  // namespace hyperslab::model
