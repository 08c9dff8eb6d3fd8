// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/save.hpp"
#include "hyperslab/core/hyperslab.hpp"
#include "hyperslab/io/checkpoint.hpp"
#include "support/files.hpp"
#include "support/refusal.hpp"
#include "support/temp_folder.hpp"

namespace hyperslab::test {

/// A whole tensor on this process.
struct Global {
  Shape shape;
  std::vector<float> values;
};
using Globals = std::map<std::string, Global>;

/// Values that say where they belong: `seed`, the tensor, and the element.
[[nodiscard]] Globals make_globals(const std::map<std::string, Shape>& shapes, float seed);

/// The elements of a hyperslab, row-major.
[[nodiscard]] std::vector<float> cut(const Global& global, const Hyperslab& part);

/// Disjoint hyperslabs that cover the shape: `cuts` random cuts, as a tree.
[[nodiscard]] std::vector<Hyperslab> random_partition(const Shape& shape, int cuts,
                                                      std::mt19937& rng);

/// Memory of the slabs of one rank.
struct RankSlabs {
  std::vector<std::vector<float>> memory;
  std::vector<io::Slab> slabs;
  void add(const std::string& tensor, const Global& global, const Hyperslab& part);
};

/// Every tensor in `cuts` + 1 slabs, distributed over the ranks at random.
[[nodiscard]] std::vector<RankSlabs> scatter(const Globals& globals, int ranks, int cuts,
                                             std::mt19937& rng);

/// One rank holds every tensor as a whole.
[[nodiscard]] std::vector<RankSlabs> whole(const Globals& globals);

/// Saves as that many ranks, each a thread. Returns the error of each rank, "" if it had none.
std::vector<std::string> save_all(const std::string& directory, const io::CheckpointMeta& meta,
                                  const std::vector<RankSlabs>& ranks,
                                  const io::SaveOptions& options = {});
/// The same, which has to work.
void save_well(const std::string& directory, std::int64_t step, const Globals& globals);

/// Reads tensors as a whole; the reader's errors come through.
[[nodiscard]] Globals read_whole(const io::CheckpointReader& reader);
void expect_same(const Globals& found, const Globals& expected);

}  // namespace hyperslab::test
