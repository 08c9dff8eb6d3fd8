// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <algorithm>
#include <thread>

#include "comm/comm_test.hpp"
#include "hyperslab/comm/component.hpp"
#include "mpi_communicator.hpp"

namespace hyperslab::test {
namespace {

using comm::ReduceOp;

/// Every test runs with whole calls, and with calls cut into chunks of at most 5 elements.
class Collectives : public testing::TestWithParam<Dim> {
 protected:
  Collectives() {
    if (world().size() == 1) {
      comm_ = world().communicator(Device::cpu, comm::GroupRole::data);
    } else {
      comm_ = comm::make_mpi_communicator(std::make_shared<comm::MpiEngine>(), MPI_COMM_WORLD,
                                          comm::GroupRole::data, GetParam());
    }
  }

  [[nodiscard]] int rank() const { return comm_->rank(); }
  [[nodiscard]] int size() const { return comm_->size(); }
  [[nodiscard]] Dim limited(Dim n) const { return GetParam() == 5 ? std::min<Dim>(n, 211) : n; }
  [[nodiscard]] double reduced(Dim i, ReduceOp op) const {
    double value = 0;
    for (int r = 0; r < size(); ++r) {
      value = op == ReduceOp::sum ? value + element(i, r) : std::max(value, element(i, r));
    }
    return value;
  }
  [[nodiscard]] std::vector<double> reduced_range(Dim begin, Dim n, ReduceOp op) const {
    std::vector<double> values;
    for (Dim i = begin; i < begin + n; ++i) values.push_back(reduced(i, op));
    return values;
  }

  Context ctx_{Device::cpu};
  std::unique_ptr<comm::Communicator> comm_;
};

TEST_P(Collectives, AllReduceIsExactOnSmallIntegers) {
  for (const DType dtype : kReducible) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
      for (const Dim whole : kSizes) {
        const Dim n = limited(whole);
        Tensor x = elements(dtype, n, rank());

        comm_->wait(ctx_, comm_->all_reduce(ctx_, x.view(), op));

        EXPECT_EQ(to_doubles(x.view()), reduced_range(0, n, op)) << name_of(dtype) << " " << n;
      }
    }
  }
}

TEST_P(Collectives, ReduceScatterGivesEachMemberItsPart) {
  for (const DType dtype : kReducible) {
    for (const Dim whole : kSizes) {
      const Dim n = limited(whole);
      Tensor full = elements(dtype, n * size(), rank());
      Tensor shard = filled_tensor(dtype, {n}, -1);

      comm_->wait(ctx_, comm_->reduce_scatter(ctx_, full.view(), shard.view()));

      EXPECT_EQ(to_doubles(shard.view()), reduced_range(rank() * n, n, ReduceOp::sum))
          << name_of(dtype) << " " << n;
    }
  }
}

TEST_P(Collectives, ReduceScatterIntoItsOwnPart) {
  for (const DType dtype : kReducible) {
    for (const Dim whole : kSizes) {
      const Dim n = limited(whole);
      Tensor full = elements(dtype, n * size(), rank());
      const View own = full.view().slice(rank() * n, n);

      comm_->wait(ctx_, comm_->reduce_scatter(ctx_, full.view(), own));

      EXPECT_EQ(to_doubles(own), reduced_range(rank() * n, n, ReduceOp::sum))
          << name_of(dtype) << " " << n;
    }
  }
}

TEST_P(Collectives, AllGatherFromOutsideAndInPlace) {
  for (const DType dtype : kAllTypes) {
    for (const bool in_place : {false, true}) {
      for (const Dim whole : kSizes) {
        const Dim n = limited(whole);
        Tensor shard = elements(dtype, n, rank());
        Tensor full = filled_tensor(dtype, {n * size()}, 1);
        const View own = full.view().slice(rank() * n, n);
        if (in_place && n > 0) std::memcpy(own.raw(), shard.view().raw(), own.bytes());

        comm_->wait(ctx_, comm_->all_gather(ctx_, in_place ? own : shard.view(), full.view()));

        for (int r = 0; r < size(); ++r) {
          EXPECT_EQ(bits(full.view().slice(r * n, n)), bits(elements(dtype, n, r).view()))
              << name_of(dtype) << " " << n << " of " << r;
        }
      }
    }
  }
}

TEST_P(Collectives, AllToAllGivesEachMemberItsPartOfAll) {
  for (const DType dtype : kAllTypes) {
    for (const Dim whole : kSizes) {
      const Dim n = limited(whole);
      Tensor sent = elements(dtype, n * size(), rank());
      Tensor received = filled_tensor(dtype, {n * size()}, 1);

      comm_->wait(ctx_, comm_->all_to_all(ctx_, sent.view(), received.view()));

      for (int r = 0; r < size(); ++r) {
        const Tensor theirs = elements(dtype, n * size(), r);
        EXPECT_EQ(bits(received.view().slice(r * n, n)), bits(theirs.view().slice(rank() * n, n)))
            << name_of(dtype) << " " << n << " of " << r;
      }
    }
  }
}

