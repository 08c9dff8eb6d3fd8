// SPDX-License-Identifier: Apache-2.0
// Values that data ranks updated in shards, on all of them; and the whole way from gradients to
// 16-bit values with masters in shards.
#include "hyperslab/optim/optimizer.hpp"
#include "sharding/ranks.hpp"

namespace hyperslab {
namespace {

using test::Layout;
using test::RankOfLayout;
using test::world;

constexpr int kSteps = 3;
constexpr int kMicrobatches = 2;
constexpr std::uint64_t kSeed = 7;

std::uint16_t pattern(Dim flat) { return static_cast<std::uint16_t>(0x3f00 + flat % 251); }

TEST(ShardedState, BringsEveryShardBeforeItsUnitReadsIt) {
  Layout layout;
  layout.data = world().size();
  const mesh::Mesh mesh(world(), Device::cpu, layout.parallel(), layout.needs());
  for (const bool tied : {false, true}) {
    layout.tied = tied;
    for (const std::size_t bucket_bytes : {std::size_t{1}, std::size_t{1} << 20}) {
      RankOfLayout rank(layout, mesh, 1, bucket_bytes, DType::bf16);
      const param::ParamGroup& group = rank.group();
      auto* values = static_cast<std::uint16_t*>(group.value().data.raw());
      const std::vector<param::ElementRange> ranges = rank.presence.values().updated_ranges();
      ASSERT_EQ(ranges.size(), group.buckets().size());
      for (const auto& [first, in_shards, size] : ranges) {
        for (Dim i = 0; i < size; ++i) values[first + i] = pattern(first + i);
      }
      EXPECT_EQ(rank.presence.values().gathers(), world().size() > 1);

      for (std::size_t i = 0; i < ranges.size(); ++i)
        rank.presence.values().after_update(rank.ctx, i);
      for (const param::Param* param : group.params()) {
        rank.presence.values().before(rank.ctx, param->unit);
        for (Dim i = param->flat_begin; i < param->flat_begin + param->numel(); ++i) {
          ASSERT_EQ(values[i], pattern(i)) << param->name;
        }
      }
      rank.presence.values().wait_all(rank.ctx);
    }
  }
}

/// Bits of an element of a global tensor after an update.
std::uint16_t bits_of(const std::string& name, Dim element, int update) {
  const Dim mixed = static_cast<Dim>(name_hash(name) % 1013) + 7 * element + 101 * update;
  return static_cast<std::uint16_t>(0x3f00 + mixed % 251);
}

/// Calls visit(element of the global tensor, element of the part).
template <class Visit>
void for_elements_of(const Shape& whole, const Hyperslab& part, const Visit& visit) {
  const HyperslabRuns runs(part, Hyperslab::whole(whole), part);
  for (std::int64_t run = 0; run < runs.size(); ++run) {
    for (Dim i = 0; i < runs.length(); ++i) visit(runs[run].target + i, runs[run].source + i);
  }
}

/// This rank's shards of the values, as an update leaves them.
void update_values(RankOfLayout& rank, int update) {
  const param::ParamGroup& group = rank.group();
  for (const param::ParamSlab& slab :
       param::slabs_of(group, group.value(), param::SlabsOf::holder)) {
    auto* values = static_cast<std::uint16_t*>(slab.data.raw());
    for_elements_of(slab.param->global_shape, slab.part, [&](Dim element, Dim index) {
      values[index] = bits_of(slab.param->name, element, update);
    });
  }
  for (std::size_t i = 0; i < rank.presence.values().updated_ranges().size(); ++i) {
    rank.presence.values().after_update(rank.ctx, i);
  }
}

void expect_values_of_unit(RankOfLayout& rank, int unit, int update) {
  for (const param::Param* param : rank.group().params()) {
    if (param->unit != unit) continue;
    const auto* values = static_cast<const std::uint16_t*>(param->value.raw());
    for_elements_of(param->global_shape, param->part, [&](Dim element, Dim index) {
      ASSERT_EQ(values[index], bits_of(param->name, element, update))
          << param->name << " element " << element;
    });
  }
}

/// With zero 3, where buckets take turns in rooms.
TEST(ShardedValues, AreThereWhileTheirUnitsRun) {
  for (const Layout& layout : test::layouts_of(world().size())) {
    const mesh::Mesh mesh(world(), Device::cpu, layout.parallel(), layout.needs());
    for (const std::size_t bucket_bytes : {std::size_t{1}, std::size_t{1} << 20}) {
      SCOPED_TRACE(layout.str() + " bucket bytes " + std::to_string(bucket_bytes));
      RankOfLayout rank(layout, mesh, 3, bucket_bytes, DType::bf16);
      const int units = rank.table().units();
      for (int update = 1; update <= 2; ++update) {
        update_values(rank, update);
        for (const auto order : {sharding::Order::ascending, sharding::Order::descending,
                                 sharding::Order::ascending}) {
          for (int i = 0; i < units; ++i) {
            const int unit = order == sharding::Order::ascending ? i : units - 1 - i;
            rank.presence.values().before(rank.ctx, unit, order);
            expect_values_of_unit(rank, unit, update);
          }
        }
      }
      rank.presence.values().wait_all(rank.ctx);
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

/// The values that a rank alone would have after so many steps.
class Alone {
 public:
  explicit Alone(RankOfLayout& like, std::size_t bucket_bytes, DType compute)
      : like_(like),
        bound_(like.layout().table(like.mesh().position(), bucket_bytes), compute, 0,
               like.mesh().at(mesh::kGradients)),
        optimizer_(optim::make_optimizer({}, bound_.group(), {false, arena_})) {
    optimizer_->initialize(ctx_);
    param::initialize(ctx_, bound_.group(), kSeed);
  }
  void step(int step) {
    const std::vector<float> sums = test::brute_force_flat(
        like_.layout(), bound_.table(), like_.mesh().position(), step, kMicrobatches);
    const param::StateView& gradients = bound_.presence().gradients().sums();
    std::ranges::copy(sums, gradients.data.data<float>());
    const ops::StepState state = state_of(step);
    optimizer_->update(ctx_, &state, gradients, bound_.group().all());
  }
  [[nodiscard]] CView value() { return bound_.group().value().data; }

 private:
  Context ctx_{Device::cpu};
  RankOfLayout& like_;
  test::BoundTable bound_;
  Arena arena_{"optimizer", Device::cpu, 1 << 18};
  std::unique_ptr<optim::Optimizer> optimizer_;
};

TEST(ShardedMasters, GiveTheValuesOfARankAloneBitForBit) {
  constexpr std::size_t kBucketBytes = 2000;
  for (const Layout& layout : test::layouts_of(world().size())) {
    const mesh::Mesh mesh(world(), Device::cpu, layout.parallel(), layout.needs());
    for (const DType compute : {DType::bf16, DType::f16}) {
      for (const int zero : {0, 1, 2}) {
        if (zero == 0 && layout.shard > 0) continue;  // refused by the deck's rules
        SCOPED_TRACE(layout.str() + " zero " + std::to_string(zero));
        RankOfLayout rank(layout, mesh, zero, kBucketBytes, compute);
        Alone alone(rank, kBucketBytes, compute);
        Arena arena("optimizer", Device::cpu, 1 << 18);
        const auto optimizer =
            optim::make_optimizer({}, rank.group(), {rank.presence.shards_state(), arena});
        optimizer->initialize(rank.ctx);
        param::initialize(rank.ctx, rank.group(), kSeed);
        for (int step = 1; step <= kSteps; ++step) {
          const ops::StepState state = state_of(step);
          rank.step(step, kMicrobatches, 1);
          const std::vector<param::ElementRange> ranges = rank.presence.values().updated_ranges();
          for (std::size_t i = 0; i < ranges.size(); ++i) {
            optimizer->update(rank.ctx, &state, rank.presence.gradients().sums(), ranges[i]);
            rank.presence.values().after_update(rank.ctx, i);
          }
          rank.presence.values().wait_all(rank.ctx);
          alone.step(step);

          const CView value = rank.group().value().data;
          ASSERT_EQ(std::memcmp(value.raw(), alone.value().raw(), value.bytes()), 0)
              << "step " << step;
        }
      }
    }
  }
}

}  // namespace
}  // namespace hyperslab
