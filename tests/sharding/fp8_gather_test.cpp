// SPDX-License-Identifier: Apache-2.0
// Matrices that are gathered as FP8 values, on CPU ranks.
#include "hyperslab/mesh/mesh.hpp"
#include "sharding/fp8_matrices.hpp"
#include "support/mpi_world.hpp"

namespace hyperslab {
namespace {

using test::Fp8Rank;
using test::world;

class Fp8Gather : public testing::TestWithParam<std::size_t> {
 protected:
  [[nodiscard]] const mesh::Mesh& mesh() { return mesh_; }
  Context ctx_{Device::cpu};

 private:
  static mesh::ParallelConfig data_ranks() {
    mesh::ParallelConfig config;
    config.data = world().size();
    return config;
  }
  mesh::Mesh mesh_{world(), Device::cpu, data_ranks(), {}};
};

TEST_P(Fp8Gather, GivesTheBitsOfRoundingGatheredValues) {
  for (const int zero : {1, 2, 3}) test::expect_bits_of_rounding(ctx_, mesh(), zero, GetParam());
}

TEST_P(Fp8Gather, FollowsMastersFromOutside) {
  test::expect_fp8_values_of_masters(ctx_, mesh(), GetParam());
}

TEST_P(Fp8Gather, MakesNanOfAllThatShareAScaleWithOne) {
  test::expect_nan_in_one_matrix(ctx_, mesh(), GetParam());
}

TEST_P(Fp8Gather, SendsHalfTheBytesOfMatrices) {
  if (world().size() == 1) GTEST_SKIP() << "nothing is sent";
  Fp8Rank rank(ctx_, mesh(), 1, GetParam());
  const auto sent = [&] {
    return mesh()
        .group(mesh::kSamples)
        .traffic()
        .bytes[static_cast<std::size_t>(comm::Call::all_gather)];
  };
  const std::int64_t before = sent();
  rank.update(0);
  const std::int64_t of_step = sent() - before;
  rank.presence().values().wait_all(ctx_);

  std::int64_t matrices = 0;
  for (const param::KeptFp8* gathered : rank.matrices()) matrices += gathered->values.numel();
  const std::int64_t values = 2 * rank.group().flat_size();
  // What lies beside matrices is filled up to the shard that has most of it.
  const std::int64_t filled = std::int64_t{64} * 32 * world().size();
  EXPECT_LT(of_step, values - matrices + filled);
  EXPECT_GT(of_step, values / 4);
}

/// With zero 3 a pass gathers the FP8 values, once more where another bucket took the room.
TEST_P(Fp8Gather, SendsFp8ValuesForEachPass) {
  if (world().size() == 1) GTEST_SKIP() << "nothing is sent";
  Fp8Rank rank(ctx_, mesh(), 3, GetParam());
  rank.update(0);
  const comm::Communicator& group = mesh().group(mesh::kSamples);
  constexpr auto kGather = static_cast<std::size_t>(comm::Call::all_gather);
  sharding::PresentValues& values = rank.presence().values();
  const std::vector<param::Bucket>& buckets = rank.group().buckets();

  const std::int64_t before = group.traffic().bytes[kGather];
  for (int unit = 0; unit < test::Fp8Matrices::kUnits; ++unit) {
    values.before(ctx_, unit, sharding::Order::ascending);
  }
  std::int64_t all = 0;
  for (const param::Bucket& bucket : buckets) all += (bucket.gathers_fp8 ? 1 : 2) * bucket.size();
  const std::int64_t of_first = group.traffic().bytes[kGather] - before;
  EXPECT_EQ(of_first, all);

  for (int unit = test::Fp8Matrices::kUnits - 1; unit >= 0; --unit) {
    values.before(ctx_, unit, sharding::Order::descending);
  }
  values.wait_all(ctx_);
  EXPECT_EQ(group.traffic().bytes[kGather] - before, of_first) << "two buckets of a kind stay";
  std::int64_t of_movements = 0;
  for (const sharding::NamedMovement& moved : rank.presence().movements(1)) {
    for (const layout::Step& step : moved.steps) {
      if (step.kind != layout::Step::Kind::all_gather || moved.starts == "after its update")
        continue;
      of_movements += moved.times * static_cast<std::int64_t>(step.bytes);
    }
  }
  EXPECT_GT(of_movements, 0);
}

INSTANTIATE_TEST_SUITE_P(BucketBytes, Fp8Gather,
                         testing::Values(std::size_t{1}, std::size_t{1} << 15,
                                         std::size_t{1} << 20));

}  // namespace
}  // namespace hyperslab
