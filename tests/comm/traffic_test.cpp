// SPDX-License-Identifier: Apache-2.0
#include "comm/comm_test.hpp"
#include "comm/pmpi_counter.hpp"

namespace hyperslab::test {
namespace {

using comm::Call;
using comm::ReduceOp;

/// A mix of calls of many sizes, some of them in progress together.
void talk(Context& ctx, comm::Communicator& comm) {
  const int size = comm.size();
  for (const DType dtype : kReducible) {
    Tensor full = elements(dtype, 101 * size, comm.rank());
    Tensor shard = filled_tensor(dtype, {101}, 0);
    Tensor other = elements(dtype, 7, comm.rank());
    const auto reduced = comm.all_reduce(ctx, other.view(), ReduceOp::max);
    comm.wait(ctx, comm.reduce_scatter(ctx, full.view(), shard.view()));
    const View own = full.view().slice(101 * comm.rank(), 101);
    comm.wait(ctx, comm.reduce_scatter(ctx, full.view(), own));
    comm.wait(ctx, comm.all_gather(ctx, shard.view(), full.view()));
    comm.wait(ctx, comm.all_gather(ctx, own, full.view()));
    Tensor received = filled_tensor(dtype, {101 * size}, 0);
    comm.wait(ctx, comm.all_to_all(ctx, full.view(), received.view()));
    comm.wait(ctx, comm.broadcast(ctx, shard.view(), size - 1));
    comm.wait(ctx, reduced);
    comm.group_begin();
    comm.send(ctx, shard.view(), (comm.rank() + 1) % size);
    comm.recv(ctx, full.view().slice(0, 101), (comm.rank() + size - 1) % size);
    comm.wait(ctx, comm.group_end(ctx));
    comm.barrier();
  }
}

TEST(Traffic, IsWhatMpiSaw) {
  Context ctx(Device::cpu);
  const auto data = world().communicator(Device::cpu, comm::GroupRole::data);
  const auto tensor = data->split(world().rank() % 2, world().rank(), comm::GroupRole::tensor);
  pmpi::clear();

  talk(ctx, *data);
  talk(ctx, *data);
  talk(ctx, *tensor);

  for (const comm::Communicator* each : {data.get(), tensor.get()}) {
    // A group of one is the self communicator, which MPI never sees.
    const comm::Traffic expected = each->size() > 1 ? each->traffic() : comm::Traffic{};
    const comm::Traffic seen = pmpi::traffic(each->name());
    EXPECT_EQ(seen.calls, expected.calls) << each->name();
    EXPECT_EQ(seen.bytes, expected.bytes) << each->name();
  }
  EXPECT_EQ(data->traffic().calls[static_cast<std::size_t>(Call::reduce_scatter)], 24);
}

TEST(Traffic, UsesOnlyNonblockingCalls) {
  Context ctx(Device::cpu);
  const auto data = world().communicator(Device::cpu, comm::GroupRole::data);
  pmpi::clear();

  talk(ctx, *data);

  EXPECT_EQ(pmpi::communicators(), std::vector<std::string>{"data"});
  for (const auto& entry : pmpi::counts("data")) EXPECT_EQ(entry.first.substr(0, 5), "MPI_I");
  EXPECT_EQ(pmpi::counts("data").at("MPI_Iallreduce").bytes, 7 * (8 + 4 + 2 + 2 + 8 + 4));
}

TEST(Traffic, OnMetaIsTheSameAndMovesNothing) {
  Context ctx(Device::cpu);
  Context plan(Device::meta);
  const auto data = world().communicator(Device::cpu, comm::GroupRole::data);
  const auto planned =
      comm::make_meta_communicator(comm::GroupRole::data, world().rank(), world().size());
  const Dim size = world().size();
  pmpi::clear();

  Tensor full(Device::meta, DType::bf16, {12 * size});
  Tensor shard(Device::meta, DType::bf16, {12});
  Tensor received(Device::meta, DType::bf16, {12 * size});
  for (comm::Communicator* each : {data.get(), planned.get()}) {
    each->wait(plan, each->all_reduce(plan, full.view(), ReduceOp::sum));
    each->wait(plan, each->reduce_scatter(plan, full.view(), shard.view()));
    each->wait(plan, each->all_gather(plan, shard.view(), full.view()));
    each->wait(plan, each->all_to_all(plan, full.view(), received.view()));
    each->group_begin();
    each->send(plan, shard.view(), 0);
    each->recv(plan, shard.view(), 0);
    each->wait(plan, each->group_end(plan));
  }

  EXPECT_TRUE(pmpi::communicators().empty());
  EXPECT_EQ(data->traffic().bytes, planned->traffic().bytes);
  for (const Call call : {Call::all_gather, Call::all_to_all}) {
    EXPECT_EQ(planned->traffic().bytes[static_cast<std::size_t>(call)], 24 * size);
  }
}

}  // namespace
}  // namespace hyperslab::test
