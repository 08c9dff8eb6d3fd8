// SPDX-License-Identifier: Apache-2.0
// Texts that a model generates while it trains.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hyperslab/generate/generate.hpp"
#include "hyperslab/io/line_log.hpp"
#include "hyperslab/io/tokenizer.hpp"
#include "start.hpp"

namespace hyperslab::run {

class RunSamples {
 public:
  /// Reads the vocabulary and encodes train.sample_prompts; collective, and so are errors.
  explicit RunSamples(const Start& start);
  /// From now on texts of `first_step` and later ones are recorded in the run's samples.jsonl, in
  /// place of those that it may hold of these steps. Collective.
  void begin(std::int64_t first_step, train::Trainer& trainer);
  [[nodiscard]] bool is_due_after(std::int64_t step, std::int64_t last_step) const;
  /// Continues the prompts with the trainer's present parameters, each group a share of them; logs
  /// and records the texts. Prompt i draws from the stream of run.seed + i, whatever the step and
  /// the layout. Training computes the same as without. Collective. False: it was cut short by a
  /// request to stop.
  [[nodiscard]] bool take(std::int64_t step, train::Trainer& trainer);

 private:
  /// The ranks that take passes together: a tensor group or, if passes gather values, those of all
  /// ranks that hold shards of them.
  [[nodiscard]] int group_size() const;
  /// Prompts [first, last) of this rank's group.
  struct Share {
    std::size_t first = 0;
    std::size_t last = 0;
  };
  [[nodiscard]] Share share() const;
  void record(std::int64_t step, const std::vector<std::string>& texts);

  const Start& start_;
  std::unique_ptr<io::Tokenizer> tokenizer_;  // absent without samples
  io::TextEnds ends_;
  std::vector<std::string> texts_;      // all prompts
  generate::Prompts prompts_;           // likewise
  std::unique_ptr<comm::World> group_;  // this rank's; absent if it is alone
  std::unique_ptr<generate::Generator> generator_;
  std::unique_ptr<io::LineLog> log_;  // the first rank's
};

}  // namespace hyperslab::run
