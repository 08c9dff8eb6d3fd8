// SPDX-License-Identifier: Apache-2.0
#include "comm/comm_test.hpp"
#include "support/allocations.hpp"

namespace hyperslab::test {
namespace {

constexpr Dim kShard = 1000;
constexpr int kBuckets = 8;

/// The calls of a step: sharded buckets in progress together, and an exchange beside them.
void step(Context& ctx, comm::Communicator& comm, View full, View other) {
  std::array<comm::Ticket, kBuckets> tickets{};
  const Dim bucket = full.numel() / kBuckets;
  const Dim shard = bucket / comm.size();
  for (int k = 0; k < kBuckets; ++k) {
    const View whole = full.slice(k * bucket, bucket);
    tickets[static_cast<std::size_t>(k)] =
        comm.reduce_scatter(ctx, whole, whole.slice(comm.rank() * shard, shard));
  }
  comm.group_begin();
  comm.send(ctx, other.slice(0, 100), comm.rank() ^ 1);
  comm.recv(ctx, other.slice(100, 100), comm.rank() ^ 1);
  const comm::Ticket exchanged = comm.group_end(ctx);
  comm.progress();
  for (const comm::Ticket ticket : tickets) comm.wait(ctx, ticket);
  comm.wait(ctx, exchanged);
  comm.wait(ctx, comm.all_reduce(ctx, other, comm::ReduceOp::sum));
}

TEST(Allocation, NoneAfterTheFirstStep) {
  Context ctx(Device::cpu);
  const auto data = world().communicator(Device::cpu, comm::GroupRole::data);
  Tensor full = filled_tensor(DType::f32, {kShard * world().size() * kBuckets}, 0);
  Tensor other = filled_tensor(DType::f32, {200}, 0);
  step(ctx, *data, full.view(), other.view());
  const std::int64_t before = allocations();

  for (int s = 0; s < 200; ++s) step(ctx, *data, full.view(), other.view());
  const std::int64_t after = allocations();

  EXPECT_GT(before, 0);
  EXPECT_EQ(after - before, 0);
}

}  // namespace
}  // namespace hyperslab::test
