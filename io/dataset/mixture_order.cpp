// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "hyperslab/core/error.hpp"
#include "hyperslab/io/mixture.hpp"

namespace hyperslab::io {
namespace {

/// Whole numbers in the proportions of the shares, which sum to `period`, or none.
std::vector<std::int64_t> whole_parts(const std::vector<double>& shares, std::int64_t period) {
  constexpr double kClose = 1e-12;
  std::vector<std::int64_t> parts;
  for (const double share : shares) {
    const double exact = share * static_cast<double>(period);
    const double whole = std::nearbyint(exact);
    if (std::abs(exact - whole) > kClose * static_cast<double>(period)) return {};
    if (share > 0 && whole == 0) return {};
    parts.push_back(static_cast<std::int64_t>(whole));
  }
  const bool is_whole = std::accumulate(parts.begin(), parts.end(), std::int64_t{0}) == period;
  return is_whole ? parts : std::vector<std::int64_t>{};
}

/// The nearest whole numbers that sum to `period`: rounded down, and then up where most is lost.
std::vector<std::int64_t> nearest_parts(const std::vector<double>& shares, std::int64_t period) {
  std::vector<std::int64_t> parts(shares.size());
  std::vector<std::size_t> by_loss(shares.size());
  std::iota(by_loss.begin(), by_loss.end(), std::size_t{0});
  std::vector<double> losses(shares.size());
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const double exact = shares[i] * static_cast<double>(period);
    parts[i] = static_cast<std::int64_t>(std::floor(exact));
    losses[i] = exact - std::floor(exact);
  }
  std::ranges::stable_sort(by_loss, std::greater<>(), [&](std::size_t i) { return losses[i]; });
  std::int64_t missing = period - std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  for (const std::size_t i : by_loss) {
    if (missing-- <= 0) break;
    ++parts[i];
  }
  return parts;
}

std::vector<std::int64_t> parts_of(const std::vector<double>& weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  require(sum > 0 && std::isfinite(sum), "a mixture without weights");
  std::vector<double> shares(weights);
  for (double& share : shares) share /= sum;
  for (std::int64_t period = 1; period <= MixtureOrder::kMostPeriod; ++period) {
    std::vector<std::int64_t> parts = whole_parts(shares, period);
    if (!parts.empty()) return parts;
  }
  std::vector<std::int64_t> parts = nearest_parts(shares, MixtureOrder::kMostPeriod);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] > 0 || weights[i] == 0) continue;
    throw Error(ExitCode::usage,
                fmt::format("data.weights: {} of {} is less than one sample in {}; give a larger "
                            "one, or 0",
                            weights[i], sum, MixtureOrder::kMostPeriod));
  }
  return parts;
}

}  // namespace

MixtureOrder::MixtureOrder(const std::vector<double>& weights) : parts_(parts_of(weights)) {
  require(weights.size() <= std::numeric_limits<std::uint16_t>::max(), "too many sources");
  const std::int64_t period = std::accumulate(parts_.begin(), parts_.end(), std::int64_t{0});
  std::vector<std::int64_t> taken(parts_.size());
  for (std::int64_t k = 0; k < period; ++k) {
    std::size_t next = 0;
    std::int64_t first_deadline = std::numeric_limits<std::int64_t>::max();
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      // Earlier than this the source would have a whole sample more than its share of k + 1.
      const bool may_come = taken[i] * period < parts_[i] * (k + 1);
      if (parts_[i] == 0 || !may_come) continue;
      const std::int64_t deadline = ((taken[i] + 1) * period + parts_[i] - 1) / parts_[i];
      if (deadline < first_deadline) {
        first_deadline = deadline;
        next = i;
      }
    }
    sources_.push_back(static_cast<std::uint16_t>(next));
    earlier_.push_back(static_cast<std::uint32_t>(taken[next]++));
  }
}

MixturePlace MixtureOrder::place(std::int64_t k) const {
  require(k >= 0, "negative sample index");
  const auto at = static_cast<std::size_t>(k % period());
  const std::size_t source = sources_[at];
  return {source, k / period() * parts_[source] + earlier_[at]};
}

std::vector<std::int64_t> MixtureOrder::counts(std::int64_t k) const {
  std::vector<std::int64_t> found(parts_.size());
  for (std::size_t i = 0; i < parts_.size(); ++i) found[i] = k / period() * parts_[i];
  for (std::size_t at = 0; at < static_cast<std::size_t>(k % period()); ++at) ++found[sources_[at]];
  return found;
}

MixtureSchedule::MixtureSchedule(const std::vector<MixtureStage>& stages) {
  require(!stages.empty() && stages.front().first == 0, "a mixture begins at sample 0");
  std::vector<std::int64_t> before(stages.front().weights.size());
  stages_.reserve(stages.size());
  for (const MixtureStage& stage : stages) {
    require(stage.weights.size() == before.size(), "a mixture's stages have as many weights");
    if (!stages_.empty()) {
      require(stage.first >= stages_.back().first, "a mixture's stages follow each other");
      before = counts(stage.first);
    }
    stages_.push_back({stage.first, before, MixtureOrder(stage.weights)});
  }
}

const MixtureSchedule::Stage& MixtureSchedule::stage_of(std::int64_t k) const {
  const auto after = std::ranges::upper_bound(stages_, k, {}, &Stage::first);
  require(after != stages_.begin(), "negative sample index");
  return *(after - 1);
}

MixturePlace MixtureSchedule::place(std::int64_t k) const {
  const Stage& stage = stage_of(k);
  MixturePlace place = stage.order.place(k - stage.first);
  place.index += stage.before[place.source];
  return place;
}

std::vector<std::int64_t> MixtureSchedule::counts(std::int64_t k) const {
  // Those before sample k: of the stage that it is in, or of the one that ends there.
  const Stage& stage = k == 0 ? stages_.front() : stage_of(k - 1);
  std::vector<std::int64_t> found = stage.order.counts(k - stage.first);
  for (std::size_t i = 0; i < found.size(); ++i) found[i] += stage.before[i];
  return found;
}

}  // namespace hyperslab::io
