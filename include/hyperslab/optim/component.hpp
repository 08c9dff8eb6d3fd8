// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/core/recorder.hpp"

namespace hyperslab::optim {

inline constexpr Component kOptimizerComponent = {6, "optimizer"};

}  // namespace hyperslab::optim
