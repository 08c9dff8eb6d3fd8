// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "hyperslab/comm/component.hpp"
#include "hyperslab/nn/component.hpp"
#include "hyperslab/ops/component.hpp"
#include "hyperslab/optim/component.hpp"

namespace hyperslab::train {

/// The components of all modules by index.
inline constexpr std::array kComponents = {Component{},
                                           nn::kEmbeddingComponent,
                                           nn::kAttentionComponent,
                                           nn::kFfnComponent,
                                           nn::kNormsComponent,
                                           nn::kHeadComponent,
                                           optim::kOptimizerComponent,
                                           comm::kCommunicationComponent,
                                           ops::kScoresComponent,
                                           ops::kSoftmaxComponent,
                                           ops::kValuesComponent,
                                           ops::kMaskComponent};
static_assert(
    [] {
      for (std::size_t i = 0; i < kComponents.size(); ++i) {
        if (kComponents[i].index != i) return false;
      }
      return kComponents.size() <= kMaxComponents;
    }(),
    "components: an index is used twice or missing");

}  // namespace hyperslab::train
