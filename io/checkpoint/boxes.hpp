// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "hyperslab/core/view.hpp"

namespace hyperslab::io {

/// A hyperslab: `count` elements from `offset` in every dimension.
struct Box {
  Shape offset;
  Shape count;
};

/// Nothing if the boxes do not meet. Both have the same number of dimensions.
[[nodiscard]] std::optional<Box> intersection(const Box& a, const Box& b);

/// Why `box` is not a part of a tensor of this shape; empty: it is.
[[nodiscard]] std::string problem_of(const Box& box, const Shape& global_shape);

/// Why the boxes do not cover a tensor of this shape exactly once; empty: they do. Every box is
/// within the tensor.
[[nodiscard]] std::string coverage_problem(std::span<const Box> boxes, const Shape& global_shape);

/// The elements that two row-major arrays share, as contiguous runs in ascending order: `source`
/// holds the box `from`, `target` the box `to`, and `common` is their intersection.
class Runs {
 public:
  Runs(const Box& from, const Box& to, const Box& common);

  struct Run {
    std::int64_t source = 0;  ///< first element in the source array
    std::int64_t target = 0;  ///< first element in the target array
  };
  [[nodiscard]] Run operator[](std::int64_t index) const;
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] std::int64_t length() const { return length_; }  ///< elements of every run
  /// The first run that ends after element `source` of the source array; size() if none does.
  [[nodiscard]] std::int64_t first_behind(std::int64_t source) const;

 private:
  std::array<Dim, kMaxRank> counts_{};  ///< of the outer dimensions, over which runs are numbered
  std::array<Dim, kMaxRank> source_strides_{};
  std::array<Dim, kMaxRank> target_strides_{};
  int outer_ = 0;
  Run base_;
  std::int64_t size_ = 1;
  std::int64_t length_ = 1;
};

}  // namespace hyperslab::io
