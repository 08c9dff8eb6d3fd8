// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hyperslab/core/graph.hpp"
#include "hyperslab/io/dataset.hpp"
#include "hyperslab/mesh/mesh.hpp"
#include "hyperslab/model/stage.hpp"
#include "hyperslab/ops/optimizer.hpp"
#include "hyperslab/optim/optimizer.hpp"
#include "hyperslab/pipeline/executor.hpp"
#include "hyperslab/sharding/presence.hpp"
#include "hyperslab/train/config.hpp"
#include "hyperslab/train/evaluation.hpp"
#include "hyperslab/train/inspection.hpp"
#include "hyperslab/train/slot_data.hpp"
#include "hyperslab/train/trainer_state.hpp"

namespace hyperslab::train {

class BatchFeed;
class StageWorker;
class StepRecords;

/// The purpose of a trainer; the deck says the rest.
struct TrainerOptions {
  Device device = Device::cpu;
  bool training = true;  ///< false: forward only, no gradients and no optimizer state
  /// A trainer that trains keeps a cache beside all else.
  model::Generation generation = model::Generation::none;
  model::CacheSize cache_size = {};
  Dim draft_tokens = 0;          ///< guesses that a pass reads of a text to continue, at most
  bool graphs = true;            ///< CUDA graphs if the device has them
  bool overlap_update = true;    ///< on a GPU parameters are updated beside the next forward pass
  bool time_components = false;  ///< also if marks cost the device time
  bool canary = false;           ///< fill arenas with a pattern, to see which parts are touched
  DType compute = DType::f32;
  Machine machine = {};          ///< that the trainer runs on, or is planned for
  Dim B = 0;                     ///< 0: the deck's microbatch
  Dim T = 0;                     ///< 0: the deck's context
  Activity* activity = nullptr;  ///< record of a real trainer's progress; null: none
};

/// The device that the deck means here and the dtype that its precision computes in. On a GPU it
/// also makes the one of this rank the one in use.
[[nodiscard]] TrainerOptions trainer_options(const Config& config, int local_rank, bool training);

/// One rank's share of a model with its gradients, optimizer state and memory, and the step over
/// them. The same class runs on `meta` to find memory and work.
class Trainer {
 public:
  /// A trainer on `meta` with measuring arenas, whose memory_plan() make() needs.
  [[nodiscard]] static std::unique_ptr<Trainer> measure(const Config& config,
                                                        const mesh::Mesh& mesh,
                                                        const TrainerOptions& options);
  /// A trainer on options.device with arenas of exactly the planned sizes. Throws OutOfMemory.
  [[nodiscard]] static std::unique_ptr<Trainer> make(const Config& config, const mesh::Mesh& mesh,
                                                     const TrainerOptions& options,
                                                     const model::MemoryPlan& plan);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  Trainer(Trainer&&) = delete;
  Trainer& operator=(Trainer&&) = delete;

  /// One optimizer step: microbatches from the loader through the pipeline's program, reduction,
  /// finalize_step, update. Everything is only enqueued if the device works beside the host;
  /// result() and times() of the step wait for it.
  struct StepArgs {
    std::int64_t step = 1;
    double learning_rate = 0;
    bool stop_requested = false;
    /// Loss and gradients are computed and recorded, and nothing is updated.
    bool leave_out = false;
    /// Events are kept, and the timeline of memory. On a GPU the passes run without graphs.
    bool traced = false;
    /// The host of a GPU waits at every mark of a traced step's timeline of memory.
    bool waits_at_marks = false;
  };
  void step(const StepArgs& args, io::Loader& loader);
  /// A step on the data that the slots hold, for bench and plans.
  void step(const StepArgs& args);
  /// The first microbatch of `step` into every slot, for steps without a loader. On return the
  /// loader is not needed any more.
  void fill_slots(io::Loader& loader, std::int64_t step);
  /// The passes of `step` and of an evaluation, without graphs and without an update, so that
  /// libraries choose their algorithms now. Collective; waits for the device.
  void warm_up(io::Loader& loader, std::int64_t step);
  /// Waits until no thread reads from the loader of earlier steps.
  void release_loader();
  /// Forward and backward of all microbatches without reduction and update, for bench.
  void forward_backward(const StepArgs& args);
  /// Forward of all microbatches with the loss, for bench.
  void forward(const StepArgs& args);

  /// Asked in every step before the update, with the loss in nats per token and the norm of the
  /// gradients over all ranks: true leaves the step out. The host waits for the device in every
  /// step then, and the update runs without graphs. Must answer alike on all ranks.
  using Judge = std::function<bool(std::int64_t step, double loss, double gradient_norm)>;
  void set_judge(Judge judge) { judge_ = std::move(judge); }
  struct BadNumbers {
    bool loss = false;   ///< the loss of this rank's samples is not finite
    std::string tensor;  ///< the first whose gradient of this rank's samples is not; empty: none
  };
  /// Forward and backward of `args.step` once more, without reduction and update. On a GPU it can
  /// be asked for after the host has read the result of the newest step. Collective.
  [[nodiscard]] BadNumbers find_bad_numbers(const StepArgs& args, io::Loader& loader);

