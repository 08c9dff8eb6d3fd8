// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/pipeline/balance.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "hyperslab/core/error.hpp"

namespace hyperslab::pipeline {
namespace {

/// Sums of costs that differ by less are equal.
constexpr double kRounding = 1e-9;

/// best_[k][i]: the least value of cutting units [i, n) into k parts, found from the end.
class Partition {
 public:
  explicit Partition(std::span<const double> costs) : sums_(costs.size() + 1) {
    for (std::size_t i = 0; i < costs.size(); ++i) sums_[i + 1] = sums_[i] + costs[i];
  }

  [[nodiscard]] double least_maximum(std::size_t parts) const {
    std::vector<double> best = whole_rests();
    for (std::size_t k = 2; k <= parts; ++k) {
      for (std::size_t i = 0; i < n(); ++i) {  // best[j > i] are still for k - 1 parts
        double least = kNever;
        for (std::size_t j = i + 1; j < n(); ++j) {
          least = std::min(least, std::max(cost(i, j), best[j]));
        }
        best[i] = least;
      }
    }
    return best.front();
  }

  /// Sizes of the parts with the least sum of squares of costs, none above `maximum`.
  [[nodiscard]] std::vector<int> most_even(std::size_t parts, double maximum) const {
    std::vector<std::vector<double>> best(parts + 1, std::vector<double>(n() + 1, kNever));
    best[0][n()] = 0;
    for (std::size_t k = 1; k <= parts; ++k) {
      for (std::size_t i = 0; i < n(); ++i) {
        for (std::size_t j = i + 1; j <= n(); ++j) {
          best[k][i] = std::min(best[k][i], value(i, j, maximum) + best[k - 1][j]);
        }
      }
    }
    std::vector<int> sizes;
    std::size_t begin = 0;
    for (std::size_t k = parts; k > 0; --k) {
      std::size_t end = begin + 1;
      const double bound = best[k][begin] + kRounding * sums_.back() * sums_.back();
      while (value(begin, end, maximum) + best[k - 1][end] > bound) ++end;
      sizes.push_back(static_cast<int>(end - begin));
      begin = end;
    }
    return sizes;
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  [[nodiscard]] std::size_t n() const { return sums_.size() - 1; }
  [[nodiscard]] double cost(std::size_t begin, std::size_t end) const {
    return sums_[end] - sums_[begin];
  }
  [[nodiscard]] double value(std::size_t begin, std::size_t end, double maximum) const {
    const double c = cost(begin, end);
    return c > maximum + kRounding * sums_.back() ? kNever : c * c;
  }
  [[nodiscard]] std::vector<double> whole_rests() const {
    std::vector<double> rests;
    for (std::size_t i = 0; i < n(); ++i) rests.push_back(cost(i, n()));
    return rests;
  }

  std::vector<double> sums_;
};

}  // namespace

std::vector<int> balance(std::span<const double> unit_costs, int parts) {
  if (parts < 1 || unit_costs.size() < static_cast<std::size_t>(parts)) {
    throw Error(ExitCode::usage,
                fmt::format("{} units of a model cannot be cut into {} stages of at least one",
                            unit_costs.size(), parts));
  }
  const Partition partition(unit_costs);
  const auto count = static_cast<std::size_t>(parts);
  return partition.most_even(count, partition.least_maximum(count));
}

}  // namespace hyperslab::pipeline
