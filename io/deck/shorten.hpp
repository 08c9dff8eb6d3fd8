// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "hyperslab/train/config.hpp"
#include "reader.hpp"

namespace hyperslab::deck {

/// Adapts values of the deck file to an override of train.steps, train.epochs or checkpoint.every =
/// 0. Cuts warm-up and traced steps beyond the end; leaves out epochs beside an override of steps,
/// steps beside one of epochs, and milestones without periodic checkpoints. Rules check values that
/// overrides give, which stay. Returns the changes in one line; empty if there are none.
[[nodiscard]] std::string shorten(train::Config& config, Reader& reader);

}  // namespace hyperslab::deck