  /// `work` is done again and again while the host waits for the result of a step.
  void set_idle_work(std::function<void()> work);
  /// Loads of experts in such a step as result() has: pairs of a token and an expert, of all ranks,
  /// (layers with experts, experts). Empty without experts.
  [[nodiscard]] std::vector<double> loads(std::int64_t step) const;
  /// The result of a step that is at most two older than the newest; waits for it.
  [[nodiscard]] const ops::StepResult& result(std::int64_t step) const;
  /// Graph segments that the newest step ran, the update among them.
  [[nodiscard]] int segments() const;

  /// Functions that an evaluation calls; each may be empty.
  struct EvaluationCalls {
    /// The evaluation is cut short between two microbatches as soon as it is true on any rank.
    std::function<bool()> is_asked_to_stop = {};
    /// For a model of images, on one rank that ends the model: logits (B, columns) f32, the classes
    /// and then padding, and labels (B, 2) i32 of samples [first, first + B), on the host. Rows
    /// that do not count have the label ops::kIgnoredTarget.
    std::function<void(std::int64_t first, CView logits, CView labels)> logits = {};
    /// For a model of text, on one rank that ends the model: scores (B, T, ops::kTargetScoreCount)
    /// of the targets of samples [first, first + B), f32 (f64 for f64), on the host. Targets that
    /// do not count have scores of 0.
    std::function<void(std::int64_t first, CView scores)> scores = {};
  };
  /// Loss and accuracy over the counted targets of samples [0, count), the same numbers for every
  /// layout: samples are split into microbatches, rests are filled with ignored targets.
  /// Collective over the world.
  Evaluation evaluate(const io::Samples& samples, std::int64_t count, comm::World& world,
                      const EvaluationCalls& calls);
  Evaluation evaluate(const io::Samples& samples, std::int64_t count, comm::World& world) {
    return evaluate(samples, count, world, {});
  }

  [[nodiscard]] Context& context() { return *ctx_; }
  [[nodiscard]] model::Stage& stage() { return stage_; }
  [[nodiscard]] const model::Stage& stage() const { return stage_; }
  [[nodiscard]] const model::Arenas& arenas() const { return arenas_; }
  [[nodiscard]] TrainerState& state() { return *state_; }
  [[nodiscard]] const TrainerState& state() const { return *state_; }
  [[nodiscard]] Inspection& inspection() { return *inspection_; }
  [[nodiscard]] const Inspection& inspection() const { return *inspection_; }
  [[nodiscard]] const param::StateView& gradients() const { return presence_.gradients().sums(); }
  [[nodiscard]] Dim microbatch() const { return stage_.options().B; }  ///< samples
  [[nodiscard]] Dim sequence() const {                                 ///< tokens of a sample
    return stage_.options().context_group.all_tokens(stage_.options().T);
  }
  /// Tokens of a microbatch that this rank has.
  [[nodiscard]] Dim slot_tokens() const { return stage_.options().B * stage_.options().T; }

 private:
  [[nodiscard]] bool passes_together() const;
  /// `plan`: null to measure.
  Trainer(const Config& config, const mesh::Mesh& mesh, const TrainerOptions& options,
          const model::MemoryPlan* plan);
  [[nodiscard]] model::StepViews step_views() const;
  void set_up_training();
  void share_memory();
  void set_up_worker();
  /// `weights`: the divisor of the global batch's loss.
  void begin(const StepArgs& args, double weights);
  [[nodiscard]] double batch_targets() const {
    return static_cast<double>(config_.train.global_batch *
                               (config_.model.is_of_images() ? 1 : sequence()));
  }
  void train(const StepArgs& args, const SlotData& tokens);
  void round_from(std::int64_t step);
  void run_program(const StepArgs& args, const SlotData& tokens, bool reduces);
  void reduce_sums();
  [[nodiscard]] bool is_left_out(const StepArgs& args);
  void finalize();
  void begin_update();
  void update_range(const ops::StepState* state, std::size_t index);
  void update_beside();
  void end();
  Config config_;
  const mesh::Mesh& mesh_;
  TrainerOptions options_;
  pipeline::Program program_;
  model::Arenas arenas_;
  /// Communicator::share of the tensor group's scratch, then of the data group's parameters and
  /// gradients; null where ranks share none.
  std::vector<std::shared_ptr<void>> shared_memory_;
  sharding::Presence presence_;
  model::Stage stage_;
  std::unique_ptr<optim::Optimizer> optimizer_;  ///< null if forward only
  std::unique_ptr<Context> ctx_;
  std::unique_ptr<StepRecords> records_;
  std::unique_ptr<Inspection> inspection_;
  std::unique_ptr<BatchFeed> feed_;
  std::unique_ptr<StageWorker> worker_;
  std::unique_ptr<pipeline::Executor> executor_;    ///< runs a training step
  std::unique_ptr<pipeline::Executor> evaluation_;  ///< runs one microbatch, forward only
  std::unique_ptr<TrainerState> state_;
  ops::StepInput input_;  ///< input of the newest step
  GraphSegment update_;
  Judge judge_;         ///< empty: steps are not judged before the update
  bool rounds_ = true;  ///< with fake quantization
};

}  // namespace hyperslab::train
