// SPDX-License-Identifier: Apache-2.0
#include "run_samples.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <span>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/core/printable.hpp"
#include "hyperslab/generate/prompts.hpp"
#include "hyperslab/sharding/residence.hpp"

namespace hyperslab::run {
namespace {

/// Gathers the continuations of prompts, in valid UTF-8.
class Texts final : public generate::TokenListener {
 public:
  /// `prompts`: their texts.
  Texts(const Start& start, const io::Tokenizer& tokenizer, std::span<const std::string> prompts)
      : start_(start), streams_(prompts.size()), texts_(prompts.size()) {
    for (const std::string& prompt : prompts) {
      decoders_.emplace_back(tokenizer,
                             prompt.empty() ? io::TextPlace::start : io::TextPlace::inside);
    }
  }

  bool token(std::size_t prompt, const generate::NextToken& next) override {
    start_.world.activity().beat();  // a text may take longer than any step
    if (!next.is_stop) texts_[prompt] += streams_[prompt].push(decoders_[prompt].next(next.id));
    is_whole_ = is_whole_ && !start_.is_asked_to_stop();
    return is_whole_;
  }
  void end(std::size_t prompt) override { texts_[prompt] += streams_[prompt].finish(); }
  [[nodiscard]] bool wants_logits() const override { return false; }

  [[nodiscard]] bool is_whole() const { return is_whole_; }
  [[nodiscard]] const std::vector<std::string>& texts() const { return texts_; }

 private:
  const Start& start_;
  std::vector<io::TextDecoder> decoders_;
  std::vector<io::Utf8Stream> streams_;
  std::vector<std::string> texts_;
  bool is_whole_ = true;
};

void require_room(const generate::Prompts& prompts, std::int64_t context) {
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (std::ssize(prompts[i]) <= context) continue;
    throw Error(ExitCode::usage,
                fmt::format("train.sample_prompts: text {} has {} tokens, and model.context is {}; "
                            "shorten it",
                            i + 1, prompts[i].size(), context));
  }
}

}  // namespace

RunSamples::RunSamples(const Start& start) : start_(start) {
  const train::Config& config = start_.config;
  if (!config.samples_text()) return;
  texts_ = config.train.sample_prompts;
  if (texts_.empty()) texts_.emplace_back();
  comm::agree(start_.world, [&] {
    const std::string& vocabulary = config.data.vocabulary;
    tokenizer_ = io::open_tokenizer(vocabulary);
    io::require_fits_model(*tokenizer_, vocabulary, config.model.vocabulary);
    ends_ = tokenizer_->text_ends().with(config.model.eos_tokens);
    prompts_ = generate::encode_prompts(*tokenizer_, ends_, texts_, true);
    require_room(prompts_, config.model.context);
  });
}

void RunSamples::begin(std::int64_t first_step, train::Trainer& trainer) {
  if (tokenizer_ == nullptr) return;
  log_.reset();
  const int size = group_size();
  if (size > 1 && !group_) group_ = start_.world.part(start_.world.rank() / size);
  comm::agree(start_.world, [&] {
    if (!generator_) {
      generator_ = std::make_unique<generate::Generator>(trainer, start_.config, group_.get());
    }
    if (!start_.is_first()) return;
    log_ =
        std::make_unique<io::LineLog>(start_.config.run.directory + "/samples.jsonl", first_step);
  });
}

bool RunSamples::is_due_after(std::int64_t step, std::int64_t last_step) const {
  return tokenizer_ != nullptr &&
         (step % start_.config.train.sample_every == 0 || step == last_step);
}

/// Ranks that pass texts together: those that gather values from each other, or hold other experts.
/// They are neighbouring ranks, as there is no pipeline.
int RunSamples::group_size() const {
  const mesh::ParallelConfig& parallel = start_.config.parallel;
  const bool gathers = sharding::residence_of(parallel).present_rooms > 0;
  if (gathers) return parallel.tensor * parallel.shards();
  return parallel.tensor * (parallel.expert > 1 ? parallel.expert * parallel.context : 1);
}

RunSamples::Share RunSamples::share() const {
  const int size = group_size();
  const auto group = static_cast<std::size_t>(start_.world.rank() / size);
  const auto groups = static_cast<std::size_t>(start_.world.size() / size);
  return {prompts_.size() * group / groups, prompts_.size() * (group + 1) / groups};
}

bool RunSamples::take(std::int64_t step, train::Trainer& trainer) {
  const train::TrainConfig& config = start_.config.train;
  const auto [first, last] = share();
  const auto at = [&](std::size_t i) { return prompts_.begin() + static_cast<std::ptrdiff_t>(i); };
  generate::SamplingOptions options;
  options.max_tokens = config.sample_tokens;
  options.temperature = config.sample_temperature;
  options.seed = start_.config.run.seed + first;
  options.stop_tokens = ends_.ids;
  trainer.state().complete_values();
  const auto mine_of_all =
      std::span<const std::string>(texts_).subspan(first, generator_->leads() ? last - first : 0);
  Texts mine(start_, *tokenizer_, mine_of_all);
  bool are_numbers = true;
  try {
    if (!generator_->leads()) {
      generator_->follow();
    } else {
      (void)generator_->generate({at(first), at(last)}, options, mine);
    }
  } catch (const Error& error) {  // training itself decides about numbers that are not finite
    if (error.code() != ExitCode::numerics) throw;
    are_numbers = false;
  }
  if (generator_->leads()) generator_->let_go();
  if (!start_.world.all(mine.is_whole())) return false;
  std::vector<std::string> texts;
  const bool has_all = start_.world.all(are_numbers);
  for (const std::string& part : start_.world.gather(nlohmann::json(mine.texts()).dump())) {
    for (auto& text : nlohmann::json::parse(part)) texts.push_back(text.get<std::string>());
  }
  if (!start_.is_first()) return true;
  if (has_all) {
    record(step, texts);
  } else {
    log::warn(fmt::format("step {} has no samples: its logits are not finite", step));
  }
  return true;
}

void RunSamples::record(std::int64_t step, const std::vector<std::string>& texts) {
  for (std::size_t i = 0; i < texts.size(); ++i) {
    log::info(
        fmt::format("step {}  sample {}: {}", step, i + 1, printable(texts_[i] + "|" + texts[i])));
    nlohmann::ordered_json line;
    line["step"] = step;
    line["prompt"] = texts_[i];
    line["text"] = texts[i];
    // A prompt of the deck may hold bytes that are not UTF-8.
    log_->append(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
}

}  // namespace hyperslab::run
