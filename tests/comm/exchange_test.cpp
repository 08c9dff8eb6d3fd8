// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include "comm/comm_test.hpp"
#include "mpi_communicator.hpp"

namespace hyperslab::test {
namespace {

using comm::ReduceOp;
using testing::HasSubstr;

class Exchange : public testing::Test {
 protected:
  [[nodiscard]] int rank() const { return world().rank(); }
  [[nodiscard]] int size() const { return world().size(); }

  Context ctx_{Device::cpu};
  std::unique_ptr<comm::Communicator> comm_ =
      world().communicator(Device::cpu, comm::GroupRole::pipeline);
};

TEST_F(Exchange, RingOfEveryType) {
  const int next = (rank() + 1) % size();
  const int previous = (rank() + size() - 1) % size();
  for (const DType dtype : kAllTypes) {
    for (const Dim n : kSizes) {
      const Tensor out = elements(dtype, n, rank());
      Tensor in = filled_tensor(dtype, {n}, 1);

      comm_->group_begin();
      comm_->send(ctx_, out.view(), next);
      comm_->recv(ctx_, in.view(), previous);
      comm_->wait(ctx_, comm_->group_end(ctx_));

      EXPECT_EQ(bits(in.view()), bits(elements(dtype, n, previous).view())) << name_of(dtype);
    }
  }
}

TEST_F(Exchange, NeighboursThatBothSendFirst) {
  constexpr Dim kBeyondEager = 300007;  // a blocking send of this size would wait for its receive
  const int peer = rank() ^ 1;
  if (peer >= size()) GTEST_SKIP() << "no neighbour";
  const Tensor out = elements(DType::f32, kBeyondEager, rank());
  Tensor in = filled_tensor(DType::f32, {kBeyondEager}, -1);

  comm_->group_begin();
  comm_->send(ctx_, out.view(), peer);
  comm_->recv(ctx_, in.view(), peer);
  comm_->wait(ctx_, comm_->group_end(ctx_));

  EXPECT_EQ(bits(in.view()), bits(elements(DType::f32, kBeyondEager, peer).view()));
}

TEST_F(Exchange, MessagesMatchInOrderAcrossGroups) {
  const int next = (rank() + 1) % size();
  const int previous = (rank() + size() - 1) % size();
  std::vector<Tensor> out;
  std::vector<Tensor> in;
  for (int k = 0; k < 6; ++k) {
    out.push_back(filled_tensor(DType::i32, {k + 1}, 100 * rank() + k));
    in.push_back(filled_tensor(DType::i32, {k + 1}, -1));
  }

  std::vector<comm::Ticket> tickets;
  for (std::size_t group = 0; group < 3; ++group) {
    comm_->group_begin();
    comm_->recv(ctx_, in[2 * group].view(), previous);
    comm_->send(ctx_, out[2 * group].view(), next);
    comm_->send(ctx_, out[2 * group + 1].view(), next);
    comm_->recv(ctx_, in[2 * group + 1].view(), previous);
    tickets.push_back(comm_->group_end(ctx_));
  }
  for (const std::size_t group : {2, 0, 1}) comm_->wait(ctx_, tickets[group]);

  for (int k = 0; k < 6; ++k) {
    EXPECT_EQ(to_doubles(in[static_cast<std::size_t>(k)].view()),
              std::vector<double>(static_cast<std::size_t>(k) + 1, 100 * previous + k));
  }
}

TEST_F(Exchange, EmptyGroupsAndEmptyMessages) {
  Tensor nothing(Device::cpu, DType::f32, {0});

  comm_->group_begin();
  comm_->wait(ctx_, comm_->group_end(ctx_));
  comm_->group_begin();
  comm_->send(ctx_, nothing.view(), rank());
  comm_->recv(ctx_, nothing.view(), rank());
  comm_->wait(ctx_, comm_->group_end(ctx_));

  EXPECT_EQ(comm_->traffic().calls[static_cast<std::size_t>(comm::Call::send)], 1);
  EXPECT_EQ(comm_->traffic().bytes[static_cast<std::size_t>(comm::Call::send)], 0);
}

TEST_F(Exchange, LargeMessagesGoInChunks) {
  const auto comm = comm::make_mpi_communicator(std::make_shared<comm::MpiEngine>(), MPI_COMM_WORLD,
                                                comm::GroupRole::other, 100);
  const int next = (rank() + 1) % size();
  const int previous = (rank() + size() - 1) % size();
  const Tensor out = elements(DType::bf16, 1021, rank());
  Tensor in = filled_tensor(DType::bf16, {1021}, -1);

  comm->group_begin();
  comm->send(ctx_, out.view(), next);
  comm->recv(ctx_, in.view(), previous);
  comm->wait(ctx_, comm->group_end(ctx_));

  EXPECT_EQ(bits(in.view()), bits(elements(DType::bf16, 1021, previous).view()));
}

TEST_F(Exchange, RowsAndColumns) {
  if (size() != 4) GTEST_SKIP() << "needs 4 ranks";
  const int row = rank() / 2;
  const int column = rank() % 2;
  const auto tensor = comm_->split(row, column, comm::GroupRole::tensor);
  const auto data = comm_->split(column, -row, comm::GroupRole::data);
  Tensor over_row = filled_tensor(DType::i32, {3}, 1 << rank());
  Tensor over_column = filled_tensor(DType::i32, {3}, 1 << rank());

  const auto column_ticket = data->all_reduce(ctx_, over_column.view(), ReduceOp::sum);
  tensor->wait(ctx_, tensor->all_reduce(ctx_, over_row.view(), ReduceOp::sum));
  data->wait(ctx_, column_ticket);

  EXPECT_EQ(tensor->name(), "tensor");
  EXPECT_EQ(tensor->size(), 2);
  EXPECT_EQ(tensor->rank(), column);
  EXPECT_EQ(data->rank(), 1 - row) << "ordered by key";
  EXPECT_EQ(to_doubles(over_row.view())[2], row == 0 ? 1 + 2 : 4 + 8);
  EXPECT_EQ(to_doubles(over_column.view())[2], column == 0 ? 1 + 4 : 2 + 8);
}

TEST_F(Exchange, SplitIntoSinglesCommunicatesNothing) {
  const auto alone = comm_->split(rank(), 0, comm::GroupRole::other);
  Tensor x = filled_tensor(DType::f32, {4}, rank());

  alone->wait(ctx_, alone->all_reduce(ctx_, x.view(), ReduceOp::sum));
  alone->barrier();

  EXPECT_EQ(alone->size(), 1);
  EXPECT_EQ(to_doubles(x.view()), std::vector<double>(4, rank()));
}

TEST_F(Exchange, ParentOutlivedByItsPart) {
  auto part = comm_->split(0, rank(), comm::GroupRole::other);
  comm_.reset();
  Tensor x = filled_tensor(DType::f32, {4}, 1);

  part->wait(ctx_, part->all_reduce(ctx_, x.view(), ReduceOp::sum));

  EXPECT_EQ(to_doubles(x.view()), std::vector<double>(4, size()));
}

TEST_F(Exchange, WrongSizesAreNamed) {
  if (size() % 2 != 0) GTEST_SKIP() << "needs pairs";
  const int peer = rank() ^ 1;
  for (const Dim received : {2, 8}) {
    const auto comm = comm::make_mpi_communicator(std::make_shared<comm::MpiEngine>(),
                                                  MPI_COMM_WORLD, comm::GroupRole::other);
    const Tensor out = elements(DType::i32, 4, rank());
    Tensor in = filled_tensor(DType::i32, {received}, -1);

    comm->group_begin();
    comm->recv(ctx_, in.view(), peer);
    comm->send(ctx_, out.view(), peer);
    const comm::Ticket ticket = comm->group_end(ctx_);
    const std::string message = refusal([&] { comm->wait(ctx_, ticket); });

    EXPECT_THAT(message, HasSubstr("communicator other: "));
    EXPECT_THAT(message,
                HasSubstr(received == 2 ? "MPI_ERR_TRUNCATE" : "sent 16 bytes, expected 32"));
  }
}

}  // namespace
}  // namespace hyperslab::test
