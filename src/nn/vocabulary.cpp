// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/vocabulary.hpp"

#include <algorithm>

namespace hyperslab::nn {

VocabularySplit::VocabularySplit(const TensorGroup& group, Dim vocabulary, Dim multiple) {
  const Dim unit = group.size() * multiple;
  rows = (vocabulary + unit - 1) / unit * multiple;
  const Dim first = std::min(vocabulary, group.rank() * rows);
  const Dim count = std::min(rows, vocabulary - first);
  shard = {first, count, vocabulary};
}

}  // namespace hyperslab::nn
