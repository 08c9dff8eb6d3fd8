// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/train/trainer.hpp"

#include <algorithm>
#include <cmath>

#include "batch_feed.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/ops/loss.hpp"
#include "hyperslab/ops/optimizer.hpp"
#include "step_records.hpp"

namespace hyperslab::train {
namespace {

constexpr float kFirstLossScale = 65536;  // of fp16; halved until gradients are finite

model::StageOptions stage_options(const Config& config, const TrainerOptions& options) {
  model::StageOptions stage;
  stage.B = options.B > 0 ? options.B : config.train.microbatch;
  stage.T = options.T > 0 ? options.T : config.model.context;
  stage.training = options.training;
  stage.cache = options.cache;
  stage.compute = options.compute;
  stage.fused_attention =
      options.device != Device::cuda ||
      ops::has_fused_attention_on_gpu(options.compute, config.model.head_width());
  if (options.device == Device::cuda) stage.logits_bytes = std::size_t{1} << 30;
  stage.seed = config.run.seed;
  stage.data_ranks = config.parallel.data;
  stage.bucket_bytes = static_cast<std::size_t>(config.parallel.bucket_mib * 1048576.0);
  return stage;
}

}  // namespace

double Evaluation::perplexity() const { return std::exp(loss()); }

Trainer::Trainer(const Config& config, const mesh::Mesh& mesh, const TrainerOptions& options,
                 const model::MemoryPlan* plan)
    : config_(config),
      mesh_(mesh),
      options_(options),
      arenas_(plan == nullptr ? model::Arenas::measuring()
                              : model::Arenas::real(options.device, *plan, options.canary)),
      stage_(config.model, stage_options(config, options), arenas_) {
  const bool real = plan != nullptr;
  ctx_ = std::make_unique<Context>(real ? options.device : Device::meta, real ? plan->workspace : 0,
                                   options.device);
  planned_workspace_ = real ? plan->workspace : 0;
  ctx_->set_tf32(config.precision.compute == "tf32");
  ctx_->set_deterministic(config.run.deterministic);
  if (options.training) {
    optimizer_ =
        std::make_unique<optim::AdamW>(config.optimizer, stage_.params(), arenas_.optimizer);
    reducer_ = std::make_unique<data::GradientReducer>(stage_.params(), mesh.data_group());
  }
  records_ = std::make_unique<StepRecords>(*ctx_, arenas_.scratch,
                                           options.compute == DType::f64 ? DType::f64 : DType::f32);
  if (config.precision.compute == "fp16" && ctx_->device() != Device::meta) {
    ops::StepState state;
    state.loss_scale = kFirstLossScale;
    records_->write_state(state);
  }
  records_->start_clock(options.time_components);
  // The host is at most two steps ahead of the device.
  const auto depth = static_cast<std::size_t>(3 * std::max<std::int64_t>(1, config.microbatches()));
  feed_ = std::make_unique<BatchFeed>(*ctx_, stage_.batch(0), depth);
  const model::MemoryPlan used = arenas_.used();
  memory_.change(static_cast<std::int64_t>(used.parameters + used.gradients + used.optimizer),
                 "parameters and state");
  microbatch_bytes_ = static_cast<std::int64_t>(used.activations + used.scratch);
}

Trainer::~Trainer() = default;

model::MemoryPlan Trainer::memory_plan() const {
  model::MemoryPlan plan = arenas_.used();
  plan.workspace = std::max(planned_workspace_, ctx_->workspace_high_water());
  return plan;
}

model::Stage::StepViews Trainer::step_views() const {
  return {records_->state(), records_->sums()};
}

ops::StepState Trainer::state() const { return records_->read_state(); }
const ops::StepResult& Trainer::result(std::int64_t step) const { return records_->result(step); }
void Trainer::restart_clock() { records_->restart_clock(); }

StepTimes Trainer::times(std::int64_t step) const {
  const StepTimes& host = host_times_[static_cast<std::size_t>(step % ops::kResultRing)];
  require(host.step == step, "the times of that step are gone or not there yet");
  return records_->times(step, host);
}

void Trainer::initialize() {
  stage_.initialize(*ctx_);
  const nn::ParamTable& params = stage_.params();
  if (params.value().dtype() != params.master().dtype()) {
    ops::cast(*ctx_, params.master(), params.value());
  }
  if (optimizer_) {
    ops::fill(*ctx_, 0, params.gradient());  // padding between tensors must be finite
    optimizer_->initialize(*ctx_);
  }
}

void Trainer::step(const Order& order, io::Loader* loader) {
  begin(order);
  const auto microbatches = static_cast<int>(config_.microbatches());
  for (int m = 0; m < microbatches; ++m) {
    const auto accumulate = m == 0 ? nn::Accumulate::no : nn::Accumulate::yes;
    load_batch(loader, order.step, m);
    memory_.change(microbatch_bytes_, "activations");
    GraphSegment& segment = m == 0 ? first_microbatch_ : later_microbatch_;
    segment.run(*ctx_, options_.graphs, [&] {
      run_forward(model::Pass::train, accumulate);
      run_backward(accumulate, m == microbatches - 1);
    });
    memory_.change(-microbatch_bytes_, "activations");
  }
  {
    const Scope phase(ctx_->recorder(), Phase::reduce_exposed);
    reducer_->finish(*ctx_);
  }
  update_.run(*ctx_, options_.graphs, [&] {
    judge();
    update();
  });
  end();
}

void Trainer::begin(const Order& order) {
  ctx_->recorder().begin_step(order.step, order.traced);
  memory_.begin_step();
  input_.step = order.step;
  input_.learning_rate = static_cast<float>(order.learning_rate);
  input_.inverse_tokens =
      1.0F / static_cast<float>(config_.train.global_batch * stage_.options().T);
  input_.stop_request = order.stop_requested ? 1.0F : 0.0F;
  ops::begin_step(*ctx_, input_, records_->state(), records_->sums());
}

void Trainer::end() {
  const StepTimes& times = ctx_->recorder().end_step();
  host_times_[static_cast<std::size_t>(times.step % ops::kResultRing)] = times;
  records_->publish_times();
}

void Trainer::load_batch(io::Loader* loader, std::int64_t step, int microbatch) {
  ctx_->recorder().set_microbatch(microbatch);
  if (loader == nullptr) return;
  const Scope phase(ctx_->recorder(), Phase::data);
  loader->load(step, microbatch, feed_->next());
  feed_->upload(*ctx_);
}

void Trainer::run_forward(model::Pass pass, nn::Accumulate accumulate) {
  const Scope phase(ctx_->recorder(), Phase::forward);
  for (int unit = 0; unit < stage_.units(); ++unit) {
    stage_.forward(*ctx_, 0, unit, pass, step_views(), accumulate);
  }
}

void Trainer::run_backward(nn::Accumulate accumulate, bool last) {
  const Scope phase(ctx_->recorder(), Phase::backward);
  for (int unit = stage_.units() - 1; unit >= 0; --unit) {
    stage_.backward(*ctx_, 0, unit, step_views(), accumulate);
    if (last) reducer_->unit_done(*ctx_, unit);
    reducer_->progress();
  }
}

void Trainer::judge() {
  const Scope phase(ctx_->recorder(), Phase::optimizer);
  const View gradient = stage_.params().gradient();
  const Dim begin = reducer_->norm_begin();
  {
    const Scope component(ctx_->recorder(), Component::optimizer);
    ops::add_norm_squared(*ctx_, gradient.slice(begin, reducer_->norm_end() - begin),
                          records_->sums());
  }
  comm::Communicator& world = mesh_.world_group();
  if (world.size() > 1) {
    const Scope exposed(ctx_->recorder(), Phase::reduce_exposed);
    world.wait(*ctx_, world.all_reduce(*ctx_, records_->sums(), comm::ReduceOp::sum));
  }
  ops::JudgeConstants constants = optimizer_->judge_constants();
  constants.scale_loss = config_.precision.compute == "fp16";
  ops::judge_step(*ctx_, constants, records_->sums(), records_->state(), records_->results());
}

void Trainer::update() {
  const Scope phase(ctx_->recorder(), Phase::optimizer);
  optimizer_->update(*ctx_, records_->state());
}

void Trainer::forward_backward(const Order& order) {
  begin(order);
  for (std::int64_t m = 0; m < config_.microbatches(); ++m) {
    const auto accumulate = m == 0 ? nn::Accumulate::no : nn::Accumulate::yes;
    GraphSegment& segment = m == 0 ? first_microbatch_ : later_microbatch_;
    segment.run(*ctx_, options_.graphs, [&] {
      run_forward(model::Pass::train, accumulate);
      run_backward(accumulate, false);
    });
  }
  end();
}

void Trainer::forward(const Order& order) {
  begin(order);
  for (std::int64_t m = 0; m < config_.microbatches(); ++m) {
    first_microbatch_.run(*ctx_, options_.graphs,
                          [&] { run_forward(model::Pass::evaluate, nn::Accumulate::no); });
  }
  end();
}

Plan make_plan(const Config& config, const TrainerOptions& options, int world_rank) {
  const mesh::Mesh mesh = mesh::Mesh::plan(config.parallel, world_rank);
  Trainer trainer(config, mesh, options, nullptr);
  if (options.cache) {
    const View tokens(nullptr, DType::i32, Device::meta,
                      {trainer.microbatch(), trainer.sequence()});
    const View logits(nullptr, options.compute, Device::meta,
                      {trainer.microbatch(), config.model.vocabulary});
    trainer.stage().decode(trainer.context(), tokens, 0, logits);
  }
  if (options.training) {
    trainer.step({}, nullptr);
  } else if (!options.cache) {
    trainer.forward({});
  }
  Plan plan;
  plan.memory = trainer.memory_plan();
  plan.ledger = trainer.context().ledger();
  plan.data_traffic = mesh.data_group().traffic();
  for (const nn::Param& param : trainer.stage().params().params()) {
    plan.parameters.emplace_back(param.name, param.count);
  }
  for (const Arena* arena : trainer.arenas().all()) {
    for (const Allocation& allocation : arena->allocations()) {
      plan.allocations.emplace_back(arena->name(), allocation);
    }
  }
  return plan;
}

}  // namespace hyperslab::train
