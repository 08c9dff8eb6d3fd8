// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace hyperslab::model {

/// The way in which a stage continues texts.
enum class Generation : std::uint8_t {
  none,    ///< not at all
  cached,  ///< Stage::decode: a pass reads new tokens, and keeps their keys and values
  whole    ///< Stage::read_whole: every pass reads whole texts, as an evaluation does
};

}  // namespace hyperslab::model
