// SPDX-License-Identifier: Apache-2.0
// Collectives that follow and precede the work of a stream other than the compute stream.
#include <chrono>
#include <stdexcept>
#include <thread>

#include "comm/comm_test.hpp"
#include "hyperslab/core/transfer.hpp"

namespace hyperslab::test {
namespace {

using comm::ReduceOp;
using comm::Ticket;

class CollectivesOnStreams : public testing::Test {
 protected:
  /// The copy stream does nothing else for so long that a collective that does not wait for it
  /// takes what was there before.
  void hold_copies_up() {
    ctx_.copy_stream().run([] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); });
  }
  [[nodiscard]] double sum_of_ranks() const { return comm_->size() * (comm_->size() + 1) / 2.0; }

  Context ctx_{Device::cpu};
  std::unique_ptr<comm::Communicator> comm_ =
      world().communicator(Device::cpu, comm::GroupRole::data);
  Tensor source_ = filled_tensor(DType::f32, {1021}, comm_->rank() + 1);
  Tensor x_ = filled_tensor(DType::f32, {1021}, -1000);
};

TEST_F(CollectivesOnStreams, ASumAfterACopySeesWhatWasCopied) {
  hold_copies_up();
  copy(ctx_.copy_stream(), source_.view(), x_.view());

  const Ticket sum = comm_->all_reduce(ctx_.copy_stream(), x_.view(), ReduceOp::sum);
  comm_->wait(ctx_, sum);

  EXPECT_EQ(to_doubles(x_.view()), std::vector<double>(1021, sum_of_ranks()));
}

TEST_F(CollectivesOnStreams, ASumAfterAnEventThatComputeWaitedFor) {
  hold_copies_up();
  const Event copied = copy_async(ctx_, source_.view(), x_.view());

  ctx_.stream().wait(copied);
  comm_->wait(ctx_, comm_->all_reduce(ctx_, x_.view(), ReduceOp::sum));

  EXPECT_EQ(to_doubles(x_.view()), std::vector<double>(1021, sum_of_ranks()));
}

TEST_F(CollectivesOnStreams, ACopyAfterASumSeesTheSum) {
  Tensor result = filled_tensor(DType::f32, {1021}, -1);

  const Ticket sum = comm_->all_reduce(ctx_, source_.view(), ReduceOp::sum);
  comm_->wait(ctx_, ctx_.copy_stream(), sum);
  copy(ctx_.copy_stream(), source_.view(), result.view());
  ctx_.copy_stream().record().wait();

  EXPECT_EQ(to_doubles(result.view()), std::vector<double>(1021, sum_of_ranks()));
}

TEST_F(CollectivesOnStreams, TwoSumsInARowNeedNoComputeStream) {
  copy(ctx_.copy_stream(), source_.view(), x_.view());

  for (int i = 0; i < 2; ++i) {
    const Ticket sum = comm_->all_reduce(ctx_.copy_stream(), x_.view(), ReduceOp::sum);
    comm_->wait(ctx_, ctx_.copy_stream(), sum);
  }

  EXPECT_EQ(to_doubles(x_.view()), std::vector<double>(1021, comm_->size() * sum_of_ranks()));
}

TEST_F(CollectivesOnStreams, EveryCallWaitsForItsStream) {
  const int size = comm_->size();
  Tensor full = filled_tensor(DType::f32, {1021 * size}, -1000);
  Tensor shard = filled_tensor(DType::f32, {1021}, -1000);
  Stream& copies = ctx_.copy_stream();

  hold_copies_up();
  copy(copies, source_.view(), x_.view());
  comm_->wait(ctx_, comm_->all_gather(copies, x_.view(), full.view()));
  EXPECT_EQ(to_doubles(full.view()).back(), size);

  hold_copies_up();
  copy(copies, source_.view(), full.view().slice(0, 1021));
  comm_->wait(ctx_, comm_->reduce_scatter(copies, full.view(), shard.view()));
  const double expected = comm_->rank() == 0 ? sum_of_ranks() : size * (comm_->rank() + 1);
  EXPECT_EQ(to_doubles(shard.view()), std::vector<double>(1021, expected));

  hold_copies_up();
  copy(copies, source_.view(), x_.view());
  comm_->wait(ctx_, comm_->broadcast(copies, x_.view(), size - 1));
  EXPECT_EQ(to_doubles(x_.view()), std::vector<double>(1021, size));

  hold_copies_up();
  copy(copies, source_.view(), x_.view());
  comm_->group_begin();
  comm_->send(ctx_, x_.view(), (comm_->rank() + 1) % size);
  comm_->recv(ctx_, shard.view(), (comm_->rank() + size - 1) % size);
  comm_->wait(ctx_, comm_->group_end(copies));
  EXPECT_EQ(to_doubles(shard.view()).front(), (comm_->rank() + size - 1) % size + 1);
}

TEST_F(CollectivesOnStreams, AFailureOnTheStreamStartsNothing) {
  ctx_.copy_stream().run([] { throw std::runtime_error("on purpose"); });

  EXPECT_THROW((void)comm_->all_reduce(ctx_.copy_stream(), x_.view(), ReduceOp::sum),
               std::runtime_error);

  comm_->wait(ctx_, comm_->all_reduce(ctx_, source_.view(), ReduceOp::sum));
  EXPECT_EQ(to_doubles(source_.view()).front(), sum_of_ranks());
}

}  // namespace
}  // namespace hyperslab::test
