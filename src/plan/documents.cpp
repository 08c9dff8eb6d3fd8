// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/plan/documents.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "hyperslab/core/error.hpp"
#include "hyperslab/ops/attention.hpp"
#include "hyperslab/train/deck_data.hpp"

namespace hyperslab::plan {
namespace {

constexpr Dim kCountedTokens = Dim{1} << 20;
constexpr Dim kFewestSamples = 16;
/// Finding documents and packing them goes through all tokens.
constexpr std::int64_t kMostPackedTokens = std::int64_t{1} << 27;

KeyShares shares_of(const io::Samples& samples, std::int64_t count, Dim window) {
  const Shape shape = {1, samples.targets()};
  Tensor tokens(Device::cpu, DType::i32, shape);
  Tensor targets(Device::cpu, DType::i32, shape);
  Tensor first_keys(Device::cpu, DType::i32, shape);
  Tensor position(Device::cpu, DType::i64, {1});
  Batch batch;
  batch.tokens = tokens.view();
  batch.targets = targets.view();
  batch.first_keys = first_keys.view();
  batch.sample_position = position.view();
  io::Loader loader(samples, count, 0, 1);
  loader.count_keys(window);
  for (int sample = 0; sample < count; ++sample) loader.load(1, sample, batch);
  return loader.key_shares(1);
}

/// The share of all pairs of queries and keys that the op computes, by its FLOPs.
double seen_by(const Operation& op, double gemms, Dim T) {
  const OpSize::Extent& out = op.size.operands[op.name == "attention_forward" ? 1 : 0];  // or dout
  return op.size.flops / (gemms * 2 * out.rows * out.columns * static_cast<double>(T));
}

/// GEMMs over queries and keys; 0 of other ops.
double gemms_of(const Operation& op) {
  if (op.kind != Operation::Kind::compute) return 0;
  if (op.name == "attention_forward") return 2;
  return op.name == "attention_backward" ? 5 : 0;
}

}  // namespace

DocumentKeys count_document_keys(const train::Config& config) {
  DocumentKeys keys;
  if (config.model.is_of_images() || config.data.documents == io::Documents::joined) return keys;
  train::Config read = config;
  read.data.validation.clear();
  read.data.validation_fraction = 0;
  try {
    if (read.data.packing != io::Packing::contiguous) {
      const auto tokens = io::open_tokens(read.data.train, read.data.dtype, config.model.vocabulary,
                                          config.run.seed);
      if (tokens->size() > kMostPackedTokens) {
        keys.unknown = fmt::format("packing {} tokens takes long", tokens->size());
        return keys;
      }
    }
    const train::DeckData data = train::open_data(read, io::DataPart::both);
    const std::int64_t count =
        std::min(std::max(kCountedTokens / config.model.context, kFewestSamples),
                 data.train_samples->size());
    keys.shares = shares_of(*data.train_samples, count, config.model.scores.window);
    keys.samples = count;
  } catch (const Error& error) {
    keys.unknown = error.what();
  }
  return keys;
}

void leave_out_documents(Plan& plan, const train::Config& config, const KeyShares& shares) {
  if (shares.all == 1 && shares.windowed == 1) return;
  require(!plan.operations.empty(), "documents of a plan that lists no step");
  const Dim T = config.model.context;
  constexpr double kSeenWithoutWindow = 0.5;  // share of all pairs, by the causal mask
  const double of_window =
      ops::seen_share({ops::AttentionMask::Kind::causal, config.model.scores.window}, T);
  for (OperationList& step : plan.operations) {
    double hidden = 0;
    for (Operation& op : step) {
      const double gemms = gemms_of(op);
      if (gemms == 0) continue;
      // The list does not name layers: the nearer share shows whether this one has a window.
      const bool in_window = seen_by(op, gemms, T) < (of_window + kSeenWithoutWindow) / 2;
      const double left = op.size.flops * (in_window ? shares.windowed : shares.all);
      hidden += op.size.flops - left;
      op.size.flops = left;
    }
    if (&step == &plan.operations.front()) plan.hidden_flops = hidden;
  }
}

}  // namespace hyperslab::plan
