// SPDX-License-Identifier: Apache-2.0
// Evaluation of checkpoints by the loss on a deck's validation tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hyperslab/comm/world.hpp"
#include "hyperslab/eval/loaded_model.hpp"
#include "hyperslab/eval/predictions.hpp"
#include "hyperslab/plan/out_of_memory.hpp"
#include "hyperslab/train/deck_data.hpp"
#include "hyperslab/train/footprint.hpp"
#include "hyperslab/train/trainer.hpp"

namespace hyperslab::eval {

/// The deck and data of an evaluation.
struct EvalDeck {
  train::Config config;
  /// Samples that each of train.validate_batches counts: the deck's train.global_batch, even if
  /// more ranks than those were started and the layout needs a larger one.
  std::int64_t validation_batch = 0;
  plan::IsLegal is_legal;  ///< for advice if memory runs out
  bool averages = false;   ///< loads averages of the weights (optimizer.ema_decay) in place of them
};

struct Result {
  std::string checkpoint;
  std::int64_t step = 0;
  train::Evaluation evaluation;
  double seconds = 0;  ///< duration of the evaluation alone, on the slowest rank
  train::Footprint footprint;
};

/// The deck's validation samples, and the trainer that measures checkpoints on them.
class Evaluator {
 public:
  /// `stride`: tokens between windows; 0: the deck's context, and no context is read twice.
  /// Collective over the world. Throws Error(data) and Error(usage), the same on all ranks.
  Evaluator(comm::World& world, EvalDeck deck, std::int64_t stride);

  /// Collective over the world. `checkpoint`: a step's folder, a directory of them, or a run
  /// directory. Throws Error(checkpoint): damaged, or of another model; Error(data): no target
  /// counts. `predictions`: of a model of images, receives this rank's predictions.
  [[nodiscard]] Result measure(const std::string& checkpoint, Predictions* predictions = nullptr);

  /// Absent if the deck names no vocabulary.
  [[nodiscard]] const std::optional<train::TextAmount>& text() const { return text_; }
  /// The data of the evaluation, for a line of text.
  [[nodiscard]] std::string description() const { return data_.validation->description(); }
  /// The images that are measured on; null for text.
  [[nodiscard]] const io::ImageSet* images() const;
  /// The files; "synthetic" if there are none.
  [[nodiscard]] std::vector<std::string> files() const;

 private:
  void open_data();
  void make_samples(std::int64_t stride);

  comm::World& world_;
  train::Config config_;
  std::int64_t validation_batch_;  // samples
  train::DeckData data_;
  std::int64_t count_ = 0;
  std::unique_ptr<io::Tokenizer> tokenizer_;
  std::optional<train::TextAmount> text_;
  std::unique_ptr<mesh::Mesh> mesh_;
  std::unique_ptr<LoadedModel> model_;  // is destroyed before the mesh
};

}  // namespace hyperslab::eval
