// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/tensor_group.hpp"

#include <gtest/gtest.h>

#include "hyperslab/comm/world.hpp"

namespace hyperslab::nn {
namespace {

int pieces(int ranks, Dim rows, Dim inner, Device planned, bool sequence = false) {
  const auto group = comm::make_meta_communicator(comm::GroupRole::tensor, 0, ranks);
  Context ctx(Device::meta, 0, planned);
  return TensorGroup(group.get(), sequence).pieces(ctx, rows, inner);
}

TEST(TensorGroup, CutsProductsOnAGpuThatTakeLongerThanTheirSums) {
  EXPECT_EQ(pieces(2, 4096, 2048, Device::cuda), 1);  // products are over before the sums
  EXPECT_EQ(pieces(2, 4096, 2400, Device::cuda), 2);
  EXPECT_EQ(pieces(2, 4096, 4799, Device::cuda), 2);
  EXPECT_EQ(pieces(2, 4096, 4800, Device::cuda), 4);
  EXPECT_EQ(pieces(8, 4096, 4199, Device::cuda), 1);  // more ranks, longer sums
  EXPECT_EQ(pieces(8, 4096, 4200, Device::cuda), 2);
}

TEST(TensorGroup, LeavesPiecesLarge) {
  EXPECT_EQ(pieces(2, 2048, 1 << 20, Device::cuda), 2);
  EXPECT_EQ(pieces(2, 1000, 1 << 20, Device::cuda), 1);
}

TEST(TensorGroup, LeavesProductsWholeElsewhere) {
  EXPECT_EQ(pieces(2, 4096, 1 << 20, Device::cpu), 1);
  EXPECT_EQ(pieces(1, 4096, 1 << 20, Device::cuda), 1);
  EXPECT_EQ(pieces(2, 4096, 1 << 20, Device::cuda, true), 1);
}

}  // namespace
}  // namespace hyperslab::nn
