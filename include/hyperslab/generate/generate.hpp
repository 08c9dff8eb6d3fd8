// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "hyperslab/comm/world.hpp"
#include "hyperslab/generate/sampling.hpp"
#include "hyperslab/io/checkpoint.hpp"
#include "hyperslab/plan/out_of_memory.hpp"
#include "hyperslab/train/config.hpp"
#include "hyperslab/train/footprint.hpp"
#include "hyperslab/train/trainer.hpp"

namespace hyperslab::generate {

class TextModel;

/// Tokens that were guessed before the model said them (speculative decoding).
struct DraftCounts {
  std::int64_t drafted = 0;   ///< guesses that the model read
  std::int64_t accepted = 0;  ///< guesses among them that it said, too
  DraftCounts& operator+=(const DraftCounts& more) {
    drafted += more.drafted;
    accepted += more.accepted;
    return *this;
  }
};

struct GenerateStats {
  std::int64_t prompt_tokens = 0;
  std::int64_t tokens = 0;
  std::int64_t passes = 0;  ///< passes of the model, each over several texts, but for prompts
  DraftCounts drafts{};
  double prompt_seconds = 0;
  double seconds = 0;
};

/// A token that was chosen.
struct NextToken {
  std::int32_t id = 0;
  bool is_stop = false;  ///< the stop token, which ends the text and is no part of it
  /// (V), those that the model gave, before all options; valid during the call. May be empty for
  /// listeners that want none.
  std::span<const float> logits;
};

/// Receives the texts as they grow.
class TokenListener {
 public:
  virtual ~TokenListener() = default;
  /// The next token of the text of prompt `prompt`; false ends this text, as a stop token does.
  virtual bool token(std::size_t prompt, const NextToken& next) = 0;
  /// The model has read guesses of this prompt's tokens, and token() has brought those that were
  /// right. Does not throw.
  virtual void drafted(std::size_t /*prompt*/, const DraftCounts& /*counts*/) {}
  /// No more tokens come for this prompt.
  virtual void end(std::size_t prompt) = 0;
  /// Instead of end(): the error thrown in place of a token. By default it is thrown on.
  virtual void fail(std::size_t /*prompt*/, const std::exception_ptr& error) {
    std::rethrow_exception(error);
  }
  /// True if token() reads logits. If not, likeliest tokens are chosen where the model runs, and
  /// logits stay there.
  [[nodiscard]] virtual bool wants_logits() const = 0;
  /// Asked before every pass; false ends all texts of this listener.
  [[nodiscard]] virtual bool wants_tokens() const { return true; }
};

using Prompts = std::vector<std::vector<std::int32_t>>;

/// The number of texts that a generator continues at once.
struct GeneratorSize {
  Dim rows = 1;  ///< texts at most
  /// Tokens of all texts whose keys and values are kept, at least a context; 0: as many as the rows
  /// can need. With fewer, texts wait until there is room.
  Dim cache_tokens = 0;
  /// The way in which texts are read. Absent: from a cache, but as in training on a GPU with
  /// run.deterministic.
  std::optional<model::Generation> generation = {};
  /// Tokens of a text that are guessed and read with the newest one in a pass, at most
  /// kMostDraftTokens; 0: none.
  Dim draft_tokens = 0;
};
inline constexpr Dim kMostDraftTokens = 30;  ///< with the newest one fewer than attention's tiles

/// The model that guesses tokens.
struct DraftSource {
  const train::Config* config = nullptr;         ///< null: none, each text is looked up in itself
  const io::CheckpointReader* reader = nullptr;  ///< null: random weights
};

/// A model that continues texts, however their lengths differ: a text that ends makes room for the
/// next one. The ranks of a tensor group share the model and its cache, if it keeps one:
/// their first one leads, which alone knows the texts; the others follow().
class Generator {
 public:
  /// `world`: the ranks of one tensor group, which share the model whatever config.parallel says;
  /// it must outlive this. `reader`: null for random weights. `is_legal`: for advice if memory runs
  /// out. `draft`: of size.draft_tokens, shared by the same ranks. Collective. Throws Error(usage)
  /// for a size that no text fits into, or that differs from rank to rank, and for a draft's model
  /// of another number of ids.
  Generator(comm::World& world, const train::Config& config, const io::CheckpointReader* reader,
            const GeneratorSize& size, const plan::IsLegal& is_legal = {},
            const DraftSource& draft = {});
  /// A generator of a trainer that was planned with a cache (TrainerOptions::generation), on its
  /// parameters as they are: between steps of a trainer that trains, which computes the same
  /// afterwards. `config`: its own. `ranks`: of this rank's tensor group; null: it is alone. Both
  /// must outlive this.
  Generator(train::Trainer& trainer, const train::Config& config, comm::World* ranks = nullptr);
  ~Generator();
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;
  Generator(Generator&&) = delete;
  Generator& operator=(Generator&&) = delete;

