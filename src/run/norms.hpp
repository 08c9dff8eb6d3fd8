// SPDX-License-Identifier: Apache-2.0
// `train.log_norms`: a look at the sizes of activations, weights and gradients.
#pragma once

#include <string>

#include "hyperslab/io/line_log.hpp"
#include "hyperslab/train/trainer.hpp"

namespace hyperslab::run {

/// One JSON line a record: step, the RMS of the residual stream after every unit in the step's
/// last microbatch of this rank, and the Euclidean norms of every weight and of its reduced
/// gradient, before clipping. Lines are kept as io::LineLog does.
class NormsLog {
 public:
  NormsLog(const std::string& path, std::int64_t first_step) : lines_(path, first_step) {}
  void append(std::int64_t step, train::Trainer& trainer);

 private:
  io::LineLog lines_;
};

}  // namespace hyperslab::run
