// SPDX-License-Identifier: Apache-2.0
// zero 3 computes what less sharding computes, bit for bit: values that are gathered for each pass
// are those that every rank has otherwise.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "support/mpi_world.hpp"
#include "train/small_run.hpp"

namespace hyperslab {
namespace {

using test::world;
using Overrides = std::vector<std::string>;

constexpr int kSteps = 4;

struct Result {
  std::vector<double> losses;
  std::map<std::string, std::vector<unsigned char>> slabs;  ///< this rank's, by name and part
  std::size_t parameters = 0;                               ///< bytes
};

Result result_of(Overrides overrides, int zero) {
  overrides.push_back("parallel.zero=" + std::to_string(zero));
  const train::Config config = test::small_config(overrides, world().size());
  const mesh::Mesh mesh(world(), Device::cpu, config.parallel, config.groups());
  train::TrainerOptions options;
  options.compute = config.precision.compute == Precision::bf16 ? DType::bf16 : DType::f32;
  test::SmallRun run(config, mesh, world().rank(), options);
  Result result;
  for (int step = 1; step <= kSteps; ++step) result.losses.push_back(run.step(step));
  for (const io::Slab& slab : run.trainer().slabs()) {
    const auto* bytes = static_cast<const unsigned char*>(slab.data.raw());
    std::string name = slab.tensor + " at";
    for (const Dim offset : slab.part.offset.dims()) name += " " + std::to_string(offset);
    result.slabs[name] = {bytes, bytes + slab.data.bytes()};
  }
  result.parameters = run.plan().memory.parameters;
  return result;
}

class ShardedValues : public testing::TestWithParam<Overrides> {};

TEST_P(ShardedValues, GiveTheBitsOfLessSharding) {
  Overrides overrides = GetParam();
  const auto tensor = std::ranges::find(overrides, "parallel.tensor=2");
  const int ranks = world().size() / (tensor == overrides.end() ? 1 : 2);
  if (ranks < 2) GTEST_SKIP() << "needs two data ranks";
  overrides.push_back("parallel.data=" + std::to_string(ranks));
  overrides.push_back("parallel.bucket_mib=0.01");
  overrides.push_back("model.layers=8");
  const bool accumulates = std::ranges::find(overrides, "train.microbatch=1") != overrides.end();
  if (!accumulates) overrides.push_back("train.microbatch=" + std::to_string(12 / ranks));
  // Zero 2 adds gradients and squares of their norm in the same order, zero 1 gradients alone, and
  // these if there is one microbatch.
  const bool clips = std::ranges::find(overrides, "optimizer.clip_norm=0") == overrides.end();
  const Result less = result_of(overrides, accumulates || clips ? 2 : 1);
  const Result fully = result_of(overrides, 3);
  EXPECT_EQ(fully.losses, less.losses);
  ASSERT_EQ(fully.slabs.size(), less.slabs.size());
  for (const auto& [name, bytes] : less.slabs) {
    ASSERT_TRUE(fully.slabs.contains(name)) << name;
    EXPECT_TRUE(fully.slabs.at(name) == bytes) << name;
  }
  EXPECT_LT(fully.parameters, less.parameters);
}

INSTANTIATE_TEST_SUITE_P(
    Runs, ShardedValues,
    testing::Values(Overrides{}, Overrides{"optimizer.clip_norm=0"},
                    Overrides{"optimizer.clip_norm=0", "precision.compute=bf16"},
                    Overrides{"model.family=llama", "model.tie_embeddings=false"},
                    Overrides{"precision.compute=bf16"},
                    Overrides{"precision.compute=bf16", "precision.gradients=bf16"},
                    Overrides{"precision.compute=bf16", "train.microbatch=1"},
                    Overrides{"train.microbatch=1", "memory.recompute=full"},
                    Overrides{"optimizer.name=muon", "precision.compute=bf16"},
                    Overrides{"optimizer.state=bf16", "optimizer.ema_decay=0.9"},
                    Overrides{"parallel.shard=2", "precision.compute=bf16"},
                    Overrides{"parallel.tensor=2", "parallel.sequence=true"},
                    Overrides{"parallel.tensor=2", "precision.compute=bf16", "model.kv_heads=1"},
                    Overrides{"quantization.weights=int8", "precision.compute=bf16"}));

}  // namespace
}  // namespace hyperslab
