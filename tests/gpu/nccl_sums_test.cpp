// SPDX-License-Identifier: Apache-2.0
// Sums of small buffers, which groups of two compute in a kernel of their own if their GPUs reach
// each other's memory, and others by NCCL: the results are the same.
#include <array>

#include "hyperslab/core/graph.hpp"
#include "nccl_group.hpp"

namespace hyperslab::test {
namespace {

using comm::ReduceOp;
using comm::Ticket;

class NcclSums : public NcclGroup {
 protected:
  static void sum(View x) { group().wait(ctx(), group().all_reduce(ctx(), x, ReduceOp::sum)); }
  /// Of the element i of all members in a round: exact in bf16 for groups of up to 16.
  static double element_of(Dim i, int round, int member) {
    return static_cast<double>((i + round) % 8 + member);
  }
  static double sum_of(Dim i, int round) {
    double sum = 0;
    for (int member = 0; member < size(); ++member) sum += element_of(i, round, member);
    return sum;
  }
  static void fill_own(View x, int round) {
    std::vector<double> values;
    for (Dim i = 0; i < x.numel(); ++i) values.push_back(element_of(i, round, rank()));
    copy(ctx(), tensor_of(x.dtype(), {x.numel()}, values).view(), x);
  }
  static Dim wrong(CView x, int round) {
    const std::vector<double> found = numbers(x);
    Dim count = 0;
    for (Dim i = 0; i < x.numel(); ++i) {
      if (found[static_cast<std::size_t>(i)] != sum_of(i, round)) ++count;
    }
    return count;
  }
};

// From one vector to more than what a kernel takes, whose sum is NCCL's; with and without whole
// vectors; from the begin of a buffer and from within, and from other offsets on each member, of
// which one then adds vectors and the other elements.
TEST_F(NcclSums, OfEverySize) {
  int round = 0;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const Dim n : {1, 4, 8, 13, 1024, 4096, 8200, 65536, 131072, 131080}) {
      for (const Dim offset : {0, 8, 1, rank()}) {
        Tensor x = filled(dtype, n + offset, 0);
        const View part = x.view().slice(offset, n);
        fill_own(part, ++round);

        sum(part);

        EXPECT_EQ(wrong(part, round), 0) << name_of(dtype) << " " << n << " from " << offset;
      }
    }
  }
}

TEST_F(NcclSums, GiveAllMembersTheSameBits) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const auto seed = static_cast<std::uint64_t>(rank()) + 1;
    Tensor x = on_gpu(random_tensor(dtype, {4096}, seed).view());

    sum(x.view());

    const auto found = bits(on_cpu(x.view()).view());
    const std::string mine(found.begin(), found.end());
    EXPECT_TRUE(world().broadcast(mine) == mine) << name_of(dtype);
  }
}

// Many one after the other without the host in between, of changing sizes, so that a message that
// came too late or was overwritten too early would be seen; graphs in turns with eager calls that
// are in progress beside them.
TEST_F(NcclSums, OneAfterTheOtherInGraphsAndBesideThem) {
  constexpr int kSums = 12;
  constexpr std::array<Dim, 3> kCounts = {8, 4096, 65536};
  std::vector<Tensor> inside;
  std::vector<Tensor> sources;
  for (int i = 0; i < kSums; ++i) {
    inside.push_back(filled(DType::bf16, kCounts.at(static_cast<std::size_t>(i) % 3), 0));
    sources.push_back(filled(DType::bf16, inside.back().view().numel(), 0));
    fill_own(sources.back().view(), i);
  }
  Tensor outside = filled(DType::bf16, 4096, 0);
  GraphSegment segment;
  const auto work = [&] {
    for (std::size_t i = 0; i < kSums; ++i) {
      copy(ctx(), sources[i].view(), inside[i].view());
      sum(inside[i].view());
    }
  };

  for (int run = 0; run < 60; ++run) {
    fill_own(outside.view(), run);
    const Ticket eager = group().all_reduce(ctx(), outside.view(), ReduceOp::sum);
    segment.run(ctx(), run % 4 != 3, work);
    group().wait(ctx(), eager);

    EXPECT_EQ(wrong(outside.view(), run), 0) << run;
    for (int i = 0; i < kSums; ++i) {
      EXPECT_EQ(wrong(inside[static_cast<std::size_t>(i)].view(), i), 0) << run << ", sum " << i;
    }
  }
}

}  // namespace
}  // namespace hyperslab::test
