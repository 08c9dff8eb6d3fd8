// SPDX-License-Identifier: Apache-2.0
// Drawn lists of branches on the ranks of a tensor group against one rank.
#include <gtest/gtest.h>

#include "nn/block_harness.hpp"
#include "ops/ops_test.hpp"
#include "support/mpi_world.hpp"

namespace hyperslab::nn {
namespace {

using namespace hyperslab::test;

class BlockRanks : public OpsTest {
 protected:
  /// The sum over the tensor group, if ranks have terms of it.
  std::vector<double> summed(const param::Param& param, bool cuts_rows) {
    const std::vector<double> mine = to_doubles(param.gradient);
    Tensor sum = tensor_of(DType::f64, {std::ssize(mine)}, mine);
    const bool has_term =
        (cuts_rows && param.role == param::Role::norm) || param.role == param::Role::router ||
        (param.role == param::Role::adapter && param.placement.tensor.is_partial());
    if (has_term) {
      group_->wait(ctx, group_->all_reduce(ctx, sum.view(), comm::ReduceOp::sum));
    }
    return to_doubles(sum.view());
  }
  void expect_parity(const BlockConfig& config, const BlockList& list) {
    BlockConfig cut = config;
    cut.group = TensorGroup(group_.get(), sequence_);
    BlockHarness one(config, list);
    BlockHarness ours(cut, list);
    const std::vector<double> weights = to_doubles(random_tensor(DType::f64, kStream, 21).view());
    const Shape shape = cut.group.stream_shape(kSamples, kTokens, kStreamWidth);
    const Hyperslab rows = {{cut.group.cuts_rows() ? cut.group.rank() * shape[1] : 0},
                            {shape[0] * shape[1] * shape[2]}};
    const auto mine = [&](const std::vector<double>& whole) {
      const auto begin = whole.begin() + rows.offset[0] * (cut.group.cuts_rows() ? shape[2] : 1);
      return std::vector<double>(begin, begin + rows.count[0]);
    };
    const Tensor y = one.forward(ctx);
    expect_values(ours.forward(ctx).view(), mine(to_doubles(y.view())), 1e-10);
    const Tensor d = one.backward(ctx, tensor_of(DType::f64, kStream, weights).view());
    const Tensor d_ours = ours.backward(ctx, tensor_of(DType::f64, shape, mine(weights)).view());
    expect_values(d_ours.view(), mine(to_doubles(d.view())), 1e-10);
    for (std::size_t p = 0; p < one.store().params().size(); ++p) {
      const param::Param& param = ours.store().params()[p];
      const std::vector<double> whole = to_doubles(one.store().params()[p].gradient);
      if (param.replicas > 1) continue;  // a term of a sum over the ranks that share the head
      SCOPED_TRACE(param.name);
      const std::vector<double> found = summed(param, cut.group.cuts_rows());
      expect_values(tensor_of(DType::f64, {std::ssize(found)}, found).view(),
                    part_of(whole, param.global_shape, param.part), 1e-9);
    }
  }
  std::unique_ptr<comm::Communicator> group_ =
      world().communicator(Device::cpu, comm::GroupRole::tensor);
  bool sequence_ = false;
};

TEST_F(BlockRanks, DrawnListsComputeOnAllRanksWhatOneRankDoes) {
  std::mt19937 draw(9);
  for (int i = 0; i < 30; ++i) {
    const BlockConfig config = drawn_config(i);
    sequence_ = i % 2 == 1;
    const BlockList list = drawn_list(draw);
    SCOPED_TRACE(std::to_string(i) + ": " + text_of(list));
    expect_parity(config, list);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace hyperslab::nn
