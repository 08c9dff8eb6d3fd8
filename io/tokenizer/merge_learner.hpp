// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tokenizer/piece_counts.hpp"

namespace hyperslab::io {

/// Tokens and merges of a trained vocabulary, without special tokens.
struct LearnedMerges {
  std::vector<std::string> tokens;  ///< 256 bytes in GPT-2's order, then the result of each merge
  std::vector<std::pair<std::int32_t, std::int32_t>> merges;
};

/// Learns up to `merges` merges from the pieces, which it takes apart: each time the most frequent
/// pair of neighbours, of equally frequent ones the pair whose bytes are lexicographically greater
/// (left token first). Ends if no pair is left.
[[nodiscard]] LearnedMerges learn_merges(PieceCounts pieces, std::int64_t merges);

}  // namespace hyperslab::io
