// SPDX-License-Identifier: Apache-2.0
// `train.log_norms`: a look at the sizes of activations, weights and gradients.
#pragma once

#include <fstream>
#include <string>

#include "hyperslab/train/trainer.hpp"

namespace hyperslab::train {

/// One JSON line a record: step, the RMS of the residual stream behind every unit in the step's
/// last microbatch of this rank, and the Euclidean norms of every weight and of its reduced
/// gradient, before clipping. On a resume lines of steps that will be done again are cut off.
class NormsLog {
 public:
  NormsLog(std::string path, std::int64_t first_step);
  void append(std::int64_t step, Trainer& trainer);

 private:
  std::string path_;
  std::ofstream out_;
};

}  // namespace hyperslab::train
