// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/core/view.hpp"

namespace hyperslab::ops {

/// Which tokens of the vocabulary a rank's rows (of a table) or columns (of logits) stand for: row
/// or column i is token first + i; those beyond `count` are padding. count may be 0: a rank that
/// owns only padding; then `first` does not matter.
struct VocabularyShard {
  Dim first = 0;
  Dim count = 0;
  Dim vocabulary = 0;
};

/// The whole vocabulary on one rank.
[[nodiscard]] constexpr VocabularyShard whole_vocabulary(Dim vocabulary) {
  return {0, vocabulary, vocabulary};
}

}  // namespace hyperslab::ops