/// Rows that member `from` sends to `to`: many of them, one or none.
Dim rows_between(int from, int to, int round) {
  return round == 0 ? 0 : (from * 5 + to * 3 + round) % 7 * ((from + to + round) % 3);
}

TEST_P(Collectives, AllToAllOfRowsTakesAnyCounts) {
  constexpr Dim kSpare = 2;
  for (const DType dtype : kAllTypes) {
    for (const Dim columns : {1, 7}) {
      for (int round = 0; round < 4; ++round) {
        std::vector<Dim> sends;
        std::vector<Dim> receives;
        Dim sent_rows = kSpare;
        Dim received_rows = kSpare;
        for (int r = 0; r < size(); ++r) {
          sent_rows += sends.emplace_back(rows_between(rank(), r, round));
          received_rows += receives.emplace_back(rows_between(r, rank(), round));
        }
        const Tensor sent = elements(dtype, sent_rows * columns, rank());
        Tensor received = filled_tensor(dtype, {received_rows, columns}, 1);
        const auto before = comm_->traffic();

        comm_->wait(ctx_, comm_->all_to_all_rows(ctx_, sent.view().reshaped({sent_rows, columns}),
                                                 sends, received.view(), receives));

        const auto call = static_cast<std::size_t>(comm::Call::all_to_all);
        EXPECT_EQ(comm_->traffic().calls[call] - before.calls[call], 1);
        EXPECT_EQ(comm_->traffic().bytes[call] - before.bytes[call],
                  static_cast<std::int64_t>((sent_rows - kSpare) * columns) *
                      static_cast<std::int64_t>(size_of(dtype)));
        Dim row = 0;
        for (int r = 0; r < size(); ++r) {
          Dim begin = 0;
          for (int to = 0; to < rank(); ++to) begin += rows_between(r, to, round);
          const Dim count = receives[static_cast<std::size_t>(r)];
          const Tensor theirs = elements(dtype, (begin + count) * columns, r);
          EXPECT_EQ(bits(received.view().slice(row, count)),
                    bits(theirs.view().slice(begin * columns, count * columns)))
              << name_of(dtype) << " round " << round << " of " << r;
          row += count;
        }
        EXPECT_EQ(bits(received.view().slice(row, kSpare)),
                  bits(filled_tensor(dtype, {kSpare, columns}, 1).view()));
      }
    }
  }
}

TEST_P(Collectives, BroadcastFromEveryRoot) {
  for (const DType dtype : kAllTypes) {
    for (int root = 0; root < size(); ++root) {
      for (const Dim whole : kSizes) {
        Tensor x = elements(dtype, limited(whole), rank());

        comm_->wait(ctx_, comm_->broadcast(ctx_, x.view(), root));

        EXPECT_EQ(bits(x.view()), bits(elements(dtype, limited(whole), root).view()));
      }
    }
  }
}

TEST_P(Collectives, ManyOperationsCompleteInReverseOrder) {
  constexpr Dim kOperations = 20;
  std::vector<Tensor> buffers;
  std::vector<comm::Ticket> tickets;
  for (Dim k = 0; k < kOperations; ++k) buffers.push_back(elements(DType::f32, 50 + k, rank()));

  for (Tensor& buffer : buffers) {
    tickets.push_back(comm_->all_reduce(ctx_, buffer.view(), ReduceOp::sum));
  }
  std::ranges::reverse(tickets);
  for (const comm::Ticket ticket : tickets) comm_->wait(ctx_, ticket);

  for (const Tensor& buffer : buffers) {
    EXPECT_EQ(to_doubles(buffer.view()), reduced_range(0, buffer.view().numel(), ReduceOp::sum));
  }
}

TEST_P(Collectives, SameBitsOnAllMembersAndInEveryRun) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    for (const Dim n : {limited(3), limited(40009)}) {
      const auto seed = 100 + static_cast<std::uint64_t>(rank());
      std::vector<std::vector<char>> runs;
      for (int run = 0; run < 3; ++run) {
        Tensor x = random_tensor(dtype, {n}, seed);
        comm_->wait(ctx_, comm_->all_reduce(ctx_, x.view(), ReduceOp::sum));
        runs.push_back(bits(x.view()));
      }

      EXPECT_EQ(runs[0], runs[1]) << name_of(dtype) << " " << n;
      EXPECT_EQ(runs[0], runs[2]) << name_of(dtype) << " " << n;
      for (const std::string& other :
           world().all_gather(std::string(runs[0].begin(), runs[0].end()))) {
        EXPECT_TRUE(std::ranges::equal(runs[0], other)) << name_of(dtype) << " " << n;
      }
    }
  }
}

