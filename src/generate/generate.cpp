// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/generate/generate.hpp"

#include <algorithm>
#include <map>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/graph.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/plan/out_of_memory.hpp"
#include "hyperslab/train/initial.hpp"
#include "hyperslab/train/setup.hpp"
#include "hyperslab/train/trainer.hpp"

namespace hyperslab::generate {
namespace {

/// The training layout does not matter to one rank that only generates.
train::Config on_one_rank(train::Config config) {
  config.parallel = mesh::ParallelConfig();
  return config;
}

train::TrainerOptions cached_options(const train::Config& config, Dim rows) {
  train::TrainerOptions options = train::trainer_options(config, 0, false);
  options.cache = true;
  options.B = rows;
  return options;
}

/// A text that grows.
struct Text {
  Text(std::size_t number, std::vector<std::int32_t> first, const SamplingOptions& options,
       std::int64_t V)
      : prompt(number), tokens(std::move(first)), sampler(options, number, V) {
    sampler.see(tokens);
  }
  std::size_t prompt;  ///< its number
  std::vector<std::int32_t> tokens;
  Sampler sampler;
  std::int64_t generated = 0;
  bool ended = false;
};

/// Numbers of the prompts by length, at most `rows` together.
std::vector<std::vector<std::size_t>> groups_of(const Prompts& prompts, std::size_t rows) {
  std::map<std::size_t, std::size_t> open;  // length -> group
  std::vector<std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto [entry, is_new] = open.try_emplace(prompts[i].size(), groups.size());
    if (!is_new && groups[entry->second].size() == rows) entry->second = groups.size();
    if (entry->second == groups.size()) groups.emplace_back();
    groups[entry->second].push_back(i);
  }
  return groups;
}

}  // namespace

class Generator::Model {
 public:
  Model(comm::World& world, const train::Config& config, const io::CheckpointReader* reader,
        Dim rows, const plan::IsLegal& is_legal);

  /// The newest `count` tokens of texts of one length, into all rows; leaves the next logits.
  void feed(std::span<const Text> texts, std::size_t count);
  /// One token into all rows.
  void feed(std::int32_t token);
  [[nodiscard]] std::span<const float> logits(std::size_t row) const {
    const auto columns = host_logits().slice(static_cast<Dim>(row), 1).span<float>();
    return columns.first(static_cast<std::size_t>(vocabulary()));  // the rest is padding
  }
  [[nodiscard]] std::size_t rows() const { return static_cast<std::size_t>(options_.B); }
  [[nodiscard]] Dim past() const { return past_; }
  void forget() { past_ = 0; }
  [[nodiscard]] Dim context() const { return trainer_->sequence(); }
  [[nodiscard]] Dim vocabulary() const { return config_.model.vocabulary; }
  [[nodiscard]] train::Footprint footprint() const { return train::footprint(*trainer_); }

  void run(std::vector<Text>& texts, const SamplingOptions& options, TokenListener& listener,
           GenerateStats& stats);

 private:
  /// The tokens in next_, `count` a row.
  void decode(std::size_t count);
  /// One token a row, as a graph if the device has them: all that changes is in staged_.
  void decode_one();
  /// The logits on their way to the host.
  void fetch();
  [[nodiscard]] View host_logits() const {
    return {host_.data(), DType::f32, Device::cpu, logits_.view().shape()};
  }
  bool choose(std::vector<Text>& texts, const SamplingOptions& options, TokenListener& listener,
              GenerateStats& stats);

  train::Config config_;
  train::TrainerOptions options_;
  mesh::Mesh mesh_;
  model::MemoryPlan plan_;
  std::unique_ptr<train::Trainer> trainer_;
  Tensor tokens_;                   // (rows, T) on the device
  PinnedBuffer staged_;             // past and one token a row
  Tensor one_;                      // the same on the device
  GraphSegment segment_;            // decode_one
  Tensor logits_;                   // (rows, V and padding) on the device, in the compute dtype
  Tensor widened_;                  // the same in f32
  PinnedBuffer host_;               // the same
  std::vector<std::int32_t> next_;  // (rows, count)
  Dim past_ = 0;
};

Generator::Model::Model(comm::World& world, const train::Config& config,
                        const io::CheckpointReader* reader, Dim rows, const plan::IsLegal& is_legal)
    : config_(on_one_rank(config)),
      options_(cached_options(config_, rows)),
      mesh_(mesh::Mesh::plan(config_.parallel, 0)),
      plan_(plan::make_plan(config_, options_, 0).memory),
      trainer_(plan::make_trainer(config_, mesh_, options_, plan_, is_legal)),
      tokens_(options_.device, DType::i32, {rows, trainer_->sequence()}),
      staged_(options_.device, static_cast<std::size_t>(rows + 1) * sizeof(std::int32_t)),
      one_(options_.device, DType::i32, {rows + 1}),
      logits_(options_.device, options_.compute, {rows, trainer_->stage().logits_columns()}),
      widened_(options_.device, DType::f32, logits_.view().shape()),
      host_(options_.device, widened_.view().bytes()) {
  trainer_->initialize();
  train::load_base(world, config_, *trainer_, reader == nullptr ? 0 : reader->meta().base_step);
  if (reader != nullptr) {
    train::require_loadable(*reader, config_, *trainer_);
    trainer_->load(*reader);
    train::require_same_model(reader->meta(), config_.model, reader->folder());
  }
  synchronize(trainer_->context());
  // A trainer that trains nothing expands no matrices: nothing writes weights from now on.
  trainer_->context().set_fixed_parameters(true);
}

