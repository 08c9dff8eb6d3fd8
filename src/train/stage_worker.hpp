// SPDX-License-Identifier: Apache-2.0
// Passes of one rank over a microbatch, with its loads, reductions and gathers.
#pragma once

#include <map>
#include <tuple>

#include "hyperslab/core/graph.hpp"
#include "hyperslab/io/dataset.hpp"
#include "hyperslab/model/stage.hpp"
#include "hyperslab/pipeline/executor.hpp"
#include "hyperslab/sharding/presence.hpp"
#include "hyperslab/train/batch_feed.hpp"
#include "hyperslab/train/memory_meter.hpp"
#include "hyperslab/train/slot_data.hpp"
#include "unit_scope.hpp"

namespace hyperslab::train {

/// The passes of a stage as the pipeline's executor drives them. On a GPU the units between two
/// collectives are a graph segment.
class StageWorker final : public pipeline::Worker {
 public:
  struct Parts {
    Context& ctx;
    model::Stage& stage;
    BatchFeed& feed;
    MemoryMeter& memory;
    MemoryTimeline& timeline;
    sharding::Presence& presence;
    bool graphs = true;
  };
  explicit StageWorker(const Parts& parts) : parts_(parts) {}

  /// The kind of the next passes, and their step.
  struct PassArgs {
    model::Mode mode = model::Mode::train;
    model::StepViews step_views;
    std::int64_t step = 0;
    SlotData tokens;
    int microbatches = 1;
    bool reduces = true;  ///< gradients are summed over ranks in these passes
    bool eager = false;   ///< no graph is captured or replayed
  };
  void begin(const PassArgs& args) {
    args_ = args;
    segments_run_ = 0;
  }
  /// Segments that ran since begin().
  [[nodiscard]] int segments() const { return segments_run_; }
  /// The work of passes has changed: graphs are captured again.
  void forget_graphs() { segments_.clear(); }
  /// The next microbatch's tokens into a slot, if its chunk needs them.
  void load(model::SlotId id, int microbatch);

  void forward(int chunk, int slot, int microbatch) override;
  void backward(int chunk, int slot, int microbatch) override;
  void backward_input(int chunk, int slot, int microbatch) override;
  void backward_weight(int chunk, int slot, int microbatch) override;
  [[nodiscard]] View input(int chunk, int slot) override;
  [[nodiscard]] CView output(int chunk, int slot) override;
  [[nodiscard]] View output_gradient(int chunk, int slot) override;
  [[nodiscard]] CView input_gradient(int chunk, int slot) override;

 private:
  enum class Work : std::uint8_t { forward, evaluate, backward, input, weight };
  [[nodiscard]] static Work work_of(nn::BackwardPart part);
  using Key = std::tuple<Work, int, int, int, int, bool>;
  [[nodiscard]] bool graphs() const { return parts_.graphs && !args_.eager; }
  [[nodiscard]] bool by_unit() const;
  [[nodiscard]] bool reduces(int microbatch) const;
  [[nodiscard]] nn::Accumulate accumulate(int microbatch) const;
  /// A replayed segment sets nothing on the host: a pass's notes there (Slot::stream, the x of a
  /// norm's slot) were set when the same segment was captured, to the same addresses.
  [[nodiscard]] GraphSegment& segment(Work work, model::SlotId id, int first, int last,
                                      nn::Accumulate accumulate);
  void free_gradients(int first, int last, int microbatch);
  void run_backward(model::SlotId id, int microbatch, nn::BackwardPart part);
  [[nodiscard]] UnitScope scope(model::SlotId id, int unit, UnitPass pass) const;

  Parts parts_;
  PassArgs args_;
  std::map<Key, GraphSegment> segments_;
  int segments_run_ = 0;
};

}  // namespace hyperslab::train