/// Halves are compared with core's own conversions over all bit patterns, NaN and infinity
/// included.
template <class Half>
void expect_rounding_of_core(comm::Communicator& comm, Context& ctx, DType dtype,
                             Half (*narrow)(float)) {
  constexpr Dim kPatterns = 1 << 16;
  const auto pattern = [](Dim i, int r) {
    return static_cast<std::uint16_t>(r == 0 ? i : (i * 40503 + 977) & 0xFFFF);
  };
  Tensor x(Device::cpu, dtype, {kPatterns});
  for (Dim i = 0; i < kPatterns; ++i) {
    x.view().data<Half>()[i].bits = comm.rank() < 2 ? pattern(i, comm.rank()) : std::uint16_t{0};
  }

  comm.wait(ctx, comm.all_reduce(ctx, x.view(), ReduceOp::sum));

  for (Dim i = 0; i < kPatterns; ++i) {
    const float sum = to_float(Half{pattern(i, 0)}) + to_float(Half{pattern(i, 1)});
    const Half found = x.view().template data<Half>()[i];
    if (std::isnan(sum)) {
      ASSERT_TRUE(std::isnan(to_float(found))) << i;
    } else {
      ASSERT_EQ(to_float(found), to_float(narrow(sum))) << i;
    }
  }
}

TEST_P(Collectives, HalvesRoundLikeCore) {
  if (size() < 2) GTEST_SKIP() << "nothing is summed by one rank";

  expect_rounding_of_core<bf16>(*comm_, ctx_, DType::bf16, &to_bf16);
  expect_rounding_of_core<f16>(*comm_, ctx_, DType::f16, &to_f16);
}

TEST_P(Collectives, ProgressFinishesWithoutWait) {
  Tensor x = filled_tensor(DType::f32, {10007}, 1);
  ctx_.recorder().begin_step(1, false);
  const auto* last = static_cast<volatile float*>(x.view().data<float>()) + 10006;

  const comm::Ticket ticket = comm_->all_reduce(ctx_, x.view(), ReduceOp::sum);
  const double deadline = now_seconds() + 20;
  while (*last != static_cast<float>(size()) && now_seconds() < deadline) comm_->progress();
  const float seen = *last;
  // A few more calls, so that the others get what they wait for and the end is noticed.
  const double settled = now_seconds() + 0.5;
  while (now_seconds() < settled) {
    comm_->progress();
    std::this_thread::yield();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  const double before_wait = now_seconds();
  comm_->wait(ctx_, ticket);
  const double waited = now_seconds() - before_wait;
  const StepTimes& times = ctx_.recorder().end_step();

  EXPECT_EQ(seen, static_cast<float>(size()));
  EXPECT_EQ(to_doubles(x.view()), std::vector<double>(10007, size()));
  EXPECT_LT(waited, 0.2);
  EXPECT_LT(times.reduce_seconds, times.step_seconds - 0.35) << "the end is when progress saw it";
  EXPECT_EQ(comm_->traffic().seconds, times.reduce_seconds);
}

TEST_P(Collectives, WaitIsRecorded) {
  Tensor x = filled_tensor(DType::f32, {100}, 1);
  ctx_.recorder().begin_step(1, false);

  world().barrier();
  if (rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  comm_->wait(ctx_, comm_->all_reduce(ctx_, x.view(), ReduceOp::sum));
  const StepTimes first = ctx_.recorder().end_step();
  ctx_.recorder().begin_step(2, false);
  comm_->report_reductions(false);
  comm_->wait(ctx_, comm_->all_reduce(ctx_, x.view(), ReduceOp::sum));
  const StepTimes second = ctx_.recorder().end_step();

  if (rank() != 0) {  // the others waited for rank 0
    EXPECT_GT(first.component(comm::kCommunicationComponent), 0.05);
    EXPECT_GT(comm_->traffic().exposed_seconds, 0.05);
    EXPECT_GT(comm_->traffic().seconds, 0.05);
    EXPECT_GT(first.reduce_seconds, 0.05);
  }
  EXPECT_GT(first.component(comm::kCommunicationComponent), 0);
  EXPECT_EQ(second.reduce_seconds, 0);
}

INSTANTIATE_TEST_SUITE_P(Chunks, Collectives, testing::Values(comm::kMaxCount, Dim{5}));

}  // namespace
}  // namespace hyperslab::test
