// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/core/recorder.hpp"

namespace hyperslab::comm {

/// Waiting for communication.
inline constexpr Component kCommunicationComponent = {7, "communication"};

}  // namespace hyperslab::comm
