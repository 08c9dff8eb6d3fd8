// SPDX-License-Identifier: Apache-2.0
#include "dataset/synthetic.hpp"

#include <fmt/format.h>

#include <numeric>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/philox.hpp"

namespace hyperslab::io {
namespace {

constexpr std::uint64_t kIncrement = 7;

/// Words of one Philox stream by index; consecutive ones share a block of four.
class Words {
 public:
  Words(std::uint64_t seed, std::uint64_t stream) : seed_(seed), stream_(stream) {}

  std::uint32_t operator[](std::uint64_t index) {
    if (index / 4 != number_) {
      number_ = index / 4;
      block_ = philox(philox_counter(number_, stream_), seed_);
    }
    return block_.x[index % 4];
  }
  /// True if token `index` is drawn by itself. The coin is the low bits, the id the high ones.
  bool restarts(std::uint64_t index) { return index == 0 || ((*this)[index] & 3U) == 0; }

 private:
  std::uint64_t seed_;
  std::uint64_t stream_;
  std::uint64_t number_ = ~0ULL;
  PhiloxCounter block_{};
};

}  // namespace

Synthetic::Synthetic(std::int64_t vocabulary, std::uint64_t seed)
    : vocabulary_(static_cast<std::uint64_t>(vocabulary)),
      seed_(seed),
      stream_(name_hash("synthetic tokens")) {
  require(vocabulary > 0, "synthetic tokens of an empty vocabulary");
  while (std::gcd(multiplier_, vocabulary_) != 1) ++multiplier_;
}

void Synthetic::read(std::int64_t first, std::span<std::int32_t> out) const {
  require(first >= 0 && first + static_cast<std::int64_t>(out.size()) <= size(),
          "tokens beyond the end of the source");
  Words words(seed_, stream_);
  const auto begin = static_cast<std::uint64_t>(first);
  const std::uint64_t end = begin + out.size();
  std::uint64_t index = begin;
  while (!words.restarts(index)) --index;  // three steps on average
  std::uint64_t id = 0;
  for (; index < end; ++index) {
    id = words.restarts(index) ? (words[index] * vocabulary_) >> 32
                               : (multiplier_ * id + kIncrement) % vocabulary_;
    if (index >= begin) out[index - begin] = static_cast<std::int32_t>(id);
  }
}

std::string Synthetic::description() const {
  return fmt::format("synthetic: {} tokens of a Markov chain over {} ids", size(), vocabulary_);
}

std::uint64_t Synthetic::fingerprint() const {
  return name_hash(fmt::format("synthetic {} {}", vocabulary_, seed_));
}

}  // namespace hyperslab::io
