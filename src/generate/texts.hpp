// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <map>
#include <memory>
#include <vector>

#include "hyperslab/generate/generate.hpp"
#include "hyperslab/generate/sampling.hpp"
#include "scheduler.hpp"
#include "text_model.hpp"

namespace hyperslab::generate {

/// The texts that a generator continues: it gives the scheduler's passes to the model, and the
/// model's logits to samplers and listeners.
class Generator::Texts {
 public:
  explicit Texts(TextModel& model);

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
    std::unique_ptr<Sampler> sampler{};  ///< from the first token on
    std::int64_t generated = 0;
  };
  /// The result that a pass over the text's newest token must give to choose the next one.
  [[nodiscard]] static TextModel::Wanted wanted_by(const Text& text);
  void end_unheard();
  void read(const SchedulerPass& pass, TextModel::Wanted wanted);
  [[nodiscard]] Sampler& sampler_of(Text& text) const;
  struct Choice {
    std::int32_t token = -1;
    std::exception_ptr error{};  ///< in its place
  };
  [[nodiscard]] std::vector<Choice> choose(const std::vector<std::size_t>& ids,
                                           TextModel::Wanted wanted);
  void take(std::size_t id, Choice choice, std::span<const float> logits, GenerateStats& stats);
  [[nodiscard]] std::int32_t next_token(Text& text, std::size_t row, TextModel::Wanted wanted);
  bool report(Text& text, std::int32_t token, std::span<const float> logits, GenerateStats& stats);

  TextModel& model_;
  Scheduler scheduler_;
  std::map<std::size_t, Text> texts_;  ///< by id
  std::size_t begun_ = 0;
};

}  // namespace hyperslab::generate
