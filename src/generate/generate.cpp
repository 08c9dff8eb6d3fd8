// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/generate/generate.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "draft_model.hpp"
#include "hyperslab/core/activity.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/plan/out_of_memory.hpp"
#include "hyperslab/train/initial.hpp"
#include "hyperslab/train/setup.hpp"
#include "hyperslab/train/trainer.hpp"
#include "prompt_scores.hpp"
#include "text_model.hpp"
#include "texts.hpp"

namespace hyperslab::generate {
namespace {

constexpr Dim kPassTokens = 4096;  // tokens of a prompt in one pass: enough for a GPU's products

/// The training layout does not matter to ranks that only generate.
train::Config on_tensor_ranks(train::Config config, int ranks) {
  config.parallel = mesh::ParallelConfig();
  config.parallel.tensor = ranks;
  return config;
}

/// Pages for so many tokens, of which a text of the whole context takes a part.
Dim pages_for(const model::CacheSize& whole, Dim cache_tokens) {
  const Dim pages = cache_tokens / whole.page_tokens();
  if (pages >= whole.pages_of_text()) return std::min(pages, whole.pages);
  throw Error(ExitCode::usage, "a key-value cache of " + std::to_string(cache_tokens) +
                                   " tokens holds no text of the context: expected at least " +
                                   std::to_string(whole.pages_of_text() * whole.page_tokens()) +
                                   ", " + std::to_string(whole.pages_of_text()) + " pages of " +
                                   std::to_string(whole.page_tokens()));
}

/// Libraries of a GPU choose other kernels for few rows than for many, and bits differ.
model::Generation generation_of(const train::Config& config, Device device) {
  const bool is_whole = config.run.deterministic && device == Device::cuda;
  return is_whole ? model::Generation::whole : model::Generation::cached;
}

train::TrainerOptions reading_options(comm::World& world, const train::Config& config,
                                      const GeneratorSize& size) {
  train::TrainerOptions options = train::trainer_options(config, world.local_rank(), false);
  const Dim context = config.model.context;
  options.generation = size.generation.value_or(generation_of(config, options.device));
  options.cache_size = model::CacheSize{.rows = size.rows, .tokens = context}.resolved(1, context);
  options.draft_tokens = size.draft_tokens;
  if (size.cache_tokens > 0) {
    options.cache_size.pages = pages_for(options.cache_size, size.cache_tokens);
  }
  if (options.generation == model::Generation::cached) {  // otherwise as in training
    options.B = 1;
    options.T = std::max(size.rows * (1 + size.draft_tokens), std::min(context, kPassTokens));
  }
  options.activity = &world.activity();
  return options;
}

/// The size of a draft's model: it keeps a cache, whatever the other one does, and pages for all.
GeneratorSize draft_size(const GeneratorSize& size) {
  return {.rows = size.rows, .generation = model::Generation::cached, .draft_tokens = 1};
}

void require_drafts(const train::Config& config, const GeneratorSize& size,
                    const DraftSource& draft) {
  if (size.draft_tokens < 0 || size.draft_tokens > kMostDraftTokens) {
    throw Error(ExitCode::usage, "drafts of " + std::to_string(size.draft_tokens) +
                                     " tokens: expected 0 to " + std::to_string(kMostDraftTokens));
  }
  if (draft.config == nullptr || draft.config->model.vocabulary == config.model.vocabulary) return;
  throw Error(ExitCode::usage, "the draft's model has a vocabulary of " +
                                   std::to_string(draft.config->model.vocabulary) +
                                   " ids, and the model one of " +
                                   std::to_string(config.model.vocabulary) + "; they must be one");
}

}  // namespace

/// A forward-only trainer of this rank's part of the whole model.
struct Generator::OwnTrainer {
  OwnTrainer(comm::World& world, const train::Config& config, const GeneratorSize& size);
  void load(comm::World& world, const io::CheckpointReader* reader, const plan::IsLegal& is_legal);
  [[nodiscard]] TextModelOptions text_options(Dim draft_tokens, int number) const {
    return {options.graphs, config.model.vocabulary, draft_tokens, number};
  }
  void require_takes(const io::CheckpointReader& reader) const;
  void load_again(const std::string& folder, bool averages);
  comm::World& ranks;
  train::Config config;
  train::TrainerOptions options;
  std::unique_ptr<mesh::Mesh> mesh;
  std::unique_ptr<train::Trainer> trainer;
};

Generator::OwnTrainer::OwnTrainer(comm::World& world, const train::Config& asked,
                                  const GeneratorSize& size)
    : ranks(world), config(on_tensor_ranks(asked, world.size())) {
  comm::agree(world, [&] { options = reading_options(world, config, size); });
  const auto differs = [&](Dim number) { return world.max(number) != -world.max(-number); };
  if (differs(size.rows) || differs(size.cache_tokens) || differs(size.draft_tokens)) {
    throw Error(ExitCode::usage, "ranks of a tensor group want caches of different sizes")
        .on_all_ranks();
  }
  mesh = train::make_mesh(world, config, options.device);
}

void Generator::OwnTrainer::load(comm::World& world, const io::CheckpointReader* reader,
                                 const plan::IsLegal& is_legal) {
  plan::Plan plan;
  comm::agree(world, [&] { plan = plan::make_plan(config, options, world.rank()); });
  plan::require_host_memory(world, config, options, plan.memory, is_legal);
  comm::agree(world, [&] {
    trainer = plan::make_trainer(config, *mesh, options, plan.memory, is_legal);
    trainer->state().initialize();
  });
  train::load_base(world, config, *trainer, reader == nullptr ? 0 : reader->meta().base_step);
  comm::agree(world, [&] {
    if (reader == nullptr) return;
    const Pause pause(world.activity(), "loading a checkpoint");
    train::require_loadable(*reader, config, *trainer);
    trainer->state().load(*reader);
    train::require_same_model(reader->meta(), config.model, reader->folder());
  });
  synchronize(trainer->context());
  // A trainer that trains nothing dequantizes no matrices: nothing writes weights from now on.
  trainer->context().set_fixed_parameters(true);
}

void Generator::OwnTrainer::require_takes(const io::CheckpointReader& reader) const {
  train::require_loadable(reader, config, *trainer);
  train::require_same_model(reader.meta(), config.model, reader.folder());
}

/// Collective: the first rank names the folder. Kernels may read parameters early while they are
/// fixed, which they are not here.
void Generator::OwnTrainer::load_again(const std::string& folder, bool averages) {
  const std::string common = ranks.broadcast((averages ? "a" : "w") + folder);
  comm::agree(ranks, [&] {
    const Pause pause(ranks.activity(), "loading a checkpoint");
    io::CheckpointReader reader(common.substr(1));
    if (common.front() == 'a') reader.use_averages();
    require_takes(reader);
    trainer->context().set_fixed_parameters(false);
    trainer->state().load(reader);
    synchronize(trainer->context());
    trainer->context().set_fixed_parameters(true);
  });
}

Generator::Generator(comm::World& world, const train::Config& config,
                     const io::CheckpointReader* reader, const GeneratorSize& size,
                     const plan::IsLegal& is_legal, const DraftSource& draft) {
  comm::agree(world, [&] { require_drafts(config, size, draft); });
  own_ = std::make_unique<OwnTrainer>(world, config, size);
  own_->load(world, reader, is_legal);
  trainer_ = own_->trainer.get();
  model_ = std::make_unique<TextModel>(*trainer_, own_->text_options(size.draft_tokens, 0), &world);
  std::unique_ptr<Drafter> drafter;
  if (size.draft_tokens > 0 && draft.config != nullptr) {
    own_draft_ = std::make_unique<OwnTrainer>(world, *draft.config, draft_size(size));
    own_draft_->load(world, draft.reader, is_legal);
    draft_model_ =
        std::make_unique<TextModel>(*own_draft_->trainer, own_draft_->text_options(0, 1), &world);
    drafter = std::make_unique<DraftModel>(*draft_model_);
  } else if (size.draft_tokens > 0) {
    drafter = std::make_unique<PromptLookup>();
  }
  texts_ = std::make_unique<Texts>(*model_, std::move(drafter));
}

/// No graphs: such a trainer does more than to continue texts.
Generator::Generator(train::Trainer& trainer, const train::Config& config, comm::World* ranks)
    : trainer_(&trainer),
      model_(std::make_unique<TextModel>(
          trainer, TextModelOptions{.vocabulary = config.model.vocabulary}, ranks)),
      texts_(std::make_unique<Texts>(*model_)) {}

Generator::~Generator() = default;

bool Generator::leads() const { return model_->leads(); }
bool Generator::is_alone() const { return model_->is_alone(); }
void Generator::follow() {
  model_->follow([this] { take_part_in_load(); }, draft_model_.get());
}
void Generator::let_go() { model_->let_go(); }
bool Generator::has_failed() const {
  return model_->has_failed() || (draft_model_ && draft_model_->has_failed());
}
void Generator::let_rest() { model_->let_rest(); }
std::int64_t Generator::context() const { return model_->context(); }
std::int64_t Generator::vocabulary() const { return model_->vocabulary(); }
train::Footprint Generator::footprint() const { return train::footprint(*trainer_); }
const model::CacheSize& Generator::cache() const { return model_->cache(); }
std::int64_t Generator::cache_bytes() const { return trainer_->stage().cache_bytes(); }
Dim Generator::draft_tokens() const { return model_->draft_tokens(); }
train::Footprint Generator::draft_footprint() const {
  return own_draft_ ? train::footprint(*own_draft_->trainer) : train::Footprint();
}
std::int64_t Generator::draft_cache_bytes() const {
  return own_draft_ ? own_draft_->trainer->stage().cache_bytes() : 0;
}
std::int64_t Generator::preempted() const { return texts_->scheduler().preempted(); }
bool Generator::has_free_row() const { return texts_->scheduler().has_free_row(); }
bool Generator::is_idle() const { return texts_->scheduler().is_idle(); }

void Generator::require_takes(const io::CheckpointReader& reader) const {
  require(own_ != nullptr, "require_takes: the trainer is another's");
  own_->require_takes(reader);
}

void Generator::load(const std::string& folder, bool averages) {
  require(own_ != nullptr && is_idle(), "load: texts are being continued");
  model_->let_load();
  own_->load_again(folder, averages);
}

/// The next order says what the leader does about an error of the checkpoint.
void Generator::take_part_in_load() {
  try {
    own_->load_again({}, false);
  } catch (const Error& error) {
    if (error.code() != ExitCode::checkpoint) throw;
  }
}

Dim Generator::rows_for(const Prompts& prompts, Dim most) {
  return std::clamp<Dim>(std::ssize(prompts), 1, most);
}

void Generator::begin(std::vector<std::int32_t> prompt, const SamplingOptions& options,
                      std::size_t number, TokenListener& listener) {
  texts_->begin(std::move(prompt), options, number, listener);
}

bool Generator::step(GenerateStats& stats) { return texts_->step(stats); }

void Generator::abandon(const std::exception_ptr& error) { texts_->abandon(error); }

GenerateStats Generator::generate(const Prompts& prompts, const SamplingOptions& options,
                                  TokenListener& listener) {
  GenerateStats stats;
  try {
    for (std::size_t i = 0; i < prompts.size(); ++i) begin(prompts[i], options, i, listener);
    while (step(stats)) {
    }
  } catch (...) {
    texts_->forget();
    throw;
  }
  return stats;
}

void Generator::prompt_logits(const Prompts& prompts, const PromptRow& row) {
  require(is_idle(), "prompt_logits: texts are being continued");
  for (const auto& prompt : prompts) {
    require(!prompt.empty() && static_cast<Dim>(prompt.size()) <= context(),
            "prompt_logits: a prompt is empty or longer than the context");
  }
  score_prompts(*model_, texts_->scheduler().pool(), prompts, row);
}

}  // namespace hyperslab::generate
