// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/train/trainer.hpp"

#include <cmath>
#include <cstring>

#include "hyperslab/core/error.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/ops/loss.hpp"
#include "hyperslab/ops/optimizer.hpp"

namespace hyperslab::train {
namespace {

model::StageOptions stage_options(const Config& config, const TrainerOptions& options) {
  model::StageOptions stage;
  stage.B = options.B > 0 ? options.B : config.train.microbatch;
  stage.T = options.T > 0 ? options.T : config.model.context;
  stage.training = options.training;
  stage.cache = options.cache;
  stage.compute = options.compute;
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
  const Device device = plan == nullptr ? Device::meta : options.device;
  ctx_ = std::make_unique<Context>(device, plan == nullptr ? 0 : plan->workspace);
  if (options.training) {
    optimizer_.emplace(config.optimizer, stage_.params(), arenas_.optimizer);
    reducer_ = std::make_unique<data::GradientReducer>(stage_.params(), mesh.data_group());
  }
  const DType sums = options.compute == DType::f64 ? DType::f64 : DType::f32;
  sums_ = arenas_.scratch.take(sums, {ops::kSumCount}, "sums");
  state_memory_ =
      arenas_.scratch.take(DType::u8, {static_cast<Dim>(sizeof(ops::StepState))}, "step state");
  if (device == Device::cpu) state_ = new (state_memory_.raw()) ops::StepState();
  const model::MemoryPlan used = arenas_.used();
  memory_.change(static_cast<std::int64_t>(used.parameters + used.gradients + used.optimizer),
                 "parameters and state");
}

model::MemoryPlan Trainer::memory_plan() const {
  model::MemoryPlan plan = arenas_.used();
  plan.workspace = ctx_->workspace_high_water();
  return plan;
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

const StepTimes& Trainer::step(const Order& order, io::Loader* loader) {
  begin(order);
  const auto microbatches = static_cast<int>(config_.microbatches());
  for (int m = 0; m < microbatches; ++m) {
    const auto accumulate = m == 0 ? nn::Accumulate::no : nn::Accumulate::yes;
    load_batch(loader, order.step, m);
    run_forward(model::Pass::train, accumulate);
    run_backward(accumulate, m == microbatches - 1);
  }
  {
    const Scope phase(ctx_->recorder(), Phase::reduce_exposed);
    reducer_->finish(*ctx_);
  }
  judge();
  {
    const Scope phase(ctx_->recorder(), Phase::optimizer);
    optimizer_->update(*ctx_, state_);
  }
  return ctx_->recorder().end_step();
}

void Trainer::begin(const Order& order) {
  ctx_->recorder().begin_step(order.step, order.traced);
  memory_.begin_step();
  ops::StepInput input;
  input.step = order.step;
  input.learning_rate = static_cast<float>(order.learning_rate);
  input.inverse_tokens = 1.0F / static_cast<float>(config_.train.global_batch * stage_.options().T);
  input.stop_request = order.stop_requested ? 1.0F : 0.0F;
  ops::begin_step(*ctx_, input, state_, sums_);
}

void Trainer::load_batch(io::Loader* loader, std::int64_t step, int microbatch) {
  ctx_->recorder().set_microbatch(microbatch);
  if (loader == nullptr) return;
  const Scope phase(ctx_->recorder(), Phase::data);
  const model::BatchViews& batch = stage_.batch(0);
  loader->load(step, microbatch, {batch.tokens, batch.targets, batch.order, batch.sample_position});
}

void Trainer::run_forward(model::Pass pass, nn::Accumulate accumulate) {
  const Scope phase(ctx_->recorder(), Phase::forward);
  const model::MemoryPlan used = arenas_.used();
  memory_.change(static_cast<std::int64_t>(used.activations + used.scratch), "activations");
  for (int unit = 0; unit < stage_.units(); ++unit) {
    stage_.forward(*ctx_, 0, unit, pass, step_views(), accumulate);
  }
  if (pass == model::Pass::evaluate) {
    memory_.change(-static_cast<std::int64_t>(used.activations + used.scratch), "activations");
  }
}

void Trainer::run_backward(nn::Accumulate accumulate, bool last) {
  const Scope phase(ctx_->recorder(), Phase::backward);
  for (int unit = stage_.units() - 1; unit >= 0; --unit) {
    stage_.backward(*ctx_, 0, unit, step_views(), accumulate);
    if (last) reducer_->unit_done(*ctx_, unit);
    reducer_->progress();
  }
  const model::MemoryPlan used = arenas_.used();
  memory_.change(-static_cast<std::int64_t>(used.activations + used.scratch), "activations");
}

void Trainer::judge() {
  const Scope phase(ctx_->recorder(), Phase::optimizer);
  const View gradient = stage_.params().gradient();
  const Dim begin = reducer_->norm_begin();
  {
    const Scope component(ctx_->recorder(), Component::optimizer);
    ops::add_norm_squared(*ctx_, gradient.slice(begin, reducer_->norm_end() - begin), sums_);
  }
  comm::Communicator& world = mesh_.world_group();
  if (world.size() > 1) {
    const Scope exposed(ctx_->recorder(), Phase::reduce_exposed);
    world.wait(*ctx_, world.all_reduce(*ctx_, sums_, comm::ReduceOp::sum));
  }
  ops::judge_step(*ctx_, optimizer_->judge_constants(), sums_, state_, results_.data());
}

const ops::StepResult& Trainer::result(std::int64_t step) const {
  const ops::StepResult& found = results_[static_cast<std::size_t>(step % ops::kResultRing)];
  require(found.step == step, "the result of that step is gone or not there yet");
  return found;
}

const StepTimes& Trainer::forward_backward(const Order& order) {
  begin(order);
  for (std::int64_t m = 0; m < config_.microbatches(); ++m) {
    const auto accumulate = m == 0 ? nn::Accumulate::no : nn::Accumulate::yes;
    run_forward(model::Pass::train, accumulate);
    run_backward(accumulate, false);
  }
  return ctx_->recorder().end_step();
}

const StepTimes& Trainer::forward(const Order& order) {
  begin(order);
  for (std::int64_t m = 0; m < config_.microbatches(); ++m) {
    run_forward(model::Pass::evaluate, nn::Accumulate::no);
  }
  return ctx_->recorder().end_step();
}

Plan make_plan(const Config& config, const TrainerOptions& options, int world_rank) {
  const mesh::Mesh mesh = mesh::Mesh::plan(config.parallel, world_rank);
  Trainer trainer(config, mesh, options, nullptr);
  if (options.cache) {
    View tokens(nullptr, DType::i32, Device::meta, {trainer.B(), trainer.T()});
    View logits(nullptr, options.compute, Device::meta, {trainer.B(), config.model.vocabulary});
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
  for (const Arena* arena : trainer.arenas().all()) {
    for (const Allocation& allocation : arena->allocations()) {
      plan.allocations.emplace_back(arena->name(), allocation);
    }
  }
  return plan;
}

}  // namespace hyperslab::train
