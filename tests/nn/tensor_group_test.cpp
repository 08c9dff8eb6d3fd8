// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/tensor_group.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "hyperslab/comm/world.hpp"
#include "support/tensors.hpp"

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

constexpr Dim kWidth = 3;

/// What a member's product adds to an element of the sum.
double term_of(int member, Dim row, Dim column) {
  return static_cast<double>(1000 * (member + 1) + 10 * row + column);
}
double sum_of(Dim row, Dim column) { return term_of(0, row, column) + term_of(1, row, column); }

/// One of two members that write into each other's memory; it does what the other one would. What
/// arrives is there when it is waited for, and not before.
class OneOfTwo final : public comm::Communicator {
 public:
  /// `unshared`: a view that members do not share.
  explicit OneOfTwo(int rank, CView unshared = {})
      : Communicator(comm::GroupRole::tensor, rank, 2, Device::cpu), unshared_(unshared) {}

  void progress() override {}
  [[nodiscard]] std::unique_ptr<Communicator> split(int, int, comm::GroupRole) override {
    return nullptr;
  }
  [[nodiscard]] bool is_shared(CView view) const override { return view.raw() != unshared_.raw(); }

  std::vector<double> sent;      ///< rows for the other member, as they were when they left
  std::vector<double> gathered;  ///< rows of this member that went there
  int waits = 0;

 private:
  struct Arrival {
    comm::Ticket ticket;
    View to;
    std::vector<float> values;
  };

  void do_all_reduce(Stream&, View, comm::ReduceOp, comm::Ticket) override { FAIL(); }
  void do_reduce_scatter(Stream&, View, View, comm::Ticket) override { FAIL(); }
  void do_all_to_all(Stream&, CView, View, comm::Ticket) override { FAIL(); }
  void do_broadcast(Stream&, View, int, comm::Ticket) override { FAIL(); }
  void do_exchange(Stream&, std::span<const comm::Message>, comm::Ticket) override { FAIL(); }
  void do_barrier() override {}

  void do_reduce_scatter_others(Stream&, View full, View shard, comm::Piece piece,
                                comm::Ticket ticket) override {
    const Dim part = full.numel() / 2;
    append(sent, full, (1 - rank()) * part + piece.begin, piece.count);
    const View all = flat(shard);
    arrive_later(ticket, all.slice(piece.begin, piece.count), rank() * part + piece.begin,
                 [this](Dim row, Dim column) { return term_of(1 - rank(), row, column); });
  }
  void do_all_gather_piece(Stream&, View full, comm::Piece piece, comm::Ticket ticket) override {
    const Dim part = full.numel() / 2;
    append(gathered, full, rank() * part + piece.begin, piece.count);
    const Dim first = (1 - rank()) * part + piece.begin;
    arrive_later(ticket, flat(full).slice(first, piece.count), first, sum_of);
  }
  void do_all_gather(Stream&, CView shard, View full, comm::Ticket ticket) override {
    const Dim part = shard.numel();
    std::memcpy(flat(full).slice(rank() * part, part).raw(), shard.raw(), shard.bytes());
    const Dim first = (1 - rank()) * part;
    arrive_later(ticket, flat(full).slice(first, part), first, sum_of);
  }
  double do_wait(Stream&, comm::Ticket ticket) override {
    ++waits;
    for (const Arrival& each : arrivals_) {
      if (each.ticket != ticket) continue;
      std::ranges::copy(each.values, each.to.data<float>());
    }
    return 0;
  }

  static View flat(View view) { return view.reshaped({view.numel()}); }
  static void append(std::vector<double>& to, View view, Dim first, Dim count) {
    const auto values = test::to_doubles(flat(view).slice(first, count));
    to.insert(to.end(), values.begin(), values.end());
  }
  template <class Value>
  void arrive_later(comm::Ticket ticket, View to, Dim first, Value&& value) {
    std::vector<float> values;
    for (Dim i = first; i < first + to.numel(); ++i) {
      values.push_back(static_cast<float>(value(i / kWidth, i % kWidth)));
    }
    arrivals_.push_back({ticket, to, values});
  }

  CView unshared_;
  std::vector<Arrival> arrivals_;
};

template <class Value>
std::vector<double> rows_of(Dim begin, Dim end, Value&& value) {
  std::vector<double> out;
  for (Dim row = begin; row < end; ++row) {
    for (Dim column = 0; column < kWidth; ++column) out.push_back(value(row, column));
  }
  return out;
}

/// What one member does for a sum over two of so many rows.
struct Summed {
  std::vector<double> sent;
  std::vector<double> gathered;
  std::vector<double> out;
  std::vector<int> times;  ///< that each row was computed
  int products = 0;
};

Summed sum_products(int rank, Dim rows, bool sequence) {
  OneOfTwo member(rank);
  const TensorGroup group(&member, sequence);
  Context ctx(Device::cpu);
  Tensor scratch = test::filled_tensor(DType::f32, {1, rows, kWidth}, -1);
  Tensor shard = test::filled_tensor(DType::f32, {1, rows / 2, kWidth}, -1);
  const View out = sequence ? shard.view() : scratch.view();
  Summed result;
  result.times.resize(static_cast<std::size_t>(rows));

  group.wait(ctx, group.sum_products(
                      ctx, group.term(out, scratch.view()), out,
                      [&](Dim begin, Dim count, View to, ops::Accumulate accumulate) {
                        ++result.products;
                        auto* value = to.data<float>();
                        for (Dim i = 0; i < count * kWidth; ++i) {
                          const auto term =
                              static_cast<float>(term_of(rank, begin + i / kWidth, i % kWidth));
                          value[i] = accumulate == ops::Accumulate::yes ? value[i] + term : term;
                        }
                        for (Dim row = begin; row < begin + count; ++row) {
                          ++result.times[static_cast<std::size_t>(row)];
                        }
                      }));

  result.sent = member.sent;
  result.gathered = member.gathered;
  result.out = test::to_doubles(out);
  return result;
}

