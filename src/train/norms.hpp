// SPDX-License-Identifier: Apache-2.0
// `train.log_norms`: a look at the sizes of activations, weights and gradients.
#pragma once

#include <string>

#include "hyperslab/train/trainer.hpp"

namespace hyperslab::train {

/// Appends one JSON line to `path`: step, the RMS of the residual stream behind every unit in the
/// step's last microbatch of this rank, and the Euclidean norms of every weight and of its reduced
/// gradient, before clipping.
void append_norms(const std::string& path, std::int64_t step, Trainer& trainer);

}  // namespace hyperslab::train
