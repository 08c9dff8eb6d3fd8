// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/core/recorder.hpp"

namespace hyperslab::ops {

// Inside the reference path of attention.
inline constexpr Component kScoresComponent = {8,
                                               "attention.scores"};  ///< GEMMs of queries and keys
inline constexpr Component kSoftmaxComponent = {9, "attention.softmax"};  ///< and dropout
inline constexpr Component kMaskComponent = {11, "attention.mask"};       ///< keys beyond a row
inline constexpr Component kValuesComponent = {10, "attention.values"};   ///< GEMMs with the values

}  // namespace hyperslab::ops