// 8,200 rows are four pieces of each part, 3,000 rows one; an odd part is not cut evenly.
TEST(TensorGroup, AddsItsProductsToWhatTheOtherMemberSent) {
  for (const int rank : {0, 1}) {
    for (const Dim rows : {Dim{2}, Dim{3000}, Dim{4106}, Dim{8200}, Dim{20002}}) {
      SCOPED_TRACE(testing::Message() << "rank " << rank << ", rows " << rows);
      const Dim part = rows / 2;
      const Dim own = rank * part;
      const auto mine = [&](Dim row, Dim column) { return term_of(rank, row, column); };

      const Summed whole = sum_products(rank, rows, false);
      const Summed cut = sum_products(rank, rows, true);

      EXPECT_EQ(whole.sent, rows_of(part - own, rows - own, mine));
      EXPECT_EQ(whole.gathered, rows_of(own, own + part, sum_of));
      EXPECT_EQ(whole.out, rows_of(0, rows, sum_of));
      EXPECT_EQ(cut.sent, whole.sent);
      EXPECT_TRUE(cut.gathered.empty());
      EXPECT_EQ(cut.out, rows_of(own, own + part, sum_of));
      const int pieces = part < 2048 ? 1 : static_cast<int>(std::min<Dim>(part / 1024, 4));
      for (const Summed& each : {whole, cut}) {
        EXPECT_EQ(std::ranges::count(each.times, 1), rows);
        EXPECT_EQ(each.products, 2 * pieces);
      }
    }
  }
}

TEST(TensorGroup, BeginsWithItsOwnRowsOfWhatItGathers) {
  constexpr Dim kRows = 10;
  for (const int rank : {0, 1}) {
    OneOfTwo member(rank);
    const TensorGroup group(&member, true);
    Context ctx(Device::cpu);
    const Dim own = rank * kRows / 2;
    const Tensor x =
        test::tensor_of(DType::f32, {1, kRows / 2, kWidth}, rows_of(own, own + kRows / 2, sum_of));
    Tensor full = test::filled_tensor(DType::f32, {1, kRows, kWidth}, -1);
    std::vector<Dim> begins;
    std::vector<int> waits;

    group.of_gathered(ctx, x.view(), full.view(), [&](CView rows, Dim begin, Dim count) {
      EXPECT_EQ(test::to_doubles(rows), rows_of(begin, begin + count, sum_of));
      begins.push_back(begin);
      waits.push_back(member.waits);
    });

    EXPECT_EQ(begins, (std::vector<Dim>{own, kRows / 2 - own}));
    EXPECT_EQ(waits, (std::vector<int>{0, 1}));
    EXPECT_EQ(test::to_doubles(full.view()), rows_of(0, kRows, sum_of)) << "for later readers";
  }
}

// Whether rows are cut or not, the rows of the whole sum count.
TEST(TensorGroup, SumsAtMembersWhereManySharedRowsDivide) {
  for (const bool sequence : {false, true}) {
    const auto sums = [&](Dim rows, bool shares_term = true, bool shares_out = true) {
      const Tensor scratch(Device::cpu, DType::f32, {1, rows, kWidth});
      const Tensor shard(Device::cpu, DType::f32, {1, rows / 2, kWidth});
      const CView out = sequence ? shard.view() : scratch.view();
      const CView unshared = !shares_term ? scratch.view() : !shares_out ? out : CView();
      OneOfTwo member(0, unshared);
      return TensorGroup(&member, sequence).sums_at_members(scratch.view(), out);
    };

    EXPECT_TRUE(sums(512)) << sequence;
    EXPECT_TRUE(sums(514)) << sequence << ", whose halves are odd";
    EXPECT_FALSE(sums(510)) << sequence;
    EXPECT_FALSE(sums(513)) << sequence;
    EXPECT_FALSE(sums(512, false)) << sequence;
    EXPECT_FALSE(sums(512, true, false)) << sequence;
  }
  const Tensor x(Device::cpu, DType::f32, {1, 512, kWidth});
  EXPECT_FALSE(TensorGroup().sums_at_members(x.view(), x.view())) << "alone";
}

TEST(TensorGroup, GathersAtMembersIfRowsAreCut) {
  const Tensor few(Device::cpu, DType::f32, {1, 510, kWidth});
  const Tensor many(Device::cpu, DType::f32, {1, 512, kWidth});
  OneOfTwo member(0);
  OneOfTwo without(0, many.view());

  EXPECT_TRUE(TensorGroup(&member, true).gathers_at_members(many.view()));
  EXPECT_FALSE(TensorGroup(&member, true).gathers_at_members(few.view()));
  EXPECT_FALSE(TensorGroup(&member, false).gathers_at_members(many.view()));
  EXPECT_FALSE(TensorGroup(&without, true).gathers_at_members(many.view()));
  EXPECT_FALSE(TensorGroup().gathers_at_members(many.view())) << "alone";
}

}  // namespace
}  // namespace hyperslab::nn
