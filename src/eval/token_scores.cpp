// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/eval/token_scores.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "hyperslab/core/error.hpp"
#include "hyperslab/io/packing.hpp"
#include "hyperslab/io/vocabulary_record.hpp"
#include "hyperslab/ops/loss.hpp"
#include "hyperslab/train/setup.hpp"

namespace hyperslab::eval {
namespace {

/// The tokens of a file, a document or a piece of one in each sample.
struct ScoredFile {
  std::unique_ptr<io::TokenSource> tokens;
  std::unique_ptr<io::PackedSamples> samples;

  ScoredFile(const train::Config& config, const std::string& file) {
    const io::DataConfig& data = config.data;
    tokens = io::open_tokens({file}, data.dtype, config.model.vocabulary, config.run.seed);
    if (tokens->files().size() != 1) {
      throw Error(ExitCode::usage,
                  fmt::format("{}: expected one token file, whose tokens are scored, found {}",
                              file, tokens->files().size()));
    }
    if (!data.vocabulary.empty()) {
      const auto tokenizer = io::open_tokenizer(data.vocabulary);
      io::require_same_vocabulary(*tokens, *tokenizer, data.vocabulary);
    }
    samples = std::make_unique<io::PackedSamples>(
        *tokens, tokens->documents(data.end_token), io::Packing::document, config.model.context,
        config.run.seed, io::TargetRules{.predicts_starts = false});
  }
};

/// Scores of consecutive tokens as bytes: the first token's place, their number, and they.
class ScoreBytes {
 public:
  template <class T>
  void add(const io::PackedSamples::Piece& piece, CView scores) {
    const std::int64_t count = piece.end - piece.begin - (piece.ends_document ? 1 : 0);
    const std::int64_t head[2] = {piece.begin + 1, count};
    bytes_.append(reinterpret_cast<const char*>(head), sizeof head);
    const T* of_targets = scores.data<T>();
    for (std::int64_t t = 0; t < count; ++t) {
      const auto value =
          -static_cast<float>(of_targets[t * ops::kTargetScoreCount + ops::kScoreLoss]);
      bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
  }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

  static void take(const std::string& bytes, std::vector<float>& values) {
    for (std::size_t at = 0; at < bytes.size();) {
      std::int64_t head[2];
      std::memcpy(head, bytes.data() + at, sizeof head);
      at += sizeof head;
      const std::size_t size = static_cast<std::size_t>(head[1]) * sizeof(float);
      std::memcpy(values.data() + head[0], bytes.data() + at, size);
      at += size;
    }
  }

 private:
  std::string bytes_;
};

void require_finite(const std::vector<float>& values, const std::string& checkpoint) {
  const auto bad = std::ranges::find_if_not(values, [](float v) { return std::isfinite(v); });
  if (bad == values.end()) return;
  throw Error(
      ExitCode::numerics,
      fmt::format("{}: the log-probability of token {} is {}, no finite number: the weights "
                  "are damaged, or activations leave the range of precision.compute",
                  checkpoint, bad - values.begin(), *bad));
}

}  // namespace

TokenScores token_scores(comm::World& world, const EvalDeck& deck, const std::string& file,
                         const std::string& checkpoint) {
  const train::Config& config = deck.config;
  std::unique_ptr<ScoredFile> scored;
  train::TrainerOptions options;
  comm::agree(world, [&] {
    scored = std::make_unique<ScoredFile>(config, file);
    options = train::trainer_options(config, world.local_rank(), false);
  });
  options.activity = &world.activity();
  const auto mesh = train::make_mesh(world, config, options.device);
  LoadedModel model({world, config, *mesh, options, deck.is_legal, deck.averages});
  const io::PackedSamples& samples = *scored->samples;
  TokenScores result;
  result.step = model.load(checkpoint);
  result.documents = samples.figures().documents;
  result.cut = samples.figures().cut;
  ScoreBytes mine;
  train::Trainer::EvaluationCalls calls;
  calls.scores = [&](std::int64_t first, CView scores) {
    const Dim B = scores.shape()[0];
    for (std::int64_t i = first; i < std::min(first + B, samples.size()); ++i) {
      const CView row = scores.slice(i - first, 1);
      const auto piece = samples.pieces(i).front();
      row.dtype() == DType::f64 ? mine.add<double>(piece, row) : mine.add<float>(piece, row);
    }
  };
  (void)model.trainer().evaluate(samples, samples.size(), world, calls);
  const std::vector<std::string> all = world.gather(mine.bytes());
  comm::agree(world, [&] {
    if (world.rank() != 0) return;
    result.values.resize(static_cast<std::size_t>(scored->tokens->size()));
    for (const std::string& part : all) ScoreBytes::take(part, result.values);
    require_finite(result.values, checkpoint);
  });
  return result;
}

}  // namespace hyperslab::eval
