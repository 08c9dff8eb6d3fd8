// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "hyperslab/model/arenas.hpp"
#include "hyperslab/model/spec.hpp"
#include "hyperslab/model/stage_options.hpp"
#include "hyperslab/model/unit.hpp"
#include "hyperslab/sharding/presence.hpp"

namespace hyperslab::model {

/// A microbatch's activations on a rank.
struct SlotId {
  int chunk = 0;
  int slot = 0;
};

/// The units of a model that this rank holds, in chunks. Units are counted from 0 on every rank,
/// over all of its chunks. Forward runs the units of a chunk in order, backward in reverse; between
/// units the caller may start collectives. The stage keeps the stream that enters and leaves a
/// chunk and the gradient of the residual stream, for every slot; the rest is the units' own.
class Stage {
 public:
  /// `presence` takes the parameters' memory. It refers to params(), and outlives the stage.
  Stage(std::unique_ptr<Architecture> architecture, const StageOptions& options, Arenas& arenas,
        sharding::Presence& presence);
  /// A stage of the model that `spec` describes.
  Stage(const ModelSpec& spec, const StageOptions& options, Arenas& arenas,
        sharding::Presence& presence);

  [[nodiscard]] const StageOptions& options() const { return options_; }
  [[nodiscard]] param::ParamStore& params() { return params_; }
  [[nodiscard]] const param::ParamStore& params() const { return params_; }
  [[nodiscard]] int units() const { return static_cast<int>(units_.size()); }
  /// Units [first, last) of a chunk.
  struct UnitRange {
    int first = 0;
    int last = 0;
  };
  [[nodiscard]] UnitRange units(int chunk) const;
  /// Which unit of the model a unit of this rank is, and its name.
  [[nodiscard]] int unit_of_model(int unit) const { return at(unit).of_model; }
  [[nodiscard]] const std::string& name(int unit) const { return at(unit).name; }
  [[nodiscard]] int chunks() const { return static_cast<int>(options_.chunks.size()); }
  /// True if a chunk begins with the model's first unit, or ends with its last.
  [[nodiscard]] bool begins_model(int chunk) const;
  [[nodiscard]] bool ends_model(int chunk) const;
  /// Views of a batch that units of a chunk read.
  [[nodiscard]] BatchViews reads(int chunk, Mode mode) const;
  /// True if forward of a unit with Mode::train writes parameter gradients.
  [[nodiscard]] bool forward_writes_gradients(int unit) const {
    return at(unit).unit->forward_writes_gradients();
  }
  [[nodiscard]] const Batch& batch(SlotId id) const { return slot(id).batch; }
  /// Bytes of activations that no slot takes: the key-value cache.
  [[nodiscard]] std::int64_t cache_bytes() const { return cache_bytes_; }
  /// Bytes of activations that a slot of a chunk takes.
  [[nodiscard]] std::int64_t slot_bytes(int chunk) const { return slot_bytes_.at(index(chunk)); }

  /// A slot's allocations in the activations' arena, one after the other: the first, and for each
  /// the unit that keeps something there; kWholeSlot: the slot itself.
  struct SlotAllocations {
    std::size_t first = 0;
    std::vector<int> units;
  };
  static constexpr int kWholeSlot = -1;
  [[nodiscard]] const SlotAllocations& allocations(SlotId id) const { return slot(id).allocations; }
  /// Bytes of the residual stream of a microbatch at one point between two units.
  [[nodiscard]] std::size_t stream_bytes() const {
    return static_cast<std::size_t>(architecture_->stream().numel()) * size_of(options_.compute);
  }

  /// Fills constants, and masters and values with initial values.
  void initialize(Context& ctx);

  /// Unit::after_step of all units.
  void after_step(Context& ctx, const StepViews& step);

  /// Brings the values of a unit to where it multiplies by them; passes go through its for_units().
  [[nodiscard]] sharding::Presence& presence() { return presence_; }
  /// Mode::train leaves in the slot the activations for backward. After the last unit of a chunk
  /// that does not end the model, output() has the stream to send on.
  void forward(Context& ctx, SlotId id, int unit, Mode mode, const StepViews& step,
               Accumulate accumulate);
  void backward(Context& ctx, SlotId id, int unit, const StepViews& step, Accumulate accumulate,
                nn::BackwardPart part = nn::BackwardPart::both);

  /// The input of a chunk that does not begin the model, the output of one that does not end it,
  /// and the gradient of the output, which backward replaces by the input's.
  [[nodiscard]] View input(SlotId id) const { return slot(id).input; }
  [[nodiscard]] View output(SlotId id) const { return slot(id).output; }
  [[nodiscard]] View gradient(SlotId id) const { return slot(id).d; }

  /// Generation: tokens: (B, T_new) i32, at most as many as a slot holds; `past` tokens are in the
  /// cache; logits: (B, columns) of the last token, or (B T_new, columns) of all. Needs
  /// Generation::cached and the whole model, which tensor ranks may share: each gives the same
  /// tokens and gets all logits. In training the parameters are the current ones, and the first
  /// slot's activations are overwritten.
  void decode(Context& ctx, View tokens, const ops::TokenPosition& past, View logits);
  /// decode with logits of token `last` in place of the last one; tokens after it count for
  /// nothing. On `pages` of the cache, (B, most) i32, samples may differ in `past`; absent: as
  /// above.
  struct PagedStep {
    View tokens;
    ops::TokenPosition past;
    CView pages;
    Dim last = 0;
  };
  void decode(Context& ctx, const PagedStep& step, View logits);
  /// Logits without a cache, with Generation::whole: an evaluation's pass over the tokens in
  /// batch({0, 0}), whose samples begin with the texts. `rows`: tokens b T + t, ascending; logits:
  /// (rows, columns) of each row's next token, with the bits that loss has.
  void read_whole(Context& ctx, std::span<const Dim> rows, View logits);
  /// The results of the model's last unit; absent if it is not here.
  [[nodiscard]] HeadResults results() const { return units_.back().unit->results(); }

  /// The residual stream after a unit, as the newest training pass left it; for looking inside.
  [[nodiscard]] CView activation(SlotId id, int unit) const;

 private:
  void run_units(Context& ctx, const UnitCall& call);
  struct Held {
    std::unique_ptr<Unit> unit;
    int chunk = 0;
    int of_model = 0;
    std::string name;
  };
  struct Slot {
    Batch batch;
    View input;
    View output;
    View d;                     ///< gradient of the residual stream
    nn::ResidualStream stream;  ///< between two units of forward
    SlotAllocations allocations;
  };
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] const Held& at(int unit) const { return units_.at(index(unit)); }
  [[nodiscard]] Slot& slot(SlotId id) { return slots_.at(index(id.chunk)).at(index(id.slot)); }
  [[nodiscard]] const Slot& slot(SlotId id) const {
    return slots_.at(index(id.chunk)).at(index(id.slot));
  }
  void make_units();
  void plan_slots(Arena& activations, int chunk);
  void plan_slot(Arena& activations, int chunk, Slot& slot);
  void finish_forward(Context& ctx, const Slot& slot) const;

  StageOptions options_;
  std::unique_ptr<Architecture> architecture_;
  sharding::Presence& presence_;
  param::ParamStore params_;
  std::vector<Held> units_;
  std::vector<std::vector<Slot>> slots_;  ///< [chunk][slot]
  std::int64_t cache_bytes_ = 0;
  std::vector<std::int64_t> slot_bytes_;
};

}  // namespace hyperslab::model
