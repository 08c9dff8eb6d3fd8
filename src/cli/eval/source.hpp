// SPDX-License-Identifier: Apache-2.0
// Which checkpoints eval measures, on which tokens and with which deck.
#pragma once

#include <string>
#include <vector>

#include "../command.hpp"
#include "hyperslab/eval/evaluator.hpp"

namespace hyperslab::cli {

struct EvalSource {
  std::string deck;  ///< a path; empty: the deck that the first checkpoint holds
  std::vector<std::string> checkpoints;
  std::vector<std::string> overrides;
  bool averages = false;   ///< averages of the weights instead of the weights
  bool needs_text = true;  ///< false: nothing is read that the deck's section data names
};
/// A deck may also stand after the folders of --checkpoint. Throws Error(usage).
[[nodiscard]] EvalSource eval_source(const Arguments& args);

/// Checkpoints that follow each other and are stored alike: one deck measures them.
struct EvalGroup {
  EvalSource source;
  eval::EvalDeck deck;
};
/// All of the source's checkpoints in their order, each with eval_deck() of its group, but measured
/// on the data of the first: with --set, and a deck if one is given, for all. Collective. Throws
/// Error(usage) also for models that cannot be measured on the same samples.
[[nodiscard]] std::vector<EvalGroup> eval_groups(comm::World& world, const EvalSource& source);

/// The deck to measure with; collective over the world. A checkpoint's own deck is laid out over
/// the ranks that were started, and its paths are looked for from where its run was started, too.
/// The vocabulary is the one that the checkpoint keeps if the deck's is not found or is its own.
/// Throws Error(usage) also for a deck without anything to validate on.
[[nodiscard]] eval::EvalDeck eval_deck(comm::World& world, const EvalSource& source);

}  // namespace hyperslab::cli
