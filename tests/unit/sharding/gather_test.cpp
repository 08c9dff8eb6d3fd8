// SPDX-License-Identifier: Apache-2.0
// Values that data ranks updated in shards, on all of them; and the whole way from gradients to
// 16-bit values with masters in shards.
#include "hyperslab/optim/adamw.hpp"
#include "unit/sharding/ranks.hpp"

namespace hyperslab {
namespace {

using test::Layout;
using test::RankOfLayout;
using test::world;

constexpr int kSteps = 3;
constexpr int kMicrobatches = 2;

std::uint16_t pattern(Dim flat) { return static_cast<std::uint16_t>(0x3f00 + flat % 251); }

TEST(ParameterGather, BringsEveryShardBeforeItsUnitReadsIt) {
  Layout layout;
  layout.data = world().size();
  const mesh::Mesh mesh(world(), Device::cpu, layout.parallel(), layout.needs());
  for (const bool tied : {false, true}) {
    layout.tied = tied;
    for (const std::size_t bucket_bytes : {std::size_t{1}, std::size_t{1} << 20}) {
      RankOfLayout rank(layout, mesh, 1, bucket_bytes, DType::bf16);
      const nn::ParamTable& table = rank.table();
      auto* values = static_cast<std::uint16_t*>(table.value().raw());
      for (const nn::Bucket& bucket : table.buckets()) {
        const Dim first = table.shard_in_flat(bucket);
        for (Dim i = 0; i < table.shard_size(bucket); ++i) values[first + i] = pattern(first + i);
      }
      dp::ParameterGather gather(table, mesh.data_group());
      EXPECT_EQ(gather.is_needed(), world().size() > 1);

      for (std::size_t i = 0; i < table.buckets().size(); ++i) gather.start(rank.ctx, i);
      for (const nn::Param& param : table.params()) {
        gather.wait_for(rank.ctx, param.unit);
        for (Dim i = param.flat_begin; i < param.flat_begin + param.numel(); ++i) {
          ASSERT_EQ(values[i], pattern(i)) << param.name;
        }
      }
      gather.finish(rank.ctx);
    }
  }
}

ops::StepState state_of(int step) {
  ops::StepState state;
  state.input.learning_rate = 3e-3F;
  state.clip_scale = 0.5F;
  state.bias_correction1 = 1 - std::pow(0.9F, static_cast<float>(step));
  state.bias_correction2 = 1 - std::pow(0.95F, static_cast<float>(step));
  return state;
}

/// Masters of all buckets, or this rank's shards of them, as one rank alone begins with them.
void set_masters(const nn::ParamTable& table) {
  Context ctx(Device::cpu);
  for (const nn::Bucket& bucket : table.buckets()) {
    Tensor all(Device::cpu, DType::f32, {bucket.size()});
    nn::initialize(ctx, table, bucket, 7, all.view());
    const bool cut = table.masters_are_sharded();
    const Dim size = cut ? table.shard_size(bucket) : bucket.size();
    const Dim first = cut ? table.shard_in_flat(bucket) - bucket.begin : 0;
    const Dim place = cut ? table.shard_in_space(bucket) : bucket.begin;
    std::memcpy(table.master().slice(place, size).raw(), all.view().slice(first, size).raw(),
                static_cast<std::size_t>(size) * sizeof(float));
  }
}

/// The values that a rank without anybody else would have after so many steps.
class Alone {
 public:
  explicit Alone(RankOfLayout& like, std::size_t bucket_bytes, DType compute)
      : like_(like),
        bound_(like.layout().table(like.mesh().at(), bucket_bytes), compute,
               {0, 0, like.layout().data}),
        adamw_(optim::OptimizerConfig(), bound_.table(), arena_) {
    adamw_.initialize(ctx_);
    set_masters(bound_.table());
  }
  void step(int step) {
    const std::vector<float> sums = test::brute_force_flat(like_.layout(), bound_.table(),
                                                           like_.mesh().at(), step, kMicrobatches);
    std::ranges::copy(sums, bound_.table().gradient().data<float>());
    const ops::StepState state = state_of(step);
    adamw_.update(ctx_, &state);
  }
  [[nodiscard]] CView value() { return bound_.table().value(); }

 private:
  Context ctx_{Device::cpu};
  RankOfLayout& like_;
  test::BoundTable bound_;
  Arena arena_{"optimizer", Device::cpu, 1 << 18};
  optim::AdamW adamw_;
};

TEST(ShardedMasters, GiveTheValuesOfARankAloneBitForBit) {
  constexpr std::size_t kBucketBytes = 2000;
  for (const Layout& layout : test::layouts_of(world().size())) {
    const mesh::Mesh mesh(world(), Device::cpu, layout.parallel(), layout.needs());
    for (const DType compute : {DType::bf16, DType::f16}) {
      for (const int zero : {0, 1, 2}) {
        if (zero == 2 && layout.pipeline > 1) continue;
        SCOPED_TRACE(layout.str() + " zero " + std::to_string(zero));
        RankOfLayout rank(layout, mesh, zero, kBucketBytes, compute);
        Alone alone(rank, kBucketBytes, compute);
        Arena arena("optimizer", Device::cpu, 1 << 18);
        const optim::AdamW adamw(optim::OptimizerConfig(), rank.table(), arena);
        adamw.initialize(rank.ctx);
        set_masters(rank.table());
        dp::ParameterGather gather(rank.table(), mesh.data_group());
        for (int step = 1; step <= kSteps; ++step) {
          const ops::StepState state = state_of(step);
          rank.step(step, kMicrobatches, 1);
          if (!adamw.is_sharded()) adamw.update(rank.ctx, &state);
          for (std::size_t i = 0; adamw.is_sharded() && i < rank.table().buckets().size(); ++i) {
            adamw.update(rank.ctx, &state, rank.table().buckets()[i]);
            gather.start(rank.ctx, i);
          }
          gather.finish(rank.ctx);
          alone.step(step);

          const CView value = rank.table().value();
          ASSERT_EQ(std::memcmp(value.raw(), alone.value().raw(), value.bytes()), 0)
              << "step " << step;
        }
      }
    }
  }
}

}  // namespace
}  // namespace hyperslab
