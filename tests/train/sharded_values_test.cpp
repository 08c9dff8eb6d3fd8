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

constexpr int kShardedSteps = 4;

struct ShardedResult {
  std::vector<double> losses;
  std::map<std::string, std::vector<unsigned char>> slabs;  ///< this rank's, by name and part
  std::size_t parameters = 0;                               ///< bytes
  std::int64_t gathered = 0;  ///< bytes that a step gathers over the shards' ranks
  std::int64_t planned = 0;   ///< those of the trainer's movements
};

std::int64_t gathered_by(const mesh::Mesh& mesh) {
  const auto kGather = static_cast<std::size_t>(comm::Call::all_gather);
  return mesh.group(mesh::kShards).traffic().bytes[kGather];
}

std::int64_t gathers_of(const std::vector<sharding::NamedMovement>& movements) {
  std::int64_t bytes = 0;
  for (const sharding::NamedMovement& moved : movements) {
    for (const layout::Step& step : moved.steps) {
      if (step.kind == layout::Step::Kind::all_gather) {
        bytes += moved.times * static_cast<std::int64_t>(step.bytes);
      }
    }
  }
  return bytes;
}

ShardedResult result_of(Overrides overrides, int zero) {
  overrides.push_back("parallel.zero=" + std::to_string(zero));
  const train::Config config = test::small_config(overrides, world().size());
  const mesh::Mesh mesh(world(), Device::cpu, config.parallel, config.groups());
  train::TrainerOptions options;
  options.compute = config.precision.compute == Precision::bf16 ? DType::bf16 : DType::f32;
  test::SmallRun run(config, mesh, world().rank(), options);
  ShardedResult result;
  for (int step = 1; step <= kShardedSteps; ++step) {
    const std::int64_t before = gathered_by(mesh);
    result.losses.push_back(run.step(step));
    result.gathered = gathered_by(mesh) - before;
  }
  result.planned = gathers_of(run.trainer().inspection().movements());
  for (const io::Slab& slab : run.trainer().state().slabs()) {
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
  overrides.emplace_back("parallel.bucket_mib=0.01");
  overrides.emplace_back("model.layers=12");
  const bool is_quantized = std::ranges::any_of(
      overrides, [](const std::string& o) { return o.starts_with("model.frozen_format"); });
  if (is_quantized) overrides.insert(overrides.end(), {"model.width=64", "model.ffn_width=128"});
  const bool accumulates = std::ranges::find(overrides, "train.microbatch=1") != overrides.end();
  if (!accumulates) overrides.push_back("train.microbatch=" + std::to_string(12 / ranks));
  // Zero 2 adds gradients and squares of their norm in the same order, zero 1 gradients alone, and
  // these if there is one microbatch.
  const bool clips = std::ranges::find(overrides, "optimizer.clip_norm=0") == overrides.end();
  const ShardedResult less = result_of(overrides, accumulates || clips ? 2 : 1);
  const ShardedResult fully = result_of(overrides, 3);
  EXPECT_EQ(fully.losses, less.losses);
  ASSERT_EQ(fully.slabs.size(), less.slabs.size());
  for (const auto& [name, bytes] : less.slabs) {
    ASSERT_TRUE(fully.slabs.contains(name)) << name;
    EXPECT_TRUE(fully.slabs.at(name) == bytes) << name;
  }
  EXPECT_LT(fully.parameters, less.parameters);
  const bool exchanges = std::ranges::find(overrides, "optimizer.name=muon") != overrides.end();
  if (!exchanges) {
    EXPECT_EQ(fully.gathered, fully.planned);
    EXPECT_GT(fully.gathered, less.gathered);
  }
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
                    Overrides{"quantization.weights=int8", "precision.compute=bf16"},
                    Overrides{"train.trainable=[norm, bias]", "precision.compute=bf16"},
                    Overrides{"train.trainable=[norm, head]", "parallel.shard=2"},
                    Overrides{"adapter.rank=4", "precision.compute=bf16"},
                    Overrides{"adapter.rank=4", "model.frozen_format=nf4", "train.microbatch=1"},
                    Overrides{"adapter.rank=4", "model.frozen_format=int4",
                              "precision.compute=bf16", "memory.recompute=full"},
                    Overrides{"adapter.rank=4", "model.frozen_format=int8", "parallel.tensor=2",
                              "parallel.sequence=true"}));

}  // namespace
}  // namespace hyperslab
