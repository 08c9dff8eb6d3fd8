// SPDX-License-Identifier: Apache-2.0
// Matrices that data ranks gather as FP8 values over NCCL: the bits are those that the
// CPU finds by rounding all values.
#include <optional>

#include "nccl_group.hpp"
#include "sharding/fp8_matrices.hpp"

namespace hyperslab::test {
namespace {

constexpr std::size_t kBucketBytes[] = {1, std::size_t{1} << 15, std::size_t{1} << 20};

class NcclFp8 : public NcclGroup {
 protected:
  void SetUp() override {
    NcclGroup::SetUp();
    if (!IsSkipped())
      mesh_.emplace(world(), Device::cuda, mesh::ParallelConfig{.data = world().size()});
  }
  [[nodiscard]] const mesh::Mesh& mesh() const { return *mesh_; }

 private:
  std::optional<mesh::Mesh> mesh_;
};

TEST_F(NcclFp8, HaveTheBitsOfRoundingGatheredValues) {
  for (const std::size_t bytes : kBucketBytes) {
    for (const int zero : {1, 2}) expect_bits_of_rounding(ctx(), mesh(), zero, bytes);
  }
}

TEST_F(NcclFp8, FollowMastersFromOutside) {
  for (const std::size_t bytes : kBucketBytes) expect_fp8_values_of_masters(ctx(), mesh(), bytes);
}

TEST_F(NcclFp8, AreNanWhereAValueThatSharesTheirScaleIs) {
  for (const std::size_t bytes : kBucketBytes) expect_nan_in_one_matrix(ctx(), mesh(), bytes);
}

}  // namespace
}  // namespace hyperslab::test
