// SPDX-License-Identifier: Apache-2.0
// Data parallelism against one rank, and what goes over the wire.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "comm/pmpi_counter.hpp"
#include "support/mpi_world.hpp"
#include "train/small_run.hpp"

namespace hyperslab {
namespace {

using test::small_config;
using test::SmallRun;
using test::world;

train::Config parallel_config(const std::vector<std::string>& more) {
  std::vector<std::string> overrides = {"parallel.data=" + std::to_string(world().size()),
                                        "train.microbatch=1", "parallel.bucket_mib=0.02"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return small_config(overrides, world().size());
}

/// The largest difference of a tensor, relative to its own magnitude or a thousandth of the largest
/// of its kind, whichever is more: gradients that are zero in theory do not matter.
double parity(const param::Param& a, const param::Param& b, double largest) {
  double difference = 0;
  double magnitude = 1e-3 * largest;
  for (Dim i = 0; i < a.numel(); ++i) {
    const double x = a.gradient.data<float>()[i];
    const double y = b.gradient.data<float>()[i];
    difference = std::max(difference, std::abs(x - y));
    magnitude = std::max(magnitude, std::abs(y));
  }
  return difference / magnitude;
}

double largest_gradient(train::Trainer& trainer) {
  double largest = 0;
  for (const float g : trainer.gradients().data.span<float>()) {
    largest = std::max(largest, std::abs(static_cast<double>(g)));
  }
  return largest;
}

class DataParallel : public testing::TestWithParam<std::string> {};

TEST_P(DataParallel, AgreesWithOneRankTensorByTensor) {
  const std::vector<std::string> more = {"model.family=" + GetParam(), "model.dropout=0.1"};
  const train::Config config = parallel_config(more);
  const train::Config single =
      small_config({"train.microbatch=1", "model.family=" + GetParam(), "model.dropout=0.1"}, 1);
  const mesh::Mesh mesh(world(), Device::cpu, config.parallel, config.groups());
  const mesh::Mesh alone = mesh::Mesh::plan(single.parallel, 0);
  SmallRun many(config, mesh, world().rank());
  SmallRun one(single, alone, 0);

  double loss = one.step(1);
  EXPECT_NEAR(many.step(1), loss, 1e-6 * loss);
  const auto& params = many.trainer().stage().params().params();
  const auto& reference = one.trainer().stage().params().params();
  const double largest = largest_gradient(one.trainer());
  for (std::size_t i = 0; i < params.size(); ++i) {
    ASSERT_EQ(params[i].name, reference[i].name);
    EXPECT_LE(parity(params[i], reference[i], largest), 2e-6) << params[i].name;
  }
  for (int step = 2; step <= 50; ++step) {
    loss = one.step(step);
    EXPECT_NEAR(many.step(step), loss, (step <= 10 ? 1e-5 : 1e-4) * loss) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, DataParallel, testing::Values("gpt2", "llama"));

TEST(DataParallel, TheSameRanksGiveTheSameBits) {
  const train::Config config = parallel_config({});
  const mesh::Mesh mesh(world(), Device::cpu, config.parallel, config.groups());
  SmallRun a(config, mesh, world().rank());
  SmallRun b(config, mesh, world().rank());
  for (int step = 1; step <= 5; ++step) EXPECT_EQ(a.step(step), b.step(step));

  const CView first = a.trainer().stage().params().trained().master().data;
  const CView second = b.trainer().stage().params().trained().master().data;
  EXPECT_EQ(std::memcmp(first.raw(), second.raw(), first.bytes()), 0);
}

TEST(DataParallel, ReplicasStayEqualBitForBit) {
  const train::Config config = parallel_config({});
  const mesh::Mesh mesh(world(), Device::cpu, config.parallel, config.groups());
  SmallRun run(config, mesh, world().rank());
  for (int step = 1; step <= 5; ++step) run.step(step);

  const CView master = run.trainer().stage().params().trained().master().data;
  const std::string mine(static_cast<const char*>(master.raw()), master.bytes());
  EXPECT_EQ(world().broadcast(mine), mine);
}

/// One all-reduce of every bucket, padded to ranks x 128 bytes, and one of eight sums, a step; and
/// one barrier, in which no member blocks, shows when members come to the wait for gradients.
TEST(DataParallel, TrafficEqualsTheClosedForm) {
  constexpr int kSteps = 3;
  const train::Config config = parallel_config({});
  const mesh::Mesh mesh(world(), Device::cpu, config.parallel, config.groups());
  SmallRun run(config, mesh, world().rank());
  test::pmpi::clear();
  for (int step = 1; step <= kSteps; ++step) run.step(step);

  // 24 wide: a block has 4 + 8 matrices of 24 x 24, 13 vectors of 24; fused ones end on 32
  // elements.
  const auto packed = [](std::int64_t n) { return (n + 31) / 32 * 32; };
  const std::int64_t block = packed(3L * 576) + packed(72) + packed(576) + 3 * packed(24) +
                             2 * packed(24) + 2 * packed(4L * 576) + packed(96) + packed(24);
  const std::int64_t table = packed(67L * 24);
  const std::int64_t positions = packed(12L * 24);
  const std::int64_t final_norm = 2 * packed(24);
  const std::int64_t granule = 32L * world().size();
  const auto padded = [&](std::int64_t n) { return (n + granule - 1) / granule * granule; };
  // Buckets of at least 0.02 MiB = 5243 floats: a block fills one, the final norm joins the last
  // block, the tied table is alone, and what is left of the embedding comes last.
  const std::int64_t elements =
      padded(final_norm + block) + 2 * padded(block) + padded(positions) + padded(table);
  const comm::Traffic data = test::pmpi::traffic("data");
  const comm::Traffic sums = test::pmpi::traffic("world");
  const auto kind = static_cast<std::size_t>(comm::Call::all_reduce);
  const bool alone = world().size() == 1;
  EXPECT_EQ(data.calls[kind], alone ? 0 : kSteps * 5L);
  EXPECT_EQ(data.bytes[kind], alone ? 0 : kSteps * 4 * elements);
  EXPECT_EQ(sums.calls[kind], alone ? 0 : kSteps);
  EXPECT_EQ(sums.bytes[kind], alone ? 0 : kSteps * 4L * ops::kSumCount);
  EXPECT_EQ(run.plan().traffic.at(comm::GroupRole::data).bytes[kind], alone ? 0 : 4 * elements);
  EXPECT_EQ(mesh.group(mesh::kSamples).traffic().bytes[kind], data.bytes[kind]);
  for (int call = 0; call < comm::kCalls; ++call) {
    if (static_cast<comm::Call>(call) == comm::Call::all_reduce) continue;
    const bool reports = static_cast<comm::Call>(call) == comm::Call::barrier && !alone;
    EXPECT_EQ(data.calls[static_cast<std::size_t>(call)], reports ? kSteps : 0);
  }
}

}  // namespace
}  // namespace hyperslab
