// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "hyperslab/io/dataset.hpp"

namespace hyperslab::io {

/// 2^31 tokens of a Markov chain that needs no file and no state. Word i of the Philox stream of
/// `seed` decides: with probability 1/4 (always at i = 0) token i is a uniform id, else it is
/// (a * token i-1 + 7) mod V, where a is the smallest number above 4 that is coprime to V. The map
/// does not depend on the seed, so validation under another seed has the same structure. The best
/// possible loss is near 0.56 + 0.25 ln V nats a token, against ln V for uniform ids.
class Synthetic final : public TokenSource {
 public:
  Synthetic(std::int64_t vocabulary, std::uint64_t seed);

  [[nodiscard]] std::int64_t size() const override { return 1LL << 31; }
  void read(std::int64_t first, std::span<std::int32_t> out) const override;
  [[nodiscard]] std::string description() const override;
  [[nodiscard]] std::uint64_t fingerprint() const override;

 private:
  std::uint64_t vocabulary_;
  std::uint64_t seed_;
  std::uint64_t stream_;
  std::uint64_t multiplier_ = 5;
};

}  // namespace hyperslab::io
