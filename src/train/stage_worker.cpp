// SPDX-License-Identifier: Apache-2.0
#include "stage_worker.hpp"

#include <algorithm>

#include "hyperslab/core/fault.hpp"
#include "hyperslab/ops/loss.hpp"

namespace hyperslab::train {
namespace {

using sharding::Order;

UnitPass pass_of(nn::BackwardPart part) {
  switch (part) {
    case nn::BackwardPart::both: return UnitPass::backward;
    case nn::BackwardPart::input: return UnitPass::backward_input;
    case nn::BackwardPart::weight: return UnitPass::backward_weight;
  }
  return UnitPass::backward;
}

}  // namespace

UnitScope StageWorker::scope(model::SlotId id, int unit, UnitPass pass) const {
  return {parts_.ctx, parts_.timeline, {id, unit, pass, parts_.stage.name(unit)}};
}

void StageWorker::load(model::SlotId id, int microbatch) {
  const model::Stage& stage = parts_.stage;
  const BatchViews reads = stage.reads(id.chunk, args_.mode);
  if (!reads.any()) return;
  const Scope phase(parts_.ctx.recorder(), Phase::data);
  const Batch destination = reads.of(stage.batch(id));
  if (const auto* sampled = std::get_if<SampledData>(&args_.tokens)) {
    const Dim B = stage.options().B;
    parts_.feed.load(parts_.ctx,
                     {sampled->samples, sampled->chunk * B, sampled->count, sampled->stride * B},
                     destination);
  } else if (const auto* loaded = std::get_if<LoadedData>(&args_.tokens)) {
    parts_.feed.load(parts_.ctx, loaded->loader, args_.step, microbatch, destination);
  }
}

/// The host's own device has nothing to gain from segments, and lets reductions advance in between.
bool StageWorker::by_unit() const { return parts_.ctx.device() != Device::cuda || !graphs(); }

bool StageWorker::reduces(int microbatch) const {
  const bool last = microbatch == args_.microbatches - 1;
  return args_.reduces && (last || parts_.presence.gradients().reduces_every_microbatch());
}

nn::Accumulate StageWorker::accumulate(int microbatch) const {
  return microbatch == 0 || parts_.presence.gradients().reduces_every_microbatch()
             ? nn::Accumulate::no
             : nn::Accumulate::yes;
}

GraphSegment& StageWorker::segment(Work work, model::SlotId id, int first, int last,
                                   nn::Accumulate accumulate) {
  ++segments_run_;
  return segments_[{work, id.chunk, id.slot, first, last, accumulate == nn::Accumulate::yes}];
}

/// Lets work that is enqueued from now on write the gradients of units [first, last).
void StageWorker::free_gradients(int first, int last, int microbatch) {
  if (!args_.reduces || args_.mode != model::Mode::train) return;
  for (int unit = first; unit < last; ++unit) {
    parts_.presence.gradients().before_backward(parts_.ctx, unit, microbatch);
  }
}

void StageWorker::forward(int chunk, int slot, int microbatch) {
  const model::SlotId id = {chunk, slot};
  model::Stage& stage = parts_.stage;
  parts_.ctx.recorder().set_microbatch(microbatch);
  parts_.memory.change(stage.slot_bytes(chunk), "activations");
  load(id, microbatch);
  const Scope phase(parts_.ctx.recorder(), Phase::forward);
  fault::reach("step.forward");
  const bool trains = args_.mode == model::Mode::train;
  const nn::Accumulate add = accumulate(microbatch);
  const auto [begin, end] = stage.units(chunk);
  const bool waits = parts_.presence.values().by_unit(trains && microbatch == 0);
  const int stride = by_unit() || waits ? 1 : end - begin;
  for (int first = begin; first < end; first += stride) {
    const int last = std::min(first + stride, end);
    parts_.presence.before(parts_.ctx, first, last, Order::ascending);
    for (int unit = first; unit < last; ++unit) {
      if (stage.forward_writes_gradients(unit)) free_gradients(unit, unit + 1, microbatch);
    }
    segment(trains ? Work::forward : Work::evaluate, id, first, last, add)
        .run(parts_.ctx, graphs(), [&] {
          parts_.presence.for_units(parts_.ctx, first, last, Order::ascending, [&](int unit) {
            const UnitScope running =
                scope(id, unit, trains ? UnitPass::forward : UnitPass::evaluate);
            stage.forward(parts_.ctx, id, unit, args_.mode, args_.step_views, add);
          });
        });
  }
  if (!trains) parts_.memory.change(-stage.slot_bytes(chunk), "activations");
}

StageWorker::Work StageWorker::work_of(nn::BackwardPart part) {
  return part == nn::BackwardPart::both    ? Work::backward
         : part == nn::BackwardPart::input ? Work::input
                                           : Work::weight;
}

void StageWorker::run_backward(model::SlotId id, int microbatch, nn::BackwardPart part) {
  model::Stage& stage = parts_.stage;
  parts_.ctx.recorder().set_microbatch(microbatch);
  const Scope phase(parts_.ctx.recorder(), Phase::backward);
  fault::reach("step.backward");
  const nn::Accumulate add = accumulate(microbatch);
  const bool sums = reduces(microbatch) && part != nn::BackwardPart::input;
  const bool is_last = microbatch == args_.microbatches - 1;
  // Products of weights' gradients take no values.
  const bool multiplies =
      parts_.presence.values().by_unit(false) && part != nn::BackwardPart::weight;
  const auto [begin, end] = stage.units(id.chunk);
  for (int last = end; last > begin;) {
    int first = last - 1;
    const auto ends_here = [&] {
      return by_unit() || multiplies ||
             (sums && parts_.presence.gradients().closes(first, microbatch, is_last));
    };
    while (first > begin && !ends_here()) --first;
    if (multiplies) parts_.presence.before(parts_.ctx, first, last, Order::descending);
    free_gradients(first, last, microbatch);
    segment(work_of(part), id, first, last, add).run(parts_.ctx, graphs(), [&] {
      const auto pass = [&](int unit) {
        const UnitScope running = scope(id, unit, pass_of(part));
        stage.backward(parts_.ctx, id, unit, args_.step_views, add, part);
      };
      if (part == nn::BackwardPart::weight) {  // takes no matrices
        for (int unit = last - 1; unit >= first; --unit) pass(unit);
      } else {
        parts_.presence.for_units(parts_.ctx, first, last, Order::descending, pass);
      }
    });
    if (sums) parts_.presence.gradients().ready(parts_.ctx, first, microbatch, is_last);
    parts_.presence.gradients().progress();
    last = first;
  }
  if (part != nn::BackwardPart::input) {
    parts_.memory.change(-stage.slot_bytes(id.chunk), "activations");
  }
}

void StageWorker::backward(int chunk, int slot, int microbatch) {
  run_backward({chunk, slot}, microbatch, nn::BackwardPart::both);
}
void StageWorker::backward_input(int chunk, int slot, int microbatch) {
  run_backward({chunk, slot}, microbatch, nn::BackwardPart::input);
}
void StageWorker::backward_weight(int chunk, int slot, int microbatch) {
  run_backward({chunk, slot}, microbatch, nn::BackwardPart::weight);
}

View StageWorker::input(int chunk, int slot) { return parts_.stage.input({chunk, slot}); }
CView StageWorker::output(int chunk, int slot) { return parts_.stage.output({chunk, slot}); }
View StageWorker::output_gradient(int chunk, int slot) {
  return parts_.stage.gradient({chunk, slot});
}
CView StageWorker::input_gradient(int chunk, int slot) {
  return parts_.stage.gradient({chunk, slot});
}

}  // namespace hyperslab::train
