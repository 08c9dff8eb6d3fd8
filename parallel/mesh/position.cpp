// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/mesh/position.hpp"

#include <ranges>

namespace hyperslab::mesh {

Position::Position(const Sizes& sizes, int world_rank) : sizes_(sizes) {
  *this = moved(kWorld, world_rank);
}

Position::Position(const ParallelConfig& config, int world_rank) {
  for (const Axis axis : kAxes) sizes_[index_of(axis)] = config.size(axis);
  *this = moved(kWorld, world_rank);
}

int Position::size(AxisSet axes) const {
  int ranks = 1;
  for (const Axis axis : kAxes) ranks *= axes.contains(axis) ? size(axis) : 1;
  return ranks;
}

int Position::at(AxisSet axes) const {
  int rank = 0;
  for (const Axis axis : kAxes) {
    if (axes.contains(axis)) rank = rank * size(axis) + at(axis);
  }
  return rank;
}

Position Position::moved(AxisSet axes, int rank) const {
  Position other = *this;
  for (const Axis axis : std::views::reverse(kAxes)) {
    if (!axes.contains(axis)) continue;
    other.at_[index_of(axis)] = rank % size(axis);
    rank /= size(axis);
  }
  return other;
}

std::vector<int> Position::members(AxisSet axes) const {
  std::vector<int> ranks;
  ranks.reserve(static_cast<std::size_t>(size(axes)));
  for (int rank = 0; rank < size(axes); ++rank) ranks.push_back(moved(axes, rank).world_rank());
  return ranks;
}

int first_rank_of(const ParallelConfig& config, int stage) {
  return Position(config, 0).moved(Axis::pipeline, stage).world_rank();
}

std::string describe(AxisSet axes) {
  std::string names;
  for (const Axis axis : kAxes) {
    if (axes.contains(axis)) names += (names.empty() ? "" : " and ") + std::string(name_of(axis));
  }
  return names.empty() ? "no axis" : names;
}

namespace {

/// Expert ranks are data ranks, too.
std::string in_data(int size, int expert) {
  return size == 1 ? "" : " (expert " + std::to_string(expert) + ")";
}
std::string in_data(const ParallelConfig& config) { return in_data(config.expert, config.expert); }

}  // namespace

std::string describe(const Position& at) {
  std::string text = "data " + std::to_string(at.at(kSamples)) +
                     in_data(at.size(Axis::expert), at.at(Axis::expert)) + ", tensor " +
                     std::to_string(at.at(Axis::tensor)) + ", pipeline " +
                     std::to_string(at.at(Axis::pipeline));
  if (at.size(Axis::context) > 1) text += ", context " + std::to_string(at.at(Axis::context));
  return text;
}

std::string describe(const ParallelConfig& config) {
  std::string text = "data " + std::to_string(config.data) + in_data(config) + " x tensor " +
                     std::to_string(config.tensor) + " x pipeline " +
                     std::to_string(config.pipeline);
  if (config.context > 1) text += " x context " + std::to_string(config.context);
  return text;
}

}  // namespace hyperslab::mesh