void Generator::Model::feed(std::span<const Text> texts, std::size_t count) {
  next_.clear();
  for (std::size_t row = 0; row < rows(); ++row) {  // rows without a text repeat the first
    const auto& tokens = texts[row < texts.size() ? row : 0].tokens;
    next_.insert(next_.end(), tokens.end() - static_cast<std::ptrdiff_t>(count), tokens.end());
  }
  decode(count);
}

void Generator::Model::feed(std::int32_t token) {
  next_.assign(rows(), token);
  decode(1);
}

void Generator::Model::decode(std::size_t count) {
  Context& ctx = trainer_->context();
  if (count == 1) {
    decode_one();
  } else {
    const Shape shape = {options_.B, static_cast<Dim>(count)};
    const View input(tokens_.view().raw(), DType::i32, options_.device, shape);
    copy(ctx, CView(next_.data(), DType::i32, Device::cpu, shape), input);
    trainer_->stage().decode(ctx, input, past_, logits_.view());
    fetch();
  }
  synchronize(ctx);
  past_ += static_cast<Dim>(count);
}

void Generator::Model::decode_one() {
  Context& ctx = trainer_->context();
  const View staged(staged_.data(), DType::i32, Device::cpu, {options_.B + 1});
  const auto words = staged.span<std::int32_t>();
  words.front() = static_cast<std::int32_t>(past_);
  std::ranges::copy(next_, words.begin() + 1);
  segment_.run(ctx, options_.graphs, [&] {
    copy(ctx, staged, one_.view());
    const View tokens = one_.view().slice(1, options_.B).reshaped({options_.B, 1});
    trainer_->stage().decode(ctx, tokens, {past_, one_.view().slice(0, 1)}, logits_.view());
    fetch();
  });
}

void Generator::Model::fetch() {
  Context& ctx = trainer_->context();
  ops::cast(ctx, logits_.view(), widened_.view());
  copy(ctx, widened_.view(), host_logits());
}

/// The next token of every text, any in those that have ended; false if all have.
bool Generator::Model::choose(std::vector<Text>& texts, const SamplingOptions& options,
                              TokenListener& listener, GenerateStats& stats) {
  bool goes_on = false;
  for (std::size_t row = 0; row < texts.size(); ++row) {
    Text& text = texts[row];
    if (text.ended) {
      text.tokens.push_back(0);
      continue;
    }
    const std::int32_t token = text.sampler.next(logits(row));
    text.tokens.push_back(token);
    text.sampler.see({&token, 1});
    text.ended = token == options.stop_token;
    if (!text.ended) {
      ++stats.tokens;
      ++text.generated;
      text.ended = !listener.token(text.prompt, {token, logits(row)}) ||
                   text.generated == options.max_tokens;
    }
    if (text.ended) listener.end(text.prompt);
    goes_on = goes_on || !text.ended;
  }
  return goes_on;
}

void Generator::Model::run(std::vector<Text>& texts, const SamplingOptions& options,
                           TokenListener& listener, GenerateStats& stats) {
  const std::size_t length = texts.front().tokens.size();
  forget();
  double mark = now_seconds();
  feed(texts, std::min(static_cast<std::size_t>(context()), length));
  stats.prompt_tokens += static_cast<std::int64_t>(texts.size() * length);
  stats.prompt_seconds += now_seconds() - mark;
  mark = now_seconds();
  while (choose(texts, options, listener, stats)) {
    if (past() == context()) {
      forget();
      feed(texts, std::max<std::size_t>(static_cast<std::size_t>(context()) / 2, 1));
    } else {
      feed(texts, 1);
    }
  }
  stats.seconds += now_seconds() - mark;
}

Generator::Generator(comm::World& world, const train::Config& config,
                     const io::CheckpointReader* reader, Dim rows, const plan::IsLegal& is_legal)
    : model_(std::make_unique<Model>(world, config, reader, rows, is_legal)) {}

Generator::~Generator() = default;

std::int64_t Generator::context() const { return model_->context(); }

std::int64_t Generator::vocabulary() const { return model_->vocabulary(); }
train::Footprint Generator::footprint() const { return model_->footprint(); }

Dim Generator::rows_for(const Prompts& prompts, Dim most) {
  std::size_t rows = 1;
  for (const auto& group : groups_of(prompts, static_cast<std::size_t>(most))) {
    rows = std::max(rows, group.size());
  }
  return static_cast<Dim>(rows);
}

GenerateStats Generator::generate(const Prompts& prompts, const SamplingOptions& options,
                                  TokenListener& listener) {
  GenerateStats stats;
  for (const auto& group : groups_of(prompts, model_->rows())) {
    std::vector<Text> texts;
    texts.reserve(group.size());
    for (const std::size_t i : group) {
      texts.emplace_back(i, prompts[i], options, model_->vocabulary());
    }
    model_->run(texts, options, listener, stats);
  }
  return stats;
}

void Generator::prompt_logits(std::span<const std::int32_t> prompt,
                              const std::function<void(std::span<const float>)>& row) {
  require(static_cast<Dim>(prompt.size()) <= model_->context(),
          "prompt_logits: the prompt is longer than the context");
  model_->forget();
  for (const std::int32_t token : prompt) {
    model_->feed(token);
    row(model_->logits(0));
  }
}

}  // namespace hyperslab::generate
