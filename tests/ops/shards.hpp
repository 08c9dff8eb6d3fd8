// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <vector>

#include "hyperslab/ops/vocabulary.hpp"

namespace hyperslab::ops::test {

/// A vocabulary of V tokens over `ranks` ranks of `size` rows or columns each.
struct Sharding {
  Dim V;
  Dim size;
  Dim ranks;
  [[nodiscard]] VocabularyShard of(Dim rank) const {
    return {rank * size, std::clamp<Dim>(V - rank * size, 0, size), V};
  }
};

/// One rank, primes, padding in the last rank, ranks that own only padding, wide ones.
inline std::vector<Sharding> awkward_shardings() {
  return {{11, 11, 1}, {11, 4, 3},  {11, 6, 2},     {5, 2, 4},
          {1, 1, 3},   {37, 40, 1}, {1030, 520, 2}, {2003, 256, 8}};
}

}  // namespace hyperslab::ops::test
