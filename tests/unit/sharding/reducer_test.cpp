// SPDX-License-Identifier: Apache-2.0
// Gradients that were summed while backward ran, against sums over all terms.
#include "unit/sharding/ranks.hpp"

namespace hyperslab {
namespace {

using test::Layout;
using test::RankOfLayout;
using test::world;

constexpr int kSteps = 2;

/// Where reduced gradients of a bucket's shard are.
View reduced(const nn::ParamTable& table, const nn::Bucket& bucket) {
  const Dim size = table.shard_size(bucket);
  return table.gradient_shards() ? table.gradient_shards().slice(table.shard_in_space(bucket), size)
                                 : table.gradient().slice(table.shard_in_flat(bucket), size);
}

/// Sums in their places, zeros in gaps and padding; with zero 0 everywhere, else in the shards.
void expect_sums(RankOfLayout& rank, int step, int microbatches) {
  const nn::ParamTable& table = rank.table();
  const std::vector<float> wanted =
      test::brute_force_flat(rank.layout(), table, rank.mesh().at(), step, microbatches);
  const bool whole = table.sharding().zero == 0;
  for (const nn::Bucket& bucket : table.buckets()) {
    const View found = whole ? table.gradient(bucket) : reduced(table, bucket);
    const Dim begin = whole ? bucket.begin : table.shard_in_flat(bucket);
    const float* values = found.data<float>();
    for (Dim i = 0; i < found.numel(); ++i) {
      ASSERT_EQ(values[i], wanted[static_cast<std::size_t>(begin + i)])
          << "flat element " << begin + i << " of bucket kind " << static_cast<int>(bucket.kind)
          << " [" << bucket.begin << ", " << bucket.end << ")";
    }
  }
}

double squares(CView view) {
  double sum = 0;
  for (const float value : view.span<float>()) sum += static_cast<double>(value) * value;
  return sum;
}

/// Of every element of the model, whoever holds it.
double squares_of_model(const Layout& layout, std::size_t bucket_bytes, int step,
                        int microbatches) {
  std::map<std::pair<std::string, Dim>, float> model;
  for (int rank = 0; rank < world().size(); ++rank) {
    const mesh::Coordinates at = mesh::coordinates_of(layout.parallel(), rank);
    if (at.data > 0) continue;
    const nn::ParamTable table = test::make_table(layout.table(at, bucket_bytes));
    for (const nn::Param& param : table.params()) {
      const auto sums = test::brute_force(layout, table, param, at, step, microbatches);
      const Dim width = param.global_shape.rank() == 2 ? param.global_shape[1] : 1;
      const Dim columns = param.global_shape.rank() == 2 ? param.count[1] : 1;
      for (Dim i = 0; i < param.numel(); ++i) {
        const Dim column = param.global_shape.rank() == 2 ? param.offset[1] + i % columns : 0;
        const Dim place = (param.offset[0] + i / columns) * width + column;
        const float value = sums[static_cast<std::size_t>(i)];
        const auto [held, is_new] = model.emplace(std::pair(param.name, place), value);
        EXPECT_EQ(held->second, value) << param.name << " is not the same on all its holders";
      }
    }
  }
  double sum = 0;
  for (const auto& [place, value] : model) sum += static_cast<double>(value) * value;
  return sum;
}

void expect_norm(RankOfLayout& rank, std::size_t bucket_bytes, int step, int microbatches) {
  double mine = 0;
  for (const View& view : rank.reducer->norm_views()) mine += squares(view);
  EXPECT_EQ(world().sum(mine), squares_of_model(rank.layout(), bucket_bytes, step, microbatches));
}

class Reducer : public testing::TestWithParam<int> {};

TEST_P(Reducer, SumsEveryGradientOnceAndCountsItsNormOnce) {
  const int zero = GetParam();
  for (const Layout& layout : test::layouts_of(world().size())) {
    if (zero == 2 && layout.pipeline > 1) continue;  // refused by the deck's rules
    const mesh::Mesh mesh(world(), Device::cpu, layout.parallel(), layout.needs());
    for (const std::size_t bucket_bytes :
         {std::size_t{1}, std::size_t{4000}, std::size_t{1} << 20}) {
      for (const int microbatches : {1, 3}) {
        for (const int units_at_once : {1, 0}) {
          SCOPED_TRACE(layout.str() + " zero " + std::to_string(zero) + " bucket bytes " +
                       std::to_string(bucket_bytes) + " microbatches " +
                       std::to_string(microbatches) + " units " + std::to_string(units_at_once));
          RankOfLayout rank(layout, mesh, zero, bucket_bytes);
          for (int step = 1; step <= kSteps; ++step) {
            rank.step(step, microbatches, units_at_once);
            expect_sums(rank, step, microbatches);
            expect_norm(rank, bucket_bytes, step, microbatches);
          }
        }
      }
    }
  }
}

TEST_P(Reducer, ReducesMoreOftenInAStepThanMayBeUnderWay) {
  for (const Layout& layout : test::layouts_of(world().size())) {
    if (layout.pipeline > 1 || layout.data < 2 || layout.tensor > 1 || layout.tied) continue;
    const mesh::Mesh mesh(world(), Device::cpu, layout.parallel(), layout.needs());
    RankOfLayout rank(layout, mesh, GetParam(), 1);
    const auto buckets = rank.table().buckets().size();
    const int microbatches = static_cast<int>(2 * comm::Communicator::kMaxUnderWay / buckets + 2);
    for (int step = 1; step <= kSteps; ++step) {
      rank.step(step, microbatches, 1);
      expect_sums(rank, step, microbatches);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Zero, Reducer, testing::Values(0, 1, 2));

}  // namespace
}  // namespace hyperslab
