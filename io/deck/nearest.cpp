// SPDX-License-Identifier: Apache-2.0
#include "nearest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace hyperslab::deck {
namespace {

/// "low or high", each left out if it is 0.
std::string low_or_high(std::int64_t low, std::int64_t high) {
  if (low > 0 && high > 0) return fmt::format("{} or {}", low, high);
  return fmt::format("{}", low > 0 ? low : high);
}

}  // namespace

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<int>> d(a.size() + 1, std::vector<int>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = static_cast<int>(i + j);
        continue;
      }
      const int change = a[i - 1] == b[j - 1] ? 0 : 1;
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

bool is_near(std::string_view word, std::string_view known) {
  constexpr std::size_t kLongestWord = 64;  // nothing longer can be a slip of a known word
  if (word.size() > kLongestWord) return false;
  return edit_distance(word, known) <= std::max(1, static_cast<int>(known.size()) / 3);
}

std::string_view nearest_word(std::string_view word, std::span<const std::string_view> known) {
  constexpr std::size_t kLeastBeginning = 3;
  std::string_view nearest;
  if (word.size() >= kLeastBeginning) {
    for (const auto candidate : known) {
      const bool shorter = nearest.empty() || candidate.size() < nearest.size();
      if (candidate.starts_with(word) && shorter) nearest = candidate;
    }
  }
  if (!nearest.empty()) return nearest;
  int least = 0;
  for (const auto candidate : known) {
    if (!is_near(word, candidate)) continue;
    const int distance = edit_distance(word, candidate);
    if (nearest.empty() || distance < least) {
      nearest = candidate;
      least = distance;
    }
  }
  return nearest;
}

std::string nearest_divisors(std::int64_t number, std::int64_t near,
                             const std::function<bool(std::int64_t divisor)>& fits) {
  std::int64_t low = 0;
  std::int64_t high = 0;
  const auto consider = [&](std::int64_t divisor) {
    if (!fits(divisor)) return;
    if (divisor < near) low = std::max(low, divisor);
    if (divisor > near) high = high == 0 ? divisor : std::min(high, divisor);
  };
  for (std::int64_t divisor = 1; divisor * divisor <= number; ++divisor) {
    if (number % divisor != 0) continue;
    consider(divisor);
    consider(number / divisor);
  }
  return low_or_high(low, high);
}

std::string nearest_multiples(std::int64_t unit, std::int64_t near) {
  const std::int64_t low = near / unit * unit;
  return low == near ? low_or_high(low, 0) : low_or_high(low, low + unit);
}

}  // namespace hyperslab::deck
