// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <map>
#include <memory>
#include <vector>

#include "drafts.hpp"
#include "hyperslab/generate/generate.hpp"
#include "hyperslab/generate/sampling.hpp"
#include "scheduler.hpp"
#include "text_model.hpp"

namespace hyperslab::generate {

/// The texts that a generator continues: it gives the scheduler's passes to the model, and the
/// model's logits to samplers and listeners.
class Generator::Texts {
 public:
  /// `drafter`: guesses tokens, if the model was planned to verify them; null: none are guessed.
  explicit Texts(TextModel& model, std::unique_ptr<Drafter> drafter = nullptr);

  void begin(std::vector<std::int32_t> prompt, const SamplingOptions& options, std::size_t number,
             TokenListener& listener);
  bool step(GenerateStats& stats);
  void abandon(const std::exception_ptr& error);
  /// Ends all texts; nothing is reported.
  void forget();
  [[nodiscard]] Scheduler& scheduler() { return scheduler_; }

 private:
  struct Text {
    std::vector<std::int32_t> tokens;
    SamplingOptions options;
    std::size_t number;
    TokenListener* listener;
    DraftLength draft_length;
    std::unique_ptr<Sampler> sampler{};  ///< from the first token on
    std::int64_t generated = 0;
  };
  /// A text of a pass.
  struct Row {
    std::size_t id = 0;
    Text* text = nullptr;
    Draft draft{};                       ///< guesses that the pass reads, too
    std::vector<std::int32_t> chosen{};  ///< tokens that follow
    std::exception_ptr error{};          ///< in place of the next one
  };
  using Rows = std::vector<Row>;
  /// The result that a pass over the text's newest token must give to choose the next one.
  [[nodiscard]] static TextModel::Wanted wanted_by(const Text& text);
  void end_unheard();
  [[nodiscard]] Text drop(std::size_t id);
  [[nodiscard]] TextModel::Wanted make_rows(const SchedulerPass& pass, Rows& rows);
  [[nodiscard]] std::int64_t room_for_drafts(const SchedulerPass& pass) const;
  void add_drafts(const SchedulerPass& pass, Rows& rows);
  void read(const SchedulerPass& pass, TextModel::Wanted wanted, Rows& rows);
  [[nodiscard]] Sampler& sampler_of(Text& text) const;
  [[nodiscard]] std::int32_t next_token(const Row& row, std::size_t number,
                                        TextModel::Wanted wanted);
  void follow(Row& row, std::size_t number, TextModel::Wanted wanted);
  void choose(Rows& rows, TextModel::Wanted wanted);
  void take(Row& row, std::size_t number, TextModel::Wanted wanted, GenerateStats& stats);
  bool report(Text& text, std::int32_t token, std::span<const float> logits, GenerateStats& stats);

  TextModel& model_;
  std::unique_ptr<Drafter> drafter_;
  Scheduler scheduler_;
  std::map<std::size_t, Text> texts_;  ///< by id
  std::size_t begun_ = 0;
};

}  // namespace hyperslab::generate
