// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "hyperslab/comm/communicator.hpp"
#include "hyperslab/core/error.hpp"
#include "support/tensors.hpp"

namespace hyperslab::test {
namespace {

using comm::Call;
using comm::ReduceOp;

TEST(SelfCommunicator, IsTheIdentity) {
  Context ctx(Device::cpu);
  const auto self = comm::make_self_communicator(comm::GroupRole::data);
  Tensor x = tensor_of(DType::f32, {3}, {1, 2, 3});
  Tensor y = filled_tensor(DType::f32, {3}, 0);
  Tensor z = filled_tensor(DType::f32, {3}, 0);

  self->wait(ctx, self->all_reduce(ctx, x.view(), ReduceOp::sum));
  self->wait(ctx, self->reduce_scatter(ctx, x.view(), y.view()));
  self->wait(ctx, self->all_gather(ctx, y.view(), z.view()));
  self->wait(ctx, self->all_to_all(ctx, z.view(), y.view()));
  self->wait(ctx, self->broadcast(ctx, z.view(), 0));
  self->barrier();

  EXPECT_EQ(to_doubles(z.view()), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(to_doubles(y.view()), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(self->split(3, 0, comm::GroupRole::tied)->name(), "tied");
  for (const Call call : {Call::all_reduce, Call::reduce_scatter, Call::all_gather,
                          Call::all_to_all, Call::broadcast}) {
    EXPECT_EQ(self->traffic().calls[static_cast<std::size_t>(call)], 1) << comm::name_of(call);
    EXPECT_EQ(self->traffic().bytes[static_cast<std::size_t>(call)], 12) << comm::name_of(call);
  }
}

TEST(SelfCommunicator, SendsToItselfInOrder) {
  Context ctx(Device::cpu);
  const auto self = comm::make_self_communicator(comm::GroupRole::pipeline);
  const Tensor a = tensor_of(DType::i32, {2}, {1, 2});
  const Tensor b = tensor_of(DType::f32, {1}, {3});
  Tensor to_a = filled_tensor(DType::i32, {2}, 0);
  Tensor to_b = filled_tensor(DType::f32, {1}, 0);

  self->group_begin();
  self->recv(ctx, to_a.view(), 0);
  self->send(ctx, a.view(), 0);
  self->send(ctx, b.view(), 0);
  self->recv(ctx, to_b.view(), 0);
  self->wait(ctx, self->group_end(ctx));

  EXPECT_EQ(to_doubles(to_a.view()), (std::vector<double>{1, 2}));
  EXPECT_EQ(to_doubles(to_b.view()), (std::vector<double>{3}));
}

TEST(SelfCommunicator, RefusesMessagesThatDoNotMatch) {
  Context ctx(Device::cpu);
  const auto self = comm::make_self_communicator(comm::GroupRole::pipeline);
  const Tensor a = tensor_of(DType::i32, {2}, {1, 2});
  Tensor b = filled_tensor(DType::f32, {2}, 0);

  self->group_begin();
  self->send(ctx, a.view(), 0);
  EXPECT_THROW((void)self->group_end(ctx), Error);
  self->group_begin();
  self->send(ctx, a.view(), 0);
  self->recv(ctx, b.view(), 0);
  EXPECT_THROW((void)self->group_end(ctx), Error);

  EXPECT_EQ(to_doubles(b.view()), (std::vector<double>{0, 0}));
}

TEST(MetaCommunicator, CountsForAnyGroup) {
  Context ctx(Device::meta);
  const auto meta = comm::make_meta_communicator(comm::GroupRole::data, 77, 4096);
  Tensor full(Device::meta, DType::f32, {Dim{4096} << 30});
  Tensor shard(Device::meta, DType::f32, {Dim{1} << 30});

  meta->wait(ctx, meta->reduce_scatter(ctx, full.view(), shard.view()));
  meta->barrier();

  const auto i = static_cast<std::size_t>(Call::reduce_scatter);
  EXPECT_EQ(meta->traffic().calls[i], 1);
  EXPECT_EQ(meta->traffic().bytes[i], std::int64_t{4096} << 32);
  EXPECT_THROW((void)meta->split(0, 0, comm::GroupRole::tensor), Error);
}

// Plans have the sums of whole products in place of pieces.
TEST(MetaCommunicator, SharesNoMemory) {
  Context ctx(Device::meta);
  const auto meta = comm::make_meta_communicator(comm::GroupRole::tensor, 0, 2);
  Tensor full(Device::meta, DType::bf16, {2048});
  Tensor shard(Device::meta, DType::bf16, {1024});

  EXPECT_FALSE(meta->is_shared(full.view()));
  EXPECT_THROW((void)meta->reduce_scatter_others(ctx, full.view(), shard.view(), 0, 1024), Error);
  EXPECT_THROW((void)meta->all_gather_piece(ctx, full.view(), 0, 1024), Error);
  EXPECT_EQ(meta->traffic().calls, comm::Traffic{}.calls);
}

TEST(MetaCommunicator, TakesNoRealBuffers) {
  Context ctx(Device::cpu);
  const auto meta = comm::make_meta_communicator(comm::GroupRole::data, 0, 2);
  Tensor x = filled_tensor(DType::f32, {3}, 0);

  EXPECT_THROW((void)meta->all_reduce(ctx, x.view(), ReduceOp::sum), Error);
  EXPECT_THROW((void)comm::make_meta_communicator(comm::GroupRole::data, 2, 2), Error);
}

}  // namespace
}  // namespace hyperslab::test
