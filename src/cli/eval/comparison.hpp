// SPDX-License-Identifier: Apache-2.0
// A table of checkpoints whose models are stored differently.
#pragma once

#include <optional>
#include <vector>

#include "hyperslab/eval/evaluator.hpp"

namespace hyperslab::cli {

/// The result of a checkpoint, and the deck that it was measured with.
struct Measured {
  eval::Result result;
  train::Config config;
  std::optional<train::TextAmount> text;
};

/// Prints a row each: how the model is stored, loss, perplexity and bits per byte (of images top-1
/// and top-5), the bytes that all parameters take, and the rate; and how far they are from the
/// first row's.
void print_comparison(const std::vector<Measured>& rows);

}  // namespace hyperslab::cli
