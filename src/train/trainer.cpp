// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/train/trainer.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "batch_views.hpp"
#include "expert_group_of.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/fault.hpp"
#include "hyperslab/core/stream_priority.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/ops/loss.hpp"
#include "hyperslab/ops/optimizer.hpp"
#include "hyperslab/optim/component.hpp"
#include "hyperslab/pipeline/validate.hpp"
#include "hyperslab/train/batch_feed.hpp"
#include "inject_fault.hpp"
#include "stage_worker.hpp"
#include "stages.hpp"
#include "step_records.hpp"

namespace hyperslab::train {
namespace {

/// Rows of a table and columns of logits divide by this on a GPU: whole 16-byte vectors, and the
/// tile of a matrix product.
constexpr Dim kVocabularyMultipleOnGpu = 128;
/// Logits that a GPU has at once; more rows of a microbatch come in parts.
constexpr std::size_t kLogitsBytesOnGpu = std::size_t{1} << 30;

pipeline::Program program_of(const Config& config, bool training) {
  const mesh::ParallelConfig& parallel = config.parallel;
  const auto microbatches = static_cast<int>(std::max<std::int64_t>(1, config.microbatches()));
  const auto schedule = training ? parallel.schedule : pipeline::Schedule::forward_only;
  pipeline::Program program =
      pipeline::make_program(schedule, parallel.pipeline, parallel.virtual_stages, microbatches);
  pipeline::validate(program);
  return program;
}

/// A forward-only run stores the rounded matrices that training only simulates.
param::MatrixStorage storage_of_matrices(const Config& config, const mesh::Mesh& mesh,
                                         bool training) {
  param::MatrixStorage storage = {.row_ranks = &mesh.group(mesh::Axis::tensor)};
  switch (config.model.frozen_format) {
    case param::StorageFormat::compute:
    case param::StorageFormat::bf16: break;
    case param::StorageFormat::int8: storage.frozen = {ops::WeightFormat::int8}; break;
    case param::StorageFormat::int4: storage.frozen = {ops::WeightFormat::int4}; break;
    case param::StorageFormat::nf4: storage.frozen = {ops::WeightFormat::nf4}; break;
  }
  if (!config.quantization) return storage;
  (training ? storage.trained : storage.frozen) = config.quantization.spec();
  storage.embeddings = rounded_tables(config).embeddings;
  storage.head = rounded_tables(config).head;
  return storage;
}

model::StageOptions stage_options(const Config& config, const mesh::Mesh& mesh,
                                  const TrainerOptions& options, const pipeline::Program& program) {
  model::StageOptions stage;
  stage.B = options.B > 0 ? options.B : config.train.microbatch;
  const Dim tokens = options.T > 0 ? options.T : config.model.context;
  stage.T = tokens / config.parallel.context;
  stage.chunks = chunks_of(config, program, mesh.at(mesh::Axis::pipeline));
  stage.training = options.training;
  stage.generation = options.generation;
  stage.cache_size = options.cache_size.resolved(stage.B, tokens);
  stage.split_backward = options.training && program.schedule == pipeline::Schedule::zero_bubble;
  put_memory(config.memory, stage);
  stage.compute = options.compute;
  stage.bf16_gradients = config.precision.gradients == Precision::bf16;
  stage.documents = config.data.documents == io::Documents::masked;
  stage.fused_attention =
      options.device != Device::cuda ||
      ops::has_fused_attention_on_gpu(options.compute, config.model.head_width());
  if (options.device == Device::cuda) {
    stage.logits_bytes = kLogitsBytesOnGpu;
    stage.vocabulary_multiple = kVocabularyMultipleOnGpu;
  }
  stage.z_loss = static_cast<float>(config.train.z_loss);
  stage.loss = config.head_loss(options.training);
  stage.seed = config.run.seed;
  stage.tensor = nn::TensorGroup(&mesh.group(mesh::Axis::tensor), config.parallel.sequence);
  stage.context_group = nn::ContextGroup(mesh.context_group());
  stage.expert_group = expert_group_of(config, mesh, options.device);
  stage.position = mesh.position();
  if (options.training) stage.trained_roles = config.train.trainable;
  stage.adapter = config.adapter;
  stage.fp8 = config.precision.fp8();
  stage.storage = storage_of_matrices(config, mesh, options.training);
  stage.bucket_bytes = static_cast<std::size_t>(config.parallel.bucket_mib * 1048576.0);
  return stage;
}

/// The batch of a slot, with views of every chunk, as no chunk need read all.
Batch batch_like(const model::Stage& stage) {
  Batch all;
  for (int chunk = 0; chunk < stage.chunks(); ++chunk) add_missing(stage.batch({chunk, 0}), all);
  return all;
}

/// The time of components is the compute stream's alone, and quantized matrices are dequantized
/// beside whole chunks, which updates would cut into units. A plan sees updates beside the next
/// step where these wait for the host.
bool overlaps_updates(const Config& config, const TrainerOptions& options, bool real) {
  const bool dequantizes = config.adapter || config.quantization;
  return (real || config.memory.optimizer == Home::host) && options.training &&
         options.device == Device::cuda && options.overlap_update && !options.time_components &&
         !dequantizes;
}

/// A forward-only run has nothing to shard.
sharding::Residence residence_of(const Config& config, const TrainerOptions& options) {
  return options.training ? sharding::residence_of(config.parallel, config.memory.optimizer)
                          : sharding::zero(0);
}

model::Arenas arenas_of(const TrainerOptions& options, const model::MemoryPlan* plan) {
  if (plan == nullptr) return model::Arenas::measuring();
  return model::Arenas::real(options.device, *plan, options.canary);
}

}  // namespace

std::unique_ptr<Trainer> Trainer::measure(const Config& config, const mesh::Mesh& mesh,
                                          const TrainerOptions& options) {
  return std::unique_ptr<Trainer>(new Trainer(config, mesh, options, nullptr));
}

std::unique_ptr<Trainer> Trainer::make(const Config& config, const mesh::Mesh& mesh,
                                       const TrainerOptions& options,
                                       const model::MemoryPlan& plan) {
  return std::unique_ptr<Trainer>(new Trainer(config, mesh, options, &plan));
}

Trainer::Trainer(const Config& config, const mesh::Mesh& mesh, const TrainerOptions& options,
                 const model::MemoryPlan* plan)
    : config_(config),
      mesh_(mesh),
      options_(options),
      program_(program_of(config, options.training)),
      arenas_(arenas_of(options, plan)),
      presence_(residence_of(config, options), overlaps_updates(config, options, plan != nullptr)),
      stage_(config.model, stage_options(config, mesh, options, program_), arenas_, presence_) {
  const bool real = plan != nullptr;
  {
    const MainStreams priority;
    ctx_ = std::make_unique<Context>(real ? options.device : Device::meta,
                                     real ? plan->workspace : 0, options.device);
  }
  ctx_->set_tf32(config.precision.compute == Precision::tf32);
  ctx_->set_deterministic(config.run.deterministic);
  ctx_->set_machine(options.machine);
  const bool host_moves_data = ctx_->device() == Device::cpu && mesh.group(mesh::kWorld).size() > 1;
  if (host_moves_data) ctx_->set_background(&mesh.group(mesh::kWorld));
  if (real) ctx_->recorder().set_activity(options.activity);
  if (options.training) set_up_training();
  records_ = std::make_unique<StepRecords>(*ctx_, arenas_.scratch,
                                           options.compute == DType::f64 ? DType::f64 : DType::f32,
                                           mesh, config.model);
  if (real) share_memory();  // all views are taken
  if (config.precision.compute == Precision::fp16 && ctx_->device() != Device::meta) {
    ops::StepState state;
    state.loss_scale = kFirstLossScale;
    records_->write_state(state);
  }
  records_->start_clock(options.time_components);
  inspection_ = std::make_unique<Inspection>(
      Inspection::Parts{mesh_, arenas_, stage_, presence_, optimizer_.get(), *ctx_, *records_,
                        program_.microbatches, real ? plan->workspace : 0});
  set_up_worker();
  state_ = std::make_unique<TrainerState>(TrainerState::Parts{config_, options_.compute, *ctx_,
                                                              stage_, presence_, optimizer_.get(),
                                                              *executor_, *records_});
}

void Trainer::share_memory() {
  for (comm::Communicator* group : {&mesh_.group(mesh::Axis::tensor), mesh_.expert_group()})
    if (group != nullptr) shared_memory_.push_back(group->share(arenas_.scratch));
  if (!options_.training) return;
  for (const Arena* arena : {&arenas_.parameters, &arenas_.gradients})
    shared_memory_.push_back(mesh_.group(mesh::kShards).share(*arena));
}

void Trainer::set_up_worker() {
  // The host is at most two steps ahead of the device.
  const std::size_t depth = std::size_t{3} * static_cast<std::size_t>(program_.microbatches) *
                            static_cast<std::size_t>(stage_.chunks());
  const bool has_tokens = stage_.reads(0, model::Mode::train).has(&Batch::tokens);
  const TokenPart tokens = {mesh_.at(mesh::Axis::context), mesh_.size(mesh::Axis::context)};
  feed_ = make_feed(*ctx_, batch_like(stage_), {depth, program_.microbatches, has_tokens, tokens});
  worker_ = std::make_unique<StageWorker>(StageWorker::Parts{
      *ctx_, stage_, *feed_, inspection_->memory(), inspection_->memory_timeline(), presence_,
      options_.graphs && config_.memory.activations == Home::device});
  comm::Communicator* group = &mesh_.group(mesh::Axis::pipeline);
  executor_ = std::make_unique<pipeline::Executor>(program_, mesh_.at(mesh::Axis::pipeline), group);
  evaluation_ = std::make_unique<pipeline::Executor>(
      pipeline::make_program(pipeline::Schedule::forward_only, program_.stages,
                             program_.virtual_stages, 1),
      mesh_.at(mesh::Axis::pipeline), group);
}

void Trainer::set_up_training() {
  optim::StatePlace place = {presence_.shards_state(), arenas_.optimizer};
  if (presence_.state_home() == Home::host) {
    constexpr double kMostGib = 1e6;  // bytes stay countable
    const double bytes = 1073741824.0 * std::min(config_.memory.resident_gib, kMostGib);
    place.host.emplace(optim::StatePlace::OnHost{arenas_.host, presence_.values().updated_ranges(),
                                                 static_cast<std::size_t>(bytes)});
  }
  optimizer_ = optim::make_optimizer(config_.optimizer, stage_.params().trained(), place,
                                     optim::UpdateGroups::of(mesh_));
  presence_.connect(mesh_);
}

Trainer::~Trainer() {
  if (std::uncaught_exceptions() == 0) state_->wait_all();  // else peers may be elsewhere by now
}

model::StepViews Trainer::step_views() const {
  return {records_->state(), records_->sums(), records_->loads()};
}
std::vector<double> Trainer::loads(std::int64_t step) const { return records_->loads(step); }
void Trainer::set_idle_work(std::function<void()> work) {
  records_->set_idle_work(std::move(work));
}
const ops::StepResult& Trainer::result(std::int64_t step) const { return records_->result(step); }
int Trainer::segments() const { return worker_->segments() + 1; }

void Trainer::step(const StepArgs& args, io::Loader& loader) {
  begin(args, loader.weights(args.step));
  train(args, LoadedData{loader});
}

void Trainer::step(const StepArgs& args) {
  begin(args, batch_targets());
  train(args, KeptData{});
}

void Trainer::train(const StepArgs& args, const SlotData& tokens) {
  presence_.gradients().begin_step();
  run_program(args, tokens, true);
  presence_.gradients().finish(*ctx_);
  inject_gradient_fault(*ctx_, presence_.gradients());
  fault::reach("step.optimizer");
  const bool alone = mesh_.group(mesh::kWorld).size() == 1;
  inspection_->memory_timeline().begin_update(*ctx_);
  state_->wait_for_snapshot();
  const bool host_decides = judge_ || args.leave_out;
  bool leaves_out = false;  // on a replay nothing is, as the host does not decide
  const bool captures = options_.graphs && alone && !host_decides && !args.traced;
  // Links to the host are streams that no graph knows, and updates beside the next step need none.
  update_.run(*ctx_, captures && !optimizer_->moves_state(), [&] {
    reduce_sums();
    records_->publish_loads();
    leaves_out = is_left_out(args);
    if (leaves_out) return records_->leave_out();
    finalize();
    stage_.after_step(*ctx_, step_views());
    begin_update();
  });
  if (!leaves_out && presence_.overlaps_updates()) update_beside();
  inject_parameter_fault(*ctx_, presence_.values(), stage_.params());
  presence_.gradients().report_waits(*ctx_);
  if (args.traced) executor_->finish(*ctx_);  // so that the ends of all transfers are in the trace
  end();
}

/// Fake quantization begins after so many steps; a plan sees the step with it.
void Trainer::round_from(std::int64_t step) {
  if (!config_.quantization || ctx_->device() == Device::meta) return;
  const bool rounds = step > config_.quantization.after;
  if (rounds == rounds_) return;
  rounds_ = rounds;
  presence_.set_rounding(rounds);
  worker_->forget_graphs();
}

void Trainer::run_program(const StepArgs& args, const SlotData& tokens, bool reduces) {
  round_from(args.step);
  StageWorker::PassArgs passes;
  passes.mode = options_.training ? model::Mode::train : model::Mode::evaluate;
  passes.step_views = step_views();
  passes.step = args.step;
  passes.tokens = tokens;
  passes.microbatches = program_.microbatches;
  passes.reduces = reduces;
  passes.eager = args.traced;
  worker_->begin(passes);
  executor_->run(*ctx_, *worker_);
}

void Trainer::fill_slots(io::Loader& loader, std::int64_t step) {
  StageWorker::PassArgs passes;
  passes.step = step;
  passes.tokens = LoadedData{loader};
  worker_->begin(passes);
  for (int chunk = 0; chunk < stage_.chunks(); ++chunk) {
    const int slots = program_.slot_count(mesh_.at(mesh::Axis::pipeline), chunk);
    for (int slot = 0; slot < slots; ++slot) worker_->load({chunk, slot}, 0);
  }
  synchronize(*ctx_);
  release_loader();
}

void Trainer::warm_up(io::Loader& loader, std::int64_t step) {
  fill_slots(loader, step);
  StepArgs args;
  args.step = step - 1;  // the host must not find the records of `step` there before it is
  begin(args, batch_targets());
  StageWorker::PassArgs passes;
  passes.step_views = step_views();
  passes.step = args.step;
  passes.microbatches = program_.microbatches;
  passes.reduces = false;
  passes.eager = true;
  worker_->begin(passes);
  executor_->run(*ctx_, *worker_);
  executor_->finish(*ctx_);
  passes.mode = model::Mode::evaluate;
  worker_->begin(passes);
  evaluation_->run(*ctx_, *worker_);
  evaluation_->finish(*ctx_);
  end();
  synchronize(*ctx_);
  inspection_->restart_clock();
}

void Trainer::release_loader() { feed_->release(); }

void Trainer::begin(const StepArgs& args, double weights) {
  ctx_->recorder().begin_step(args.step, args.traced);
  inspection_->begin_step(args.traced, args.waits_at_marks);
  input_.step = args.step;
  input_.learning_rate = static_cast<float>(args.learning_rate);
  input_.inverse_weights = 1.0F / static_cast<float>(weights > 0 ? weights : 1);
  input_.inverse_samples = 1.0F / static_cast<float>(config_.train.global_batch);
  input_.stop_request = args.stop_requested ? 1.0F : 0.0F;
  records_->begin(input_);
}

void Trainer::end() {
  inspection_->end_step();
  records_->publish_times();
}

void Trainer::reduce_sums() {
  const Scope phase(ctx_->recorder(), Phase::optimizer);
  {
    const Scope component(ctx_->recorder(), optim::kOptimizerComponent);
    for (const View& gradient : presence_.gradients().norm_views()) {
      ops::add_norm_squared(*ctx_, gradient, records_->sums());
    }
  }
  comm::Communicator& world = mesh_.group(mesh::kWorld);
  if (world.size() > 1) {
    const Scope waiting(ctx_->recorder(), Phase::wait);  // some scalars: only late ranks take long
    world.wait(*ctx_, world.all_reduce(*ctx_, records_->all_sums(), comm::ReduceOp::sum));
  }
}

/// True if the step is left out. Steps that are not finite are skipped by finalize_step.
bool Trainer::is_left_out(const StepArgs& args) {
  if (ctx_->device() == Device::meta) return false;
  if (args.leave_out || !judge_) return args.leave_out;
  const ops::StepResult found = records_->read_result();
  return found.skipped == 0 && judge_(args.step, found.loss(), found.gradient_norm);
}

void Trainer::finalize() {
  const Scope phase(ctx_->recorder(), Phase::optimizer);
  ops::FinalizeConstants constants = optimizer_->finalize_constants();
  constants.scale_loss = config_.precision.compute == Precision::fp16;
  ops::finalize_step(*ctx_, constants, records_->sums(), records_->state(), records_->results());
}

/// All of the update, or the part before the ranges if these are updated beside the next step.
void Trainer::begin_update() {
  const Scope phase(ctx_->recorder(), Phase::optimizer);
  optimizer_->begin_update(*ctx_);
  optimizer_->update_whole(*ctx_, records_->state(), presence_.gradients().sums());
  if (presence_.overlaps_updates()) return records_->keep_state_of_update();
  for (std::size_t i = 0; i < presence_.values().updated_ranges().size(); ++i) {
    update_range(records_->state(), i);
  }
}

void Trainer::update_range(const ops::StepState* state, std::size_t index) {
  optimizer_->update(*ctx_, state, presence_.gradients().sums(),
                     presence_.values().updated_ranges()[index]);
  presence_.values().after_update(*ctx_, index);
}

/// The next forward pass waits for all ranges before anything else writes their operands:
/// the head, its last unit, is the first to write gradients.
void Trainer::update_beside() {
  const Scope phase(ctx_->recorder(), Phase::optimizer);
  (void)ctx_->run_beside([&] {
    for (std::size_t i = 0; i < presence_.values().updated_ranges().size(); ++i) {
      update_range(records_->state_of_update(), i);
      presence_.values().update_ends(i, ctx_->stream().record());
    }
  });
}

void Trainer::forward_backward(const StepArgs& args) {
  begin(args, batch_targets());
  run_program(args, KeptData{}, false);
  end();
}

void Trainer::forward(const StepArgs& args) {
  require(!options_.training, "a trainer with gradients has no forward pass alone");
  forward_backward(args);  // whose program is forward only here
}

}  // namespace hyperslab::train
