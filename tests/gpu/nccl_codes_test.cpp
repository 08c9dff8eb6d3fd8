// SPDX-License-Identifier: Apache-2.0
// Matrices that data ranks gather as codes in 8-bit floats over NCCL: the bits are those that the
// CPU finds by rounding all values.
#include "nccl_group.hpp"
#include "sharding/coded_matrices.hpp"

namespace hyperslab::test {
namespace {

constexpr std::size_t kBucketBytes[] = {1, std::size_t{1} << 15, std::size_t{1} << 20};

class NcclCodes : public NcclGroup {};

TEST_F(NcclCodes, HaveTheBitsOfRoundingGatheredValues) {
  for (const std::size_t bytes : kBucketBytes) {
    for (const int zero : {1, 2}) expect_bits_of_rounding(ctx(), group(), zero, bytes);
  }
}

TEST_F(NcclCodes, FollowMastersFromOutside) {
  for (const std::size_t bytes : kBucketBytes) expect_codes_of_masters(ctx(), group(), bytes);
}

TEST_F(NcclCodes, AreNanWhereAValueThatSharesTheirScaleIs) {
  for (const std::size_t bytes : kBucketBytes) expect_nan_in_one_matrix(ctx(), group(), bytes);
}

}  // namespace
}  // namespace hyperslab::test
