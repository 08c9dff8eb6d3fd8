// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>
#include <vector>

#include "hyperslab/mesh/axis.hpp"
#include "hyperslab/mesh/parallel_config.hpp"

namespace hyperslab::mesh {

/// The sizes of a mesh and one of its ranks. World rank r counts through the axes, the last
/// fastest, so that a tensor group lies on neighbouring ranks.
class Position {
 public:
  /// Ranks along each axis, in the order of kAxes.
  using Sizes = std::array<int, kAxes.size()>;

  Position() = default;  ///< the only rank
  Position(const Sizes& sizes, int world_rank);
  Position(const ParallelConfig& config, int world_rank);

  [[nodiscard]] int size(Axis axis) const { return sizes_[index_of(axis)]; }
  [[nodiscard]] int at(Axis axis) const { return at_[index_of(axis)]; }
  /// Ranks of the group along `axes`.
  [[nodiscard]] int size(AxisSet axes) const;
  /// This rank in it: counts through the axes, the last fastest.
  [[nodiscard]] int at(AxisSet axes) const;
  [[nodiscard]] bool is_first(AxisSet axes) const { return at(axes) == 0; }
  [[nodiscard]] bool is_last(AxisSet axes) const { return at(axes) == size(axes) - 1; }
  [[nodiscard]] int world_rank() const { return at(kWorld); }
  /// The rank with the number `rank` in the group of this one along `axes`.
  [[nodiscard]] Position moved(AxisSet axes, int rank) const;
  /// World ranks of the group along `axes`, in order.
  [[nodiscard]] std::vector<int> members(AxisSet axes) const;
  friend bool operator==(const Position&, const Position&) = default;

 private:
  static constexpr std::size_t index_of(Axis axis) { return static_cast<std::size_t>(axis); }
  Sizes sizes_ = {1, 1, 1, 1, 1, 1};
  Sizes at_ = {};
};

/// The first rank of a pipeline stage.
[[nodiscard]] int first_rank_of(const ParallelConfig& config, int stage);
/// "fold and tensor"; "no axis" of an empty set
[[nodiscard]] std::string describe(AxisSet axes);
/// "data 0, tensor 1, pipeline 1"; "data 3 (expert 1), tensor 0, pipeline 0, context 1"
[[nodiscard]] std::string describe(const Position& at);
/// "data 2 x tensor 2 x pipeline 1"; "data 4 (expert 2) x tensor 1 x pipeline 1 x context 2"
[[nodiscard]] std::string describe(const ParallelConfig& config);

}  // namespace hyperslab::mesh
