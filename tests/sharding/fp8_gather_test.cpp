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
  for (const int zero : {1, 2}) test::expect_bits_of_rounding(ctx_, mesh(), zero, GetParam());
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

INSTANTIATE_TEST_SUITE_P(BucketBytes, Fp8Gather,
                         testing::Values(std::size_t{1}, std::size_t{1} << 15,
                                         std::size_t{1} << 20));

}  // namespace
}  // namespace hyperslab
