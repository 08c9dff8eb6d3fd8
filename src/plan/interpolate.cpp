// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/plan/interpolate.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "hyperslab/core/error.hpp"

namespace hyperslab::plan {
namespace {

constexpr double kRange = 16;    ///< distance at which a point's say has fallen to 1/e
constexpr double kNoise = 0.02;  ///< variance of one measurement over the field's
constexpr double kRidge = 10;    ///< few points make no slope
constexpr double kSame = 1e-6;   ///< largest squared distance within one point

double covariance(std::span<const double> a, std::span<const double> b) {
  return std::exp(-std::sqrt(squared_distance(a, b)) / kRange);
}

/// Solves a x = b in place, `a` symmetric and positive definite, row by row; the solution is in
/// `b`.
void solve(std::vector<double> a, std::vector<double>& b) {
  const std::size_t n = b.size();
  for (std::size_t j = 0; j < n; ++j) {  // Cholesky, lower triangle
    for (std::size_t i = j; i < n; ++i) {
      double sum = a[i * n + j];
      for (std::size_t k = 0; k < j; ++k) sum -= a[i * n + k] * a[j * n + k];
      a[i * n + j] = i == j ? std::sqrt(sum) : sum / a[j * n + j];
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < i; ++k) b[i] -= a[i * n + k] * b[k];
    b[i] /= a[i * n + i];
  }
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t k = i + 1; k < n; ++k) b[i] -= a[k * n + i] * b[k];
    b[i] /= a[i * n + i];
  }
}

}  // namespace

double squared_distance(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

Interpolation::Interpolation(std::vector<Point> points) : points_(std::move(points)) {
  require(!points_.empty(), "nothing to interpolate between");
  const auto count = static_cast<double>(points_.size());
  smallest_ = largest_ = points_.front().value;
  for (const Point& point : points_) {
    mean_ += point.value / count;
    for (std::size_t i = 0; i < 2; ++i) centre_[i] += point.at[i] / count;
    smallest_ = std::min(smallest_, point.value);
    largest_ = std::max(largest_, point.value);
  }
  fit_plane();
  const std::size_t n = points_.size();
  std::vector<double> matrix(n * n);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      matrix[i * n + j] = covariance(points_[i].at, points_[j].at) + (i == j ? kNoise : 0);
    }
    weights_.push_back(points_[i].value - plane(points_[i].at));
  }
  solve(std::move(matrix), weights_);
}

void Interpolation::fit_plane() {
  std::vector<double> squares = {kRidge, 0, 0, kRidge};
  std::vector<double> slope = {0, 0};
  for (const Point& point : points_) {
    const double x[2] = {point.at[0] - centre_[0], point.at[1] - centre_[1]};
    for (std::size_t i = 0; i < 2; ++i) {
      slope[i] += x[i] * (point.value - mean_);
      for (std::size_t j = 0; j < 2; ++j) squares[2 * i + j] += x[i] * x[j];
    }
  }
  solve(squares, slope);
  slope_[0] = slope[0];
  slope_[1] = slope[1];
}

double Interpolation::plane(std::span<const double> where) const {
  return mean_ + slope_[0] * (where[0] - centre_[0]) + slope_[1] * (where[1] - centre_[1]);
}

double Interpolation::at(std::span<const double> where) const {
  double value = plane(where);
  for (std::size_t i = 0; i < points_.size(); ++i) {
    const double squared = squared_distance(where, points_[i].at);
    if (squared < kSame) return points_[i].value;
    value += weights_[i] * std::exp(-std::sqrt(squared) / kRange);
  }
  return std::clamp(value, smallest_, largest_);
}

}  // namespace hyperslab::plan
