// SPDX-License-Identifier: Apache-2.0
#include "dataset/best_fit.hpp"

#include <bit>
#include <limits>

#include "hyperslab/core/error.hpp"

namespace hyperslab::io {
namespace {

constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

/// A set of numbers as bits, and over each word of them a bit that says whether it has any.
class NumberSet {
 public:
  explicit NumberSet(std::size_t largest) {
    std::size_t words = largest;
    do {
      words = words / 64 + 1;
      levels_.emplace_back(words);
    } while (words > 1);
  }
  void insert(std::size_t number) {
    for (auto& level : levels_) {
      level[number / 64] |= std::uint64_t{1} << number % 64;
      number /= 64;
    }
  }
  void erase(std::size_t number) {
    for (auto& level : levels_) {
      level[number / 64] &= ~(std::uint64_t{1} << number % 64);
      if (level[number / 64] != 0) return;
      number /= 64;
    }
  }
  /// The least member that is not below `number`; 0 if there is none.
  [[nodiscard]] std::size_t at_least(std::size_t number) const {
    for (std::size_t k = 0; k < levels_.size() && number / 64 < levels_[k].size(); ++k) {
      const std::uint64_t from = levels_[k][number / 64] >> number % 64;
      if (from != 0) return member(k, number + static_cast<std::size_t>(std::countr_zero(from)));
      number = number / 64 + 1;
    }
    return 0;
  }

 private:
  /// The least member below bit `number` of level k.
  [[nodiscard]] std::size_t member(std::size_t k, std::size_t number) const {
    for (; k > 0; --k) {
      const std::uint64_t word = levels_[k - 1][number];
      number = number * 64 + static_cast<std::size_t>(std::countr_zero(word));
    }
    return number;
  }
  std::vector<std::vector<std::uint64_t>> levels_;
};

/// Items by falling length, equal ones in their order: a counting sort.
std::vector<std::uint32_t> by_falling_length(std::span<const std::int32_t> lengths, Dim capacity) {
  std::vector<std::size_t> next(static_cast<std::size_t>(capacity) + 2);
  for (const std::int32_t length : lengths) {
    require(length > 0 && length <= capacity, "an item that no bin takes");
    ++next[static_cast<std::size_t>(capacity - length) + 1];
  }
  for (std::size_t i = 1; i < next.size(); ++i) next[i] += next[i - 1];
  std::vector<std::uint32_t> order(lengths.size());
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    order[next[static_cast<std::size_t>(capacity - lengths[i])]++] = static_cast<std::uint32_t>(i);
  }
  return order;
}

/// Bins while they are filled: those with equal space lie on a stack.
class OpenBins {
 public:
  OpenBins(std::size_t items, Dim capacity)
      : capacity_(static_cast<std::size_t>(capacity)),
        spaces_(capacity_),
        tops_(capacity_ + 1, kNone),
        following_(items, kNone) {}

  void place(std::uint32_t item, std::size_t length) {
    std::size_t space = spaces_.at_least(length);
    std::uint32_t bin = 0;
    if (space == 0) {
      space = capacity_;
      bin = static_cast<std::uint32_t>(heads_.size());
      heads_.push_back(item);
      tails_.push_back(item);
      below_.push_back(kNone);
    } else {
      bin = pop(space);
      following_[tails_[bin]] = item;
      tails_[bin] = item;
    }
    if (space > length) push(bin, space - length);
  }

  [[nodiscard]] Bins closed() const {
    Bins bins;
    bins.items.reserve(following_.size());
    bins.firsts.reserve(heads_.size() + 1);
    for (const std::uint32_t head : heads_) {
      bins.firsts.push_back(std::ssize(bins.items));
      for (auto item = head; item != kNone; item = following_[item]) bins.items.push_back(item);
    }
    bins.firsts.push_back(std::ssize(bins.items));
    return bins;
  }

 private:
  std::uint32_t pop(std::size_t space) {
    const std::uint32_t bin = tops_[space];
    tops_[space] = below_[bin];
    if (tops_[space] == kNone) spaces_.erase(space);
    return bin;
  }
  void push(std::uint32_t bin, std::size_t space) {
    if (tops_[space] == kNone) spaces_.insert(space);
    below_[bin] = tops_[space];
    tops_[space] = bin;
  }

  std::size_t capacity_;
  NumberSet spaces_;                      ///< free spaces of bins that are not full
  std::vector<std::uint32_t> tops_;       ///< last filled bin with each free space
  std::vector<std::uint32_t> below_;      ///< the bin below each bin
  std::vector<std::uint32_t> heads_;      ///< first item of each bin
  std::vector<std::uint32_t> tails_;      ///< last item of each bin
  std::vector<std::uint32_t> following_;  ///< item after each item in its bin
};

}  // namespace

Bins best_fit(std::span<const std::int32_t> lengths, Dim capacity) {
  require(lengths.size() < kNone, "more items than 32 bits number");
  OpenBins bins(lengths.size(), capacity);
  for (const std::uint32_t item : by_falling_length(lengths, capacity)) {
    bins.place(item, static_cast<std::size_t>(lengths[item]));
  }
  return bins.closed();
}

}  // namespace hyperslab::io
