// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "hyperslab/data/reducer.hpp"
#include "hyperslab/io/checkpoint.hpp"
#include "hyperslab/io/dataset.hpp"
#include "hyperslab/mesh/mesh.hpp"
#include "hyperslab/model/stage.hpp"
#include "hyperslab/ops/optimizer.hpp"
#include "hyperslab/optim/adamw.hpp"
#include "hyperslab/train/config.hpp"
#include "hyperslab/train/memory_meter.hpp"

namespace hyperslab::train {

/// What a trainer is made for; the deck says the rest.
struct TrainerOptions {
  Device device = Device::cpu;
  bool training = true;  ///< false: forward only, no gradients and no optimizer state
  bool cache = false;    ///< for generation: a key-value cache of `T` tokens
  bool canary = false;   ///< fill arenas with a pattern, to see what is touched
  DType compute = DType::f32;
  Dim B = 0;  ///< 0: the deck's microbatch
  Dim T = 0;  ///< 0: the deck's context
};

/// Loss and accuracy as sums over counted tokens.
struct Evaluation {
  double loss_sum = 0;
  double tokens = 0;
  double correct = 0;
  [[nodiscard]] double loss() const { return loss_sum / tokens; }
  [[nodiscard]] double perplexity() const;
  [[nodiscard]] double token_accuracy() const { return correct / tokens; }
};

/// One rank's share of a model with its gradients, optimizer state and memory, and the step over
/// them. The same class runs on `meta` to find memory and work.
class Trainer {
 public:
  /// Sets up on `meta` with measuring arenas, where `plan` is null, else on options.device with
  /// arenas of exactly the planned sizes.
  Trainer(const Config& config, const mesh::Mesh& mesh, const TrainerOptions& options,
          const model::MemoryPlan* plan);

  /// Initial parameters, by (seed, name, global element index), and cleared moments.
  void initialize();

  /// One optimizer step: microbatches from the loader (absent: the slots keep what they hold),
  /// forward and backward, reduction, judgement, update. Results come by result(), later.
  struct Order {
    std::int64_t step = 1;
    double learning_rate = 0;
    bool stop_requested = false;
    bool traced = false;
  };
  const StepTimes& step(const Order& order, io::Loader* loader);
  /// Forward and backward of all microbatches without reduction and update, for bench.
  const StepTimes& forward_backward(const Order& order);
  /// Forward of all microbatches with the loss, for bench.
  const StepTimes& forward(const Order& order);

  /// Of a step that is not older than the ring (4 steps).
  [[nodiscard]] const ops::StepResult& result(std::int64_t step) const;

  /// Mean loss over samples [0, count) in their order, the same number for every layout: samples
  /// are dealt out in microbatches, rests are filled with ignored targets. Collective over the
  /// world.
  Evaluation evaluate(const io::Samples& samples, std::int64_t count, comm::World& world);

  /// Everything a checkpoint needs of this rank; every element of every tensor is given by exactly
  /// one replica of the data group, in equal shares.
  [[nodiscard]] std::vector<io::Slab> slabs() const;
  void fill_meta(io::CheckpointMeta& meta) const;
  /// Loads parameters and, where training, moments and state.
  void load(const io::CheckpointReader& reader);

  [[nodiscard]] Context& context() { return *ctx_; }
  [[nodiscard]] model::Stage& stage() { return stage_; }
  [[nodiscard]] const model::Stage& stage() const { return stage_; }
  [[nodiscard]] const model::Arenas& arenas() const { return arenas_; }
  [[nodiscard]] const optim::AdamW& optimizer() const { return *optimizer_; }
  [[nodiscard]] const MemoryMeter& memory() const { return memory_; }
  [[nodiscard]] const ops::StepState& state() const { return *state_; }
  [[nodiscard]] model::MemoryPlan memory_plan() const;
  [[nodiscard]] Dim B() const { return stage_.options().B; }
  [[nodiscard]] Dim T() const { return stage_.options().T; }

 private:
  [[nodiscard]] model::Stage::StepViews step_views() const { return {state_, sums_}; }
  void begin(const Order& order);
  void load_batch(io::Loader* loader, std::int64_t step, int microbatch);
  void run_forward(model::Pass pass, nn::Accumulate accumulate);
  void run_backward(nn::Accumulate accumulate, bool last);
  void judge();

  Config config_;
  const mesh::Mesh& mesh_;
  TrainerOptions options_;
  model::Arenas arenas_;
  model::Stage stage_;
  std::optional<optim::AdamW> optimizer_;
  std::unique_ptr<data::GradientReducer> reducer_;
  std::unique_ptr<Context> ctx_;
  MemoryMeter memory_;
  View state_memory_;
  View sums_;
  ops::StepState* state_ = nullptr;
  std::array<ops::StepResult, ops::kResultRing> results_{};
};

/// Memory and work of one rank, without any of it: setup and one step on `meta`.
struct Plan {
  model::MemoryPlan memory;
  Ledger ledger;                                                ///< of one step
  std::vector<std::pair<std::string, Allocation>> allocations;  ///< with the arena's name
  comm::Traffic data_traffic;                                   ///< of one step
};
[[nodiscard]] Plan make_plan(const Config& config, const TrainerOptions& options, int world_rank);

}  // namespace hyperslab::train
