// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/sample.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "backend.hpp"
#include "checks.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::ops {
namespace {

constexpr std::size_t kSmallK = 256;

std::size_t index(std::int32_t id) { return static_cast<std::size_t>(id); }

/// The largest value; NaN if one is NaN or infinite, but for minus infinity. Sixteen maxima side by
/// side, which compilers turn into vectors.
float largest_number(std::span<const float> values) {
  constexpr std::size_t kLanes = 16;
  constexpr float kMost = std::numeric_limits<float>::max();
  std::array<float, kLanes> top{};
  std::array<int, kLanes> others{};
  top.fill(-std::numeric_limits<float>::infinity());
  const auto look_at = [&](std::size_t lane, float value) {
    top[lane] = value > top[lane] ? value : top[lane];
    others[lane] |= value <= kMost ? 0 : 1;
  };
  std::size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) look_at(lane, values[i + lane]);
  }
  for (; i < values.size(); ++i) look_at(0, values[i]);
  const bool are_numbers = std::ranges::none_of(others, [](int other) { return other != 0; });
  return are_numbers ? std::ranges::max(top) : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace

bool TokenChooser::is_likelier(std::int32_t a, std::int32_t b) const {
  const float x = logits_[index(a)];
  const float y = logits_[index(b)];
  return x != y ? x > y : a < b;
}

void TokenChooser::cut_to_top_k(std::int64_t top_k) {
  const auto k = static_cast<std::size_t>(top_k);
  if (k == 0 || k >= kept_) return;
  const auto likelier = [this](auto a, auto b) { return is_likelier(a, b); };
  const auto end = order_.begin() + static_cast<std::ptrdiff_t>(k);
  if (k <= kSmallK) {  // a heap of k: most tokens are compared with its top alone
    std::partial_sort(order_.begin(), end, order_.end(), likelier);
  } else {
    std::nth_element(order_.begin(), end - 1, order_.end(), likelier);
  }
  kept_ = k;
}

/// Keeps the smallest set of likeliest tokens that holds top_p of the kept mass: halves the range
/// that its size is in, so that all selections together look at about twice the tokens.
void TokenChooser::cut_to_top_p(double top_p) {
  if (top_p >= 1) return;
  const auto at = [this](std::size_t i) { return order_.begin() + static_cast<std::ptrdiff_t>(i); };
  const auto mass = [&](std::size_t begin, std::size_t end) {
    return std::accumulate(at(begin), at(end), 0.0, [this](double sum, std::int32_t id) {
      return sum + weights_[index(id)];
    });
  };
  const double total = mass(0, kept_);
  const double expected = top_p * total;
  // All tokens below this together hold less than the mass to leave out.
  const double least = (1 - top_p) * total / (2 * static_cast<double>(kept_));
  const auto light = std::partition(at(0), at(kept_),
                                    [&](std::int32_t id) { return weights_[index(id)] >= least; });
  double held = 0;  // weight of the first `low` tokens, less than expected
  std::size_t low = 0;
  auto high = static_cast<std::size_t>(light - order_.begin());
  while (high - low > 1) {
    const std::size_t middle = low + (high - low) / 2;
    std::nth_element(at(low), at(middle), at(high),
                     [this](auto a, auto b) { return is_likelier(a, b); });
    const double more = mass(low, middle);
    if (held + more >= expected) {
      high = middle;
    } else {
      held += more;
      low = middle;
    }
  }
  std::for_each(at(high), at(kept_), [this](std::int32_t id) { weights_[index(id)] = 0; });
  kept_ = high;
}

/// Weights are relative to the likeliest token, which top k and top p never cut.
void TokenChooser::cut_to_min_p(double min_p) {
  if (min_p <= 0) return;
  for (std::size_t i = 0; i < kept_; ++i) {
    double& weight = weights_[index(order_[i])];
    if (weight < min_p) weight = 0;
  }
}

std::int32_t TokenChooser::draw_token(std::span<const double> weights, std::uint64_t draw) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double rest = static_cast<double>(draw) * 0x1p-64 * total;
  std::size_t last = 0;
  for (std::size_t id = 0; id < weights.size(); ++id) {
    if (weights[id] == 0) continue;
    last = id;  // rounding may leave a rest after the last one
    rest -= weights[id];
    if (rest < 0) break;
  }
  return static_cast<std::int32_t>(last);
}

std::int32_t TokenChooser::look_at(std::span<const float> logits) {
  logits_ = logits;
  const float largest = largest_number(logits);
  if (!std::isfinite(largest)) return -1;
  return static_cast<std::int32_t>(std::ranges::find(logits, largest) - logits.begin());
}

void TokenChooser::make_weights(std::int32_t likeliest, const TokenChoice& choice) {
  order_.resize(logits_.size());
  weights_.assign(logits_.size(), 0);
  std::iota(order_.begin(), order_.end(), 0);
  kept_ = order_.size();
  cut_to_top_k(choice.top_k);
  const double top = logits_[index(likeliest)];
  for (std::size_t i = 0; i < kept_; ++i) {
    const std::size_t id = index(order_[i]);
    weights_[id] = std::exp((logits_[id] - top) / choice.temperature);
  }
  cut_to_top_p(choice.top_p);
  cut_to_min_p(choice.min_p);
}

std::int32_t TokenChooser::choose(std::span<const float> logits, const TokenChoice& choice) {
  const std::int32_t likeliest = look_at(logits);
  if (likeliest < 0 || choice.temperature == 0) return likeliest;
  make_weights(likeliest, choice);
  return draw_token(weights_, choice.draw);
}

std::span<const double> TokenChooser::weigh(std::span<const float> logits,
                                            const TokenChoice& choice) {
  const std::int32_t likeliest = look_at(logits);
  if (likeliest < 0) return {};
  if (choice.temperature == 0) {
    weights_.assign(logits.size(), 0);
    weights_[index(likeliest)] = 1;
  } else {
    make_weights(likeliest, choice);
  }
  return weights_;
}

void sample(Context& ctx, CView logits, Dim V, CView choices, View index) {
  const auto [rows, columns] = logits.dims<2>("sample logits");
  require_here(ctx, logits, "sample logits");
  require(V > 0 && V <= columns, "sample: logits have fewer columns than it shall look at");
  require_operand(ctx, choices, {rows, static_cast<Dim>(sizeof(TokenChoice))}, DType::u8,
                  "sample choices");
  require_operand(ctx, index, {rows}, DType::i32, "sample index");
  if (on_meta(ctx, "sample", 0, {logits, choices, index})) return;
  dispatch<cuda::sample, cpu::sample>(ctx, logits, V, choices, index);
}

}  // namespace hyperslab::ops