  /// True if this rank is the first of its tensor group. Calls after let_rest() are the leader's.
  [[nodiscard]] bool leads() const;
  /// True if there are no other ranks.
  [[nodiscard]] bool is_alone() const;
  /// A rank that does not lead: takes part in the leader's passes until it lets this one go. An
  /// error of one rank in a pass leaves the others within it: it must end all of them.
  void follow();
  /// The leader lets the others return from follow(), with this object as usable as before.
  void let_go();
  /// The leader: an error of a pass leaves other ranks within it, so that this object is of no use
  /// any more, and the program must end. Never if it is alone.
  [[nodiscard]] bool has_failed() const;
  /// The leader, between passes, if none comes soon: to be called again and again, so that the
  /// others show that they live, and use their processors little.
  void let_rest();

  /// Throws Error(checkpoint) unless the checkpoint holds the values of this model, or adapters of
  /// its base. For a generator that was made with a world.
  void require_takes(const io::CheckpointReader& reader) const;
  /// The leader, while no texts are continued: takes the values of another checkpoint in place, on
  /// all ranks; every rank reads its part from the folder. `averages`: of the weights, as
  /// CheckpointReader::use_averages() has it. Throws as require_takes(), before anything has
  /// changed. Any other Error, the same on all ranks, leaves values of both checkpoints, so that
  /// another load() must come before the next text.
  void load(const std::string& folder, bool averages);

  /// Rows that so many prompts can use, at most `most`.
  [[nodiscard]] static Dim rows_for(const Prompts& prompts, Dim most);

  /// Continues all prompts, none of them empty. A prompt's continuation is a function of the
  /// options, its tokens and its index in `prompts`, up to the rounding of logits. Of prompts
  /// longer than the context the end counts; if the context is full, the newer half of it is read
  /// again as a prompt.
  GenerateStats generate(const Prompts& prompts, const SamplingOptions& options,
                         TokenListener& listener);

  /// Begins a text that is continued in steps, so that texts join those that run. The listener, who
  /// gets `number` as the prompt, must outlive the text; the text draws from stream `number` of
  /// options.seed.
  void begin(std::vector<std::int32_t> prompt, const SamplingOptions& options, std::size_t number,
             TokenListener& listener);
  /// One pass of the model; false: there is no text left. Listeners may not call this object.
  /// An error of one text goes to its listener, an error of all is thrown.
  bool step(GenerateStats& stats);
  /// Ends all texts, whose listeners get the error.
  void abandon(const std::exception_ptr& error);
  /// True if a text that begins now runs at once, but for pages.
  [[nodiscard]] bool has_free_row() const;
  [[nodiscard]] bool is_idle() const;

  /// Receives the logits (V) after token `position` of a prompt; valid during the call.
  using PromptRow =
      std::function<void(std::size_t prompt, std::size_t position, std::span<const float> logits)>;
  /// Gives the logits after every token of prompts that fit into the context, none of them empty:
  /// of one prompt in the order of its tokens. Prompts of different lengths run together. Only
  /// while no texts are continued.
  void prompt_logits(const Prompts& prompts, const PromptRow& row);

  [[nodiscard]] std::int64_t context() const;
  [[nodiscard]] std::int64_t vocabulary() const;
  /// The memory of the model and its key-value cache.
  [[nodiscard]] train::Footprint footprint() const;
  [[nodiscard]] const model::CacheSize& cache() const;
  [[nodiscard]] std::int64_t cache_bytes() const;
  [[nodiscard]] Dim draft_tokens() const;
  /// The memory of the draft's model and its cache, on this rank; 0: there is none.
  [[nodiscard]] train::Footprint draft_footprint() const;
  [[nodiscard]] std::int64_t draft_cache_bytes() const;
  /// Counts how often a text gave its pages of the cache to an older one, and was read again.
  [[nodiscard]] std::int64_t preempted() const;

 private:
  struct OwnTrainer;
  void take_part_in_load();
  class Texts;
  std::unique_ptr<OwnTrainer> own_;  ///< absent if the trainer is another's
  std::unique_ptr<OwnTrainer> own_draft_;
  train::Trainer* trainer_;
  std::unique_ptr<TextModel> model_;
  std::unique_ptr<TextModel> draft_model_;
  std::unique_ptr<Texts> texts_;
};

}  // namespace hyperslab::generate
