// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

namespace hyperslab::plan {

/// The squared distance of two points with equally many coordinates.
[[nodiscard]] double squared_distance(std::span<const double> a, std::span<const double> b);

/// A value between and beyond points where it is known: a plane through all of them in the first
/// two coordinates, by ridge regression, and the points' differences from it, which fade with
/// their distance (kriging with an exponential covariance; Krige 1951, Cressie 1993, ch. 3). The
/// constants were chosen by leaving each row of inputs/machines/h200.json out and pricing it by the
/// others.
class Interpolation {
 public:
  struct Point {
    std::vector<double> at;  ///< equally many coordinates for all points, at least two
    double value = 0;
  };

  /// At least one point.
  explicit Interpolation(std::vector<Point> points);

  /// At a known point its value, elsewhere one between the smallest and the largest known.
  [[nodiscard]] double at(std::span<const double> where) const;

 private:
  void fit_plane();
  [[nodiscard]] double plane(std::span<const double> where) const;

  std::vector<Point> points_;
  double mean_ = 0;
  double centre_[2] = {};
  double slope_[2] = {};
  std::vector<double> weights_;  ///< weight of each point's exp(-distance / range)
  double smallest_ = 0;
  double largest_ = 0;
};

}  // namespace hyperslab::plan
