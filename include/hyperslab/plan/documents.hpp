// SPDX-License-Identifier: Apache-2.0
// Keys that tokens see within their documents, and a plan's attention without the hidden ones.
#pragma once

#include <cstdint>
#include <string>

#include "hyperslab/plan/plan.hpp"

namespace hyperslab::plan {

/// The keys that tokens see in a deck's samples.
struct DocumentKeys {
  KeyShares shares;          ///< 1 where documents are joined, or not known
  std::int64_t samples = 0;  ///< samples of the training data in which `shares` were counted
  std::string unknown;       ///< why documents are not known; empty: they are, or are joined
};

/// Counts as the loader of a run does, in the first samples of its order, of a million tokens or a
/// little more. Of data.validation_fraction, which splits documents by hash, no notice is taken.
/// Documents are not known if the data cannot be read, or if packing it would take long.
[[nodiscard]] DocumentKeys count_document_keys(const train::Config& config);

/// Takes the pairs that documents hide off the fused attention of the plan's listed steps, and sets
/// Plan::hidden_flops, which needs at least one. Reference attention computes all of it.
void leave_out_documents(Plan& plan, const train::Config& config, const KeyShares& shares);

}  // namespace hyperslab::plan
