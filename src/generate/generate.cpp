// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/generate/generate.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/graph.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/ops/argmax.hpp"
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

/// Those that such a trainer was made with, but for graphs: it does more than to continue texts.
train::TrainerOptions options_of(train::Trainer& trainer) {
  const model::StageOptions& stage = trainer.stage().options();
  train::TrainerOptions options;
  options.training = stage.training;
  options.cache = stage.cache;
  options.graphs = false;
  options.device = trainer.context().device();
  options.compute = stage.compute;
  options.B = stage.B;
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

/// Logits of all tokens of a batch, as they come from the model and as the host reads them.
struct LogitsBlock {
  LogitsBlock(DType compute, Device device, Dim tokens, Dim columns)
      : logits(device, compute, {tokens, columns}),
        widened(device, DType::f32, {tokens, columns}),
        host(device, widened.view().bytes()) {}

  /// The logits on their way to the host.
  void fetch(Context& ctx) {
    ops::cast(ctx, logits.view(), widened.view());
    copy(ctx, widened.view(), on_host());
  }
  [[nodiscard]] View on_host() const {
    return {host.data(), DType::f32, Device::cpu, logits.view().shape()};
  }
  /// The first V columns of a row; the rest is padding.
  [[nodiscard]] std::span<const float> row(std::size_t i, Dim V) const {
    const auto columns = on_host().slice(static_cast<Dim>(i), 1).span<float>();
    return columns.first(static_cast<std::size_t>(V));
  }

  Tensor logits;   // (tokens, columns) on the device, in the compute dtype
  Tensor widened;  // the same in f32
  PinnedBuffer host;
};

/// A forward-only trainer of the whole model on this rank.
struct Generator::OwnTrainer {
  OwnTrainer(comm::World& world, const train::Config& config, const train::TrainerOptions& options,
             const io::CheckpointReader* reader, const plan::IsLegal& is_legal);
  mesh::Mesh mesh;
  std::unique_ptr<train::Trainer> trainer;
};

Generator::OwnTrainer::OwnTrainer(comm::World& world, const train::Config& config,
                                  const train::TrainerOptions& options,
                                  const io::CheckpointReader* reader, const plan::IsLegal& is_legal)
    : mesh(mesh::Mesh::plan(config.parallel, 0)),
      trainer(plan::make_trainer(config, mesh, options, plan::make_plan(config, options, 0).memory,
                                 is_legal)) {
  trainer->initialize();
  train::load_base(world, config, *trainer, reader == nullptr ? 0 : reader->meta().base_step);
  if (reader != nullptr) {
    train::require_loadable(*reader, config, *trainer);
    trainer->load(*reader);
    train::require_same_model(reader->meta(), config.model, reader->folder());
  }
  synchronize(trainer->context());
  // A trainer that trains nothing expands no matrices: nothing writes weights from now on.
  trainer->context().set_fixed_parameters(true);
}

class Generator::Model {
 public:
  Model(train::Trainer& trainer, const train::TrainerOptions& options, train::Config config);

  /// The newest `count` tokens of texts of one length, into all rows; leaves the next logits.
  void feed(std::span<const Text> texts, std::size_t count);
  /// The logits after every token of the prompts `numbers`, at most as many as there are rows.
  void score(const Prompts& prompts, std::span<const std::size_t> numbers, const PromptRow& row);
  /// What feed() left, unless it chose tokens.
  [[nodiscard]] std::span<const float> logits(std::size_t row) const {
    return last_.row(row, vocabulary());
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
  /// The token that the sampler of a row's text chooses.
  [[nodiscard]] std::int32_t next_token(std::size_t row, Sampler& sampler);
  /// Tokens of every row of which score() keeps all logits at a time.
  [[nodiscard]] std::size_t scored_at_once() const;
  bool choose(std::vector<Text>& texts, const SamplingOptions& options, TokenListener& listener,
              GenerateStats& stats);

  train::Config config_;
  train::TrainerOptions options_;
  train::Trainer* trainer_;
  Tensor tokens_;                   // (rows, T) on the device
  PinnedBuffer staged_;             // past and one token a row
  Tensor one_;                      // the same on the device
  GraphSegment segment_;            // decode_one that leaves logits
  GraphSegment choosing_segment_;   // decode_one that leaves the likeliest tokens
  Tensor likeliest_;                // (rows) on the device
  PinnedBuffer chosen_;             // the same on the host, -1 if logits are not numbers
  bool chooses_ = false;            // likeliest tokens are chosen on the device
  bool has_chosen_ = false;         // and were for the newest logits
  LogitsBlock last_;                // of the newest token of every row
  std::vector<std::int32_t> next_;  // (rows, count)
  Dim past_ = 0;
};

Generator::Model::Model(train::Trainer& trainer, const train::TrainerOptions& options,
                        train::Config config)
    : config_(std::move(config)),
      options_(options),
      trainer_(&trainer),
      tokens_(options_.device, DType::i32, {options_.B, trainer.sequence()}),
      staged_(options_.device, static_cast<std::size_t>(options_.B + 1) * sizeof(std::int32_t)),
      one_(options_.device, DType::i32, {options_.B + 1}),
      likeliest_(options_.device, DType::i32, {options_.B}),
      chosen_(options_.device, static_cast<std::size_t>(options_.B) * sizeof(std::int32_t)),
      last_(options_.compute, options_.device, options_.B, trainer.stage().logits_columns()) {}

void Generator::Model::feed(std::span<const Text> texts, std::size_t count) {
  next_.clear();
  for (std::size_t row = 0; row < rows(); ++row) {  // rows without a text repeat the first
    const auto& tokens = texts[row < texts.size() ? row : 0].tokens;
    next_.insert(next_.end(), tokens.end() - static_cast<std::ptrdiff_t>(count), tokens.end());
  }
  decode(count);
}

void Generator::Model::decode(std::size_t count) {
  Context& ctx = trainer_->context();
  if (count == 1) {
    decode_one();
  } else {
    const Shape shape = {options_.B, static_cast<Dim>(count)};
    const View input(tokens_.view().raw(), DType::i32, options_.device, shape);
    copy(ctx, CView(next_.data(), DType::i32, Device::cpu, shape), input);
    trainer_->stage().decode(ctx, input, past_, last_.logits.view());
    last_.fetch(ctx);
    has_chosen_ = false;
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
  has_chosen_ = chooses_;
  (chooses_ ? choosing_segment_ : segment_).run(ctx, options_.graphs, [&] {
    copy(ctx, staged, one_.view());
    const View tokens = one_.view().slice(1, options_.B).reshaped({options_.B, 1});
    trainer_->stage().decode(ctx, tokens, {past_, one_.view().slice(0, 1)}, last_.logits.view());
    if (!chooses_) return last_.fetch(ctx);
    ops::argmax(ctx, last_.logits.view(), vocabulary(), likeliest_.view());
    copy(ctx, likeliest_.view(), View(chosen_.data(), DType::i32, Device::cpu, {options_.B}));
  });
}

std::int32_t Generator::Model::next_token(std::size_t row, Sampler& sampler) {
  if (has_chosen_) {
    const View chosen(chosen_.data(), DType::i32, Device::cpu, {options_.B});
    const std::int32_t token = chosen.span<std::int32_t>()[row];
    if (token >= 0) {
      sampler.take();
      return token;
    }
    last_.fetch(trainer_->context());  // for the sampler's error
    synchronize(trainer_->context());
  }
  return sampler.next(logits(row));
}

std::size_t Generator::Model::scored_at_once() const {
  constexpr std::size_t kBlockBytes = std::size_t{64} << 20;
  const std::size_t row_bytes = last_.on_host().bytes() / rows();
  return std::clamp<std::size_t>(kBlockBytes / (rows() * row_bytes), 1,
                                 static_cast<std::size_t>(context()));
}

void Generator::Model::score(const Prompts& prompts, std::span<const std::size_t> numbers,
                             const PromptRow& row) {
  std::size_t longest = 0;
  for (const std::size_t i : numbers) longest = std::max(longest, prompts[i].size());
  const std::size_t most = std::min(scored_at_once(), longest);
  LogitsBlock block(options_.compute, options_.device, options_.B * static_cast<Dim>(most),
                    trainer_->stage().logits_columns());
  Context& ctx = trainer_->context();
  forget();
  for (std::size_t first = 0; first < longest; first += most) {
    const std::size_t count = std::min(most, longest - first);
    next_.assign(rows() * count, 0);  // what stands after a prompt's end changes nothing before it
    for (std::size_t n = 0; n < numbers.size(); ++n) {
      const auto& prompt = prompts[numbers[n]];
      const std::size_t last = std::min(first + count, prompt.size());
      for (std::size_t i = first; i < last; ++i) next_[n * count + i - first] = prompt[i];
    }
    const Shape shape = {options_.B, static_cast<Dim>(count)};
    const View input(tokens_.view().raw(), DType::i32, options_.device, shape);
    copy(ctx, CView(next_.data(), DType::i32, Device::cpu, shape), input);
    const auto tokens = static_cast<Dim>(next_.size());
    trainer_->stage().decode(ctx, input, past_, block.logits.view().slice(0, tokens));
    block.fetch(ctx);
    synchronize(ctx);
    past_ += static_cast<Dim>(count);
    for (std::size_t n = 0; n < numbers.size(); ++n) {
      const std::size_t last = std::min(first + count, prompts[numbers[n]].size());
      for (std::size_t i = first; i < last; ++i) {
        row(numbers[n], i, block.row(n * count + i - first, vocabulary()));
      }
    }
  }
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
    const std::int32_t token = next_token(row, text.sampler);
    text.tokens.push_back(token);
    text.sampler.see({&token, 1});
    const bool is_stop = token == options.stop_token;
    const auto seen = has_chosen_ ? std::span<const float>() : logits(row);
    const bool goes_on_here = listener.token(text.prompt, {token, is_stop, seen});
    if (!is_stop) {
      ++stats.tokens;
      ++text.generated;
    }
    text.ended = is_stop || !goes_on_here || text.generated == options.max_tokens;
    if (text.ended) listener.end(text.prompt);
    goes_on = goes_on || !text.ended;
  }
  return goes_on;
}

void Generator::Model::run(std::vector<Text>& texts, const SamplingOptions& options,
                           TokenListener& listener, GenerateStats& stats) {
  const std::size_t length = texts.front().tokens.size();
  chooses_ = options.is_greedy() && !listener.wants_logits();
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
                     const io::CheckpointReader* reader, Dim rows, const plan::IsLegal& is_legal) {
  const train::Config alone = on_one_rank(config);
  const train::TrainerOptions options = cached_options(alone, rows);
  own_ = std::make_unique<OwnTrainer>(world, alone, options, reader, is_legal);
  model_ = std::make_unique<Model>(*own_->trainer, options, alone);
}

Generator::Generator(train::Trainer& trainer, const train::Config& config)
    : model_(std::make_unique<Model>(trainer, options_of(trainer), config)) {}

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

void Generator::prompt_logits(const Prompts& prompts, const PromptRow& row) {
  std::vector<std::size_t> order(prompts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return prompts[i].size(); });
  for (const auto& prompt : prompts) {
    require(!prompt.empty() && static_cast<Dim>(prompt.size()) <= model_->context(),
            "prompt_logits: a prompt is empty or longer than the context");
  }
  const std::span<const std::size_t> all(order);
  for (std::size_t i = 0; i < all.size(); i += model_->rows()) {
    model_->score(prompts, all.subspan(i, std::min(model_->rows(), all.size() - i)), row);
  }
}

}  // namespace hyperslab::generate
