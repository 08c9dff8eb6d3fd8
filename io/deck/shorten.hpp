// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "hyperslab/train/config.hpp"
#include "reader.hpp"

namespace hyperslab::deck {

/// What an override of train.steps, train.epochs or checkpoint.every = 0 leaves no room for in a
/// deck file is cut: warm-up and traced steps beyond the end, the other of steps and epochs,
/// milestones without periodic checkpoints. Values that overrides give themselves stay, and rules
/// check them. Returns what was cut, one line; empty: nothing.
[[nodiscard]] std::string shorten(train::Config& config, Reader& reader);

}  // namespace hyperslab::deck
