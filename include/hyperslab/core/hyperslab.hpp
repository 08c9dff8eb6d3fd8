// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hyperslab/core/view.hpp"

namespace hyperslab {

/// The part of a row-major tensor that holds `count` elements from `offset` on in every dimension,
/// as HDF5 defines it. Both shapes have the rank of the tensor.
///
/// Everything that a rank owns is a set of these: (name of a global tensor, its shape, hyperslab).
/// Example: rank 1 of 2 that split the outputs of a (6, 4) weight owns offset (3, 0), count (3, 4).
struct Hyperslab {
  Shape offset;
  Shape count;

  /// All of a tensor.
  [[nodiscard]] static Hyperslab whole(const Shape& shape);
  [[nodiscard]] Dim numel() const { return count.numel(); }
  /// The part [first, first + size) of one dimension, counted from this hyperslab's offset.
  [[nodiscard]] Hyperslab narrow(int dim, Dim first, Dim size) const;
  /// These elements in a tensor in which this one's origin lies at `origin`.
  [[nodiscard]] Hyperslab shift(const Shape& origin) const;
  friend bool operator==(const Hyperslab& a, const Hyperslab& b) = default;
};

/// Part `index` of `parts` equal ones along `dim`. Throws an internal Error if `parts` does not
/// divide the size.
[[nodiscard]] Hyperslab split(const Hyperslab& slab, int dim, Dim index, Dim parts);

/// The elements that both hold; absent if they share none. Equal ranks.
[[nodiscard]] std::optional<Hyperslab> intersect(const Hyperslab& a, const Hyperslab& b);

/// Index of the first element among the row-major elements of a tensor of `shape`.
[[nodiscard]] Dim first_element(const Hyperslab& slab, const Shape& shape);

/// The row-major elements [begin, end) of a tensor of one or two dimensions, as at most three
/// hyperslabs in ascending order: part of a row, whole rows, part of a row.
[[nodiscard]] std::vector<Hyperslab> hyperslabs_of_range(const Shape& shape, Dim begin, Dim end);

/// Why `slab` is not a part of a tensor of this shape; empty if it is.
[[nodiscard]] std::string problem_of(const Hyperslab& slab, const Shape& shape);

/// Why the hyperslabs do not hold every element of a tensor of this shape exactly once; empty if
/// they do. Every one of them is within the tensor.
[[nodiscard]] std::string coverage_problem(std::span<const Hyperslab> slabs, const Shape& shape);

/// The elements that two row-major arrays share, as contiguous runs in ascending order: the array
/// `source` holds the hyperslab `from`, the array `target` holds `to`, and `common` is their
/// intersection.
class HyperslabRuns {
 public:
  HyperslabRuns(const Hyperslab& from, const Hyperslab& to, const Hyperslab& common);

  struct Run {
    std::int64_t source = 0;  ///< first element in the source array
    std::int64_t target = 0;  ///< first element in the target array
  };
  [[nodiscard]] Run operator[](std::int64_t index) const;
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] std::int64_t length() const { return length_; }  ///< elements of every run
  /// The first run that ends after element `source` of the source array; size() if none does.
  [[nodiscard]] std::int64_t first_after(std::int64_t source) const;

 private:
  std::array<Dim, kMaxRank> counts_{};  ///< counts of the outer dimensions, which number the runs
  std::array<Dim, kMaxRank> source_strides_{};
  std::array<Dim, kMaxRank> target_strides_{};
  int outer_ = 0;
  Run base_;
  std::int64_t size_ = 1;
  std::int64_t length_ = 1;
};

}  // namespace hyperslab
