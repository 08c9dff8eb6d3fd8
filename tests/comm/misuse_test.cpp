// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "comm/comm_test.hpp"

namespace hyperslab::test {
namespace {

using comm::ReduceOp;
using testing::HasSubstr;

/// What the base class refuses, it refuses on every member alike and before anything is sent.
class Misuse : public testing::Test {
 public:
  Misuse(const Misuse&) = delete;
  Misuse& operator=(const Misuse&) = delete;
  Misuse(Misuse&&) = delete;
  Misuse& operator=(Misuse&&) = delete;

 protected:
  Misuse() = default;
  [[nodiscard]] int rank() const { return comm_->rank(); }
  [[nodiscard]] int size() const { return comm_->size(); }

  ~Misuse() override {
    EXPECT_EQ(comm_->traffic().calls, comm::Traffic{}.calls) << "a refused call was counted";
  }

  Context ctx_{Device::cpu};
  std::unique_ptr<comm::Communicator> comm_ =
      world().communicator(Device::cpu, comm::GroupRole::data);
};

TEST_F(Misuse, SizesThatDoNotFit) {
  Tensor full = filled_tensor(DType::f32, {6 * size() + 1}, 0);
  Tensor shard = filled_tensor(DType::f32, {6}, 0);
  const std::string expected = "full has " + std::to_string(6 * size() + 1) +
                               " elements, expected " + std::to_string(size()) +
                               " members x 6 of shard = " + std::to_string(6 * size());

  const auto scatter =
      refusal([&] { (void)comm_->reduce_scatter(ctx_, full.view(), shard.view()); });
  const auto gather = refusal([&] { (void)comm_->all_gather(ctx_, shard.view(), full.view()); });

  const std::string member = "communicator data (member " + std::to_string(rank()) + " of " +
                             std::to_string(size()) + "): ";
  EXPECT_EQ(scatter, member + "reduce_scatter: " + expected);
  EXPECT_EQ(gather, member + "all_gather: " + expected);
}

TEST_F(Misuse, PartsThatDoNotFit) {
  Tensor sent = filled_tensor(DType::f32, {6 * size()}, 0);
  Tensor fewer = filled_tensor(DType::f32, {5 * size()}, 0);
  const Tensor uneven = filled_tensor(DType::f32, {6 * size() + 1}, 0);
  Tensor as_uneven = filled_tensor(DType::f32, {6 * size() + 1}, 0);
  const auto found = [&](CView from, View to) {
    return refusal([&] { (void)comm_->all_to_all(ctx_, from, to); });
  };

  EXPECT_THAT(found(sent.view(), fewer.view()),
              HasSubstr(fmt::format("all_to_all: {} elements of f32 are sent, {} of f32 received",
                                    6 * size(), 5 * size())));
  EXPECT_THAT(found(sent.view(), sent.view()), HasSubstr("all_to_all: the views overlap"));
  if (size() > 1) {
    EXPECT_THAT(found(uneven.view(), as_uneven.view()), HasSubstr("no equal parts"));
  }
}

TEST_F(Misuse, CountsOfRowsThatDoNotFit) {
  Tensor sent = filled_tensor(DType::f32, {2 * size(), 3}, 0);
  Tensor received = filled_tensor(DType::f32, {2 * size(), 3}, 0);
  Tensor narrow = filled_tensor(DType::f32, {2 * size(), 2}, 0);
  const std::vector<Dim> two(static_cast<std::size_t>(size()), 2);
  const auto with = [&](int member, Dim rows) {
    std::vector<Dim> counts = two;
    counts[static_cast<std::size_t>(member)] = rows;
    return counts;
  };
  const auto found = [&](const std::vector<Dim>& sends, View to, const std::vector<Dim>& receives) {
    return refusal([&] { (void)comm_->all_to_all_rows(ctx_, sent.view(), sends, to, receives); });
  };
  const View to = received.view();

  EXPECT_THAT(
      found({}, to, two),
      HasSubstr(fmt::format("all_to_all_rows: 0 counts of rows sent for {} members", size())));
  EXPECT_THAT(found(with(0, -1), to, two), HasSubstr("-1 rows are sent for member 0"));
  EXPECT_THAT(found(two, to, with(size() - 1, 3)),
              HasSubstr(fmt::format("{} rows are received, and the view has {}", 2 * size() + 1,
                                    2 * size())));
  EXPECT_THAT(found(with(rank(), 1), to, two),
              HasSubstr(fmt::format("member {} sends 1 rows to itself and receives 2", rank())));
  EXPECT_THAT(found(two, narrow.view(), two), HasSubstr("rows of"));
  EXPECT_THAT(found(two, sent.view(), two), HasSubstr("all_to_all_rows: the views overlap"));
}

TEST_F(Misuse, OverlapThatIsNotTheOwnPart) {
  Tensor full = filled_tensor(DType::f32, {4 * size() + 4}, 0);
  const View inside = full.view().slice(0, 4 * size());
  const View shifted = full.view().slice(4 * rank() + 1, 4);

  const auto scatter = refusal([&] { (void)comm_->reduce_scatter(ctx_, inside, shifted); });
  const auto gather = refusal([&] { (void)comm_->all_gather(ctx_, shifted, inside); });

  const std::string expected = "shard overlaps full at byte " + std::to_string(16 * rank() + 4) +
                               ", its own part is at byte " + std::to_string(16 * rank());
  EXPECT_THAT(scatter, HasSubstr(expected));
  EXPECT_THAT(gather, HasSubstr(expected));
}

TEST_F(Misuse, DtypesAndDevices) {
  Tensor bytes = filled_tensor(DType::u8, {4}, 0);
  Tensor full = filled_tensor(DType::f32, {4 * size()}, 0);
  Tensor shard = filled_tensor(DType::bf16, {4}, 0);
  Tensor planned(Device::meta, DType::f32, {4});
  const auto reduce = [&](View view) {
    return refusal([&] { (void)comm_->all_reduce(ctx_, view, ReduceOp::sum); });
  };

  EXPECT_THAT(reduce(bytes.view()), HasSubstr("cannot reduce u8"));
  EXPECT_THAT(reduce({}), HasSubstr("buffer is missing"));
  EXPECT_THAT(reduce(planned.view()), HasSubstr("buffer is on meta, its stream on cpu"));
  EXPECT_THAT(refusal([&] { (void)comm_->reduce_scatter(ctx_, full.view(), shard.view()); }),
              HasSubstr("full holds f32, shard bf16"));
}

TEST_F(Misuse, MembersThatAreNot) {
  Tensor x = filled_tensor(DType::f32, {4}, 0);

  EXPECT_THAT(refusal([&] { (void)comm_->broadcast(ctx_, x.view(), size()); }),
              HasSubstr("root " + std::to_string(size()) + " is not a member, expected 0 to "));
  EXPECT_THAT(refusal([&] { (void)comm_->split(-1, 0, comm::GroupRole::other); }),
              HasSubstr("color -1 of other"));
  comm_->group_begin();
  EXPECT_THAT(refusal([&] { comm_->send(ctx_, x.view(), -1); }), HasSubstr("peer -1"));
  comm_->wait(ctx_, comm_->group_end(ctx_));
}

TEST_F(Misuse, Groups) {
  Tensor x = filled_tensor(DType::f32, {8}, 0);

  EXPECT_THAT(refusal([&] { comm_->send(ctx_, x.view(), 0); }), HasSubstr("outside group_begin"));
  EXPECT_THAT(refusal([&] { (void)comm_->group_end(ctx_); }), HasSubstr("no group was begun"));
  comm_->group_begin();
  EXPECT_THAT(refusal([&] { comm_->group_begin(); }), HasSubstr("has not ended"));
  EXPECT_THAT(refusal([&] { comm_->barrier(); }), HasSubstr("between group_begin"));
  EXPECT_THAT(refusal([&] { (void)comm_->broadcast(ctx_, x.view(), 0); }),
              HasSubstr("between group_begin"));
  comm_->wait(ctx_, comm_->group_end(ctx_));
}

TEST_F(Misuse, ReceivesThatOverlapInAGroup) {
  Tensor x = filled_tensor(DType::f32, {8}, 0);
  const auto other = world().communicator(Device::cpu, comm::GroupRole::other);

  other->group_begin();
  other->send(ctx_, x.view().slice(0, 4), rank());
  EXPECT_THAT(refusal([&] { other->recv(ctx_, x.view().slice(3, 4), rank()); }),
              HasSubstr("overlaps another one of the group"));
  other->recv(ctx_, x.view().slice(4, 4), rank());
  EXPECT_THAT(refusal([&] { other->send(ctx_, x.view().slice(7, 1), rank()); }),
              HasSubstr("overlaps another one of the group"));
  other->wait(ctx_, other->group_end(ctx_));
}

TEST_F(Misuse, Tickets) {
  const auto other = world().communicator(Device::cpu, comm::GroupRole::other);
  Tensor x = filled_tensor(DType::f32, {1}, 0);
  const comm::Ticket first = other->broadcast(ctx_, x.view(), 0);
  other->wait(ctx_, first);

  EXPECT_THAT(refusal([&] { other->wait(ctx_, first); }), HasSubstr("ticket 1 is not in progress"));
  EXPECT_THAT(refusal([&] { other->wait(ctx_, 7); }), HasSubstr("ticket 7 is not in progress"));
}

TEST_F(Misuse, ForgottenTicketIsFound) {
  const auto other = world().communicator(Device::cpu, comm::GroupRole::other);
  std::vector<comm::Ticket> tickets;
  Tensor x = filled_tensor(DType::f32, {1}, 0);
  for (std::size_t i = 0; i < comm::Communicator::kMaxUnderWay; ++i) {
    tickets.push_back(other->broadcast(ctx_, x.view(), 0));
    if (i > 0) other->wait(ctx_, tickets.back());
  }

  EXPECT_THAT(refusal([&] { (void)other->broadcast(ctx_, x.view(), 0); }),
              HasSubstr("ticket 1, 1024 operations ago, was not waited for"));
  other->wait(ctx_, tickets.front());
}

}  // namespace
}  // namespace hyperslab::test
