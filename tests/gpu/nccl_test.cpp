// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "hyperslab/core/graph.hpp"
#include "hyperslab/core/profiler.hpp"
#include "nccl_group.hpp"

namespace hyperslab::test {
namespace {

using comm::ReduceOp;
using comm::Ticket;

class Nccl : public NcclGroup {
 protected:
  /// Elements [begin, begin + n) of the members' elements(), reduced.
  static std::vector<double> reduced(Dim begin, Dim n, ReduceOp op = ReduceOp::sum) {
    std::vector<double> values;
    for (Dim i = begin; i < begin + n; ++i) {
      double value = 0;
      for (int r = 0; r < size(); ++r) {
        value = op == ReduceOp::sum ? value + element(i, r) : std::max(value, element(i, r));
      }
      values.push_back(value);
    }
    return values;
  }
  static std::vector<double> all_elements(DType dtype, Dim n) {
    std::vector<double> values;
    for (int r = 0; r < size(); ++r) {
      const auto part = to_doubles(elements(dtype, n, r).view());
      values.insert(values.end(), part.begin(), part.end());
    }
    return values;
  }
  static double sum_of_ranks() { return size() * (size() - 1) / 2.0; }
};

TEST_F(Nccl, AllReduceIsExactOnSmallIntegers) {
  for (const DType dtype : kReducible) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
      for (const Dim n : kSizes) {
        Tensor x = elements_of(dtype, n, rank());

        group().wait(ctx(), group().all_reduce(ctx(), x.view(), op));

        EXPECT_EQ(numbers(x.view()), reduced(0, n, op)) << name_of(dtype) << " " << n;
      }
    }
  }
}

TEST_F(Nccl, AllReduceGivesAllMembersTheSameBits) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto seed = static_cast<std::uint64_t>(rank()) + 1;
    Tensor x = on_gpu(random_tensor(dtype, {100003}, seed).view());

    group().wait(ctx(), group().all_reduce(ctx(), x.view(), ReduceOp::sum));

    const auto found = bits(on_cpu(x.view()).view());
    const std::string mine(found.begin(), found.end());
    EXPECT_TRUE(world().broadcast(mine) == mine) << name_of(dtype);
  }
}

TEST_F(Nccl, TracedOperationsAreFoundOnTheDevice) {
  if (size() == 1) GTEST_SKIP() << "a group of one moves nothing";
  if (!Profiler::unavailable().empty()) GTEST_SKIP() << Profiler::unavailable();
  const Dim n = 100000;
  Tensor sum = elements_of(DType::f32, n, rank());
  Tensor all = filled(DType::f32, n * size(), 0);
  const auto communicates = [](std::string_view kernel) { return kernel.starts_with("ncclDev"); };
  Profiler profiler(ctx().recorder(), Profiler::Watch::timeline, communicates);
  profiler.name_stream(ctx().stream(), "compute");
  group().record_operations(&ctx().recorder());

  profiler.start();
  ctx().recorder().begin_step(1, true);
  const Ticket first = group().all_reduce(ctx(), sum.view(), ReduceOp::sum);
  group().wait(ctx(), first);
  group().wait(ctx(), group().all_gather(ctx(), sum.view(), all.view()));
  synchronize(ctx());
  profiler.stop();
  group().record_operations(nullptr);
  const std::vector<DeviceEvent> events = profiler.events();

  const std::vector<TraceOperation>& called = ctx().recorder().operations();
  ASSERT_EQ(called.size(), 2U);
  EXPECT_EQ(called[0].ticket, first);
  EXPECT_EQ(called[0].operation, "all_reduce");
  EXPECT_EQ(called[1].operation, "all_gather");
  double end_of_first = 0;
  std::vector<std::int64_t> found;
  for (const DeviceEvent& event : events) {
    if (event.operation < 0) continue;
    found.push_back(event.operation);
    EXPECT_EQ(event.stream, "tensor") << event.name;
    EXPECT_GE(event.begin_seconds, end_of_first) << "they follow each other";
    end_of_first = event.end_seconds;
  }
  EXPECT_EQ(found, (std::vector<std::int64_t>{0, 1}));
  ctx().recorder().begin_step(2, false);
}

TEST_F(Nccl, ReduceScatterGivesEachMemberItsPart) {
  for (const DType dtype : kReducible) {
    for (const Dim n : kSizes) {
      Tensor full = elements_of(dtype, n * size(), rank());
      Tensor shard = filled(dtype, n, 99);

      group().wait(ctx(), group().reduce_scatter(ctx(), full.view(), shard.view()));

      EXPECT_EQ(numbers(shard.view()), reduced(rank() * n, n)) << name_of(dtype) << " " << n;
    }
  }
}

TEST_F(Nccl, ReduceScatterIntoItsOwnPart) {
  for (const DType dtype : kReducible) {
    for (const Dim n : kSizes) {
      Tensor full = elements_of(dtype, n * size(), rank());
      const View own = full.view().slice(rank() * n, n);

      group().wait(ctx(), group().reduce_scatter(ctx(), full.view(), own));

      EXPECT_EQ(numbers(own), reduced(rank() * n, n)) << name_of(dtype) << " " << n;
    }
  }
}

// As parallel.sequence sums a stream: (B, T, C), of which each member gets T / size() rows.
TEST_F(Nccl, ReduceScatterOfRows) {
  constexpr Dim kRows = 3;
  constexpr Dim kWidth = 40;
  constexpr Dim kPart = kRows * kWidth;
  Tensor full = elements_of(DType::bf16, kPart * size(), rank());
  Tensor shard = filled(DType::bf16, kPart, 99);
  const View stream = full.view().reshaped({1, kRows * size(), kWidth});

  group().wait(ctx(),
               group().reduce_scatter(ctx(), stream, shard.view().reshaped({1, kRows, kWidth})));

  EXPECT_EQ(numbers(shard.view()), reduced(rank() * kPart, kPart));
}

TEST_F(Nccl, AllGatherFromOutsideAndFromItsOwnPart) {
  for (const DType dtype : kAllTypes) {
    for (const Dim n : kSizes) {
      const Tensor shard = elements_of(dtype, n, rank());
      Tensor full = filled(dtype, n * size(), 99);
      Tensor in_place = filled(dtype, n * size(), 99);
      const View own = in_place.view().slice(rank() * n, n);
      copy(ctx(), shard.view(), own);

      const Ticket first = group().all_gather(ctx(), shard.view(), full.view());
      const Ticket second = group().all_gather(ctx(), own, in_place.view());
      group().wait(ctx(), second);
      group().wait(ctx(), first);

      EXPECT_EQ(numbers(full.view()), all_elements(dtype, n)) << name_of(dtype) << " " << n;
      EXPECT_EQ(numbers(in_place.view()), all_elements(dtype, n)) << name_of(dtype) << " " << n;
    }
  }
}

TEST_F(Nccl, BroadcastFromEveryRoot) {
  for (const DType dtype : kAllTypes) {
    for (int root = 0; root < size(); ++root) {
      Tensor x = elements_of(dtype, 1021, rank());

      group().wait(ctx(), group().broadcast(ctx(), x.view(), root));

      EXPECT_EQ(numbers(x.view()), to_doubles(elements(dtype, 1021, root).view()))
          << name_of(dtype) << " " << root;
    }
  }
}

TEST_F(Nccl, ExchangesBothWaysAtOnce) {
  for (const DType dtype : kAllTypes) {
    const Tensor up = elements_of(dtype, 20011, rank());
    const Tensor down = elements_of(DType::f32, 7, rank() + 10);
    Tensor from_below = filled(dtype, 20011, 99);
    Tensor from_above = filled(DType::f32, 7, 99);

    group().group_begin();
    group().send(ctx(), up.view(), next());
    group().recv(ctx(), from_below.view(), previous());
    group().send(ctx(), down.view(), previous());
    group().recv(ctx(), from_above.view(), next());
    group().wait(ctx(), group().group_end(ctx()));

    EXPECT_EQ(numbers(from_below.view()), to_doubles(elements(dtype, 20011, previous()).view()));
    EXPECT_EQ(numbers(from_above.view()), to_doubles(elements(DType::f32, 7, next() + 10).view()));
  }
}

TEST_F(Nccl, MessagesOfAPairMatchInOrderAndMayBeEmpty) {
  const Tensor first = elements_of(DType::i32, 5, rank());
  const Tensor second = elements_of(DType::i32, 5, rank() + 1);
  const Tensor nothing(Device::cuda, DType::f32, {0});
  Tensor to_nothing(Device::cuda, DType::f32, {0});
  Tensor to_first = filled(DType::i32, 5, 99);
  Tensor to_second = filled(DType::i32, 5, 99);

  group().group_begin();
  group().wait(ctx(), group().group_end(ctx()));
  group().group_begin();
  group().send(ctx(), first.view(), next());
  group().send(ctx(), nothing.view(), next());
  group().send(ctx(), second.view(), next());
  group().recv(ctx(), to_first.view(), previous());
  group().recv(ctx(), to_nothing.view(), previous());
  group().recv(ctx(), to_second.view(), previous());
  group().wait(ctx(), group().group_end(ctx()));

  EXPECT_EQ(numbers(to_first.view()), to_doubles(elements(DType::i32, 5, previous()).view()));
  EXPECT_EQ(numbers(to_second.view()), to_doubles(elements(DType::i32, 5, previous() + 1).view()));
}

// The host never waits between the steps; every step needs what the one before it wrote.
TEST_F(Nccl, IsOrderedWithItsStream) {
  constexpr Dim kLarge = 4 << 20;
  constexpr int kRounds = 8;
  const Tensor ones = filled(DType::f32, kLarge, 1);
  Tensor x = filled(DType::f32, kLarge, 0);
  Tensor beside = filled(DType::f32, kLarge, 0);
  Tensor y = filled(DType::f32, kLarge, 0);

  for (int i = 0; i < kRounds; ++i) {
    copy(ctx(), ones.view(), x.view());
    const Ticket ticket = group().all_reduce(ctx(), x.view(), ReduceOp::sum);
    for (int j = 0; j < kRounds; ++j) copy(ctx(), ones.view(), beside.view());  // runs beside it
    group().wait(ctx(), ticket);
    copy(ctx(), x.view(), y.view());
    group().wait(ctx(), group().all_reduce(ctx(), y.view(), ReduceOp::max));
  }

  const auto values = numbers(y.view());
  EXPECT_EQ(std::ranges::count(values, static_cast<double>(size())), kLarge);
  EXPECT_EQ(numbers(beside.view().slice(kLarge - 1, 1)), std::vector<double>{1});
}

TEST_F(Nccl, ManyOperationsUnderWay) {
  constexpr int kTogether = 60;
  constexpr int kRounds = 40;
  std::vector<Tensor> sources;
  std::vector<Tensor> tensors;
  for (int i = 0; i < kTogether; ++i) {
    sources.push_back(filled(DType::i64, 3, i));
    tensors.push_back(filled(DType::i64, 3, -1));
  }

  for (int round = 0; round < kRounds; ++round) {
    std::vector<Ticket> tickets;
    for (std::size_t i = 0; i < kTogether; ++i) {
      copy(ctx(), sources[i].view(), tensors[i].view());
      tickets.push_back(group().all_reduce(ctx(), tensors[i].view(), ReduceOp::sum));
    }
    std::ranges::reverse(tickets);
    for (const Ticket ticket : tickets) group().wait(ctx(), ticket);
  }

  for (std::size_t i = 0; i < kTogether; ++i) {
    EXPECT_EQ(numbers(tensors[i].view()), std::vector<double>(3, static_cast<double>(i) * size()));
  }
}

// Runs eagerly, is captured, and is replayed, with calls outside of the graph in between.
TEST_F(Nccl, WorksInGraphs) {
  constexpr Dim n = 1021;
  Tensor x = filled(DType::f32, n, 0);
  Tensor full = filled(DType::f32, n * size(), 0);
  Tensor shard = filled(DType::f32, n, 0);
  Tensor neighbour = filled(DType::f32, n, 0);
  GraphSegment segment;
  const auto work = [&] {
    const Ticket sum = group().all_reduce(ctx(), x.view(), ReduceOp::sum);
    group().wait(ctx(), sum);
    const Ticket gather = group().all_gather(ctx(), x.view(), full.view());
    group().wait(ctx(), gather);
    group().wait(ctx(), group().reduce_scatter(ctx(), full.view(), shard.view()));
    group().group_begin();
    group().send(ctx(), shard.view(), next());
    group().recv(ctx(), neighbour.view(), previous());
    group().wait(ctx(), group().group_end(ctx()));
  };
  Tensor outside = filled(DType::f32, n, 0);

  for (int run = 0; run < 6; ++run) {
    copy(ctx(), filled(DType::f32, n, rank() + run).view(), x.view());
    copy(ctx(), filled(DType::f32, n, run).view(), outside.view());
    const Ticket eager = group().all_reduce(ctx(), outside.view(), ReduceOp::sum);
    segment.run(ctx(), true, work);
    group().wait(ctx(), eager);

    const double sum = sum_of_ranks() + run * size();
    EXPECT_EQ(numbers(x.view()), std::vector<double>(n, sum)) << run;
    EXPECT_EQ(numbers(neighbour.view()), std::vector<double>(n, sum * size())) << run;
    EXPECT_EQ(numbers(outside.view()), std::vector<double>(n, run * size())) << run;
  }
}

TEST_F(Nccl, RefusesPiecesOfMemoryThatIsNotShared) {
  Tensor x = filled(DType::f32, size() * 64, 1);
  const View own = x.view().slice(rank() * 64, 64);
  EXPECT_THAT(refusal([&] { (void)group().reduce_scatter_others(ctx(), x.view(), own, 0, 64); }),
              testing::HasSubstr("do not share the memory"));
  EXPECT_THAT(refusal([&] { (void)group().all_gather_piece(ctx(), x.view(), 0, 65); }),
              testing::HasSubstr("piece of 65 elements"));
}

TEST_F(Nccl, RefusesToWaitInAGraphForACallOutsideOfIt) {
  if (size() == 1) GTEST_SKIP() << "a group of one waits for nothing";
  Tensor x = filled(DType::f32, 7, 1);
  GraphSegment segment;
  segment.run(ctx(), true, [] {});
  const Ticket eager = group().all_reduce(ctx(), x.view(), ReduceOp::sum);

  const std::string said =
      refusal([&] { segment.run(ctx(), true, [&] { group().wait(ctx(), eager); }); });

  EXPECT_THAT(said, testing::HasSubstr("not captured into the same graph"));
  group().wait(ctx(), group().all_reduce(ctx(), x.view(), ReduceOp::max));
  EXPECT_EQ(numbers(x.view()), std::vector<double>(7, size()));
}

/// host -> copy stream -> two sums -> copy stream -> host; the compute stream has no part in it.
TEST_F(Nccl, SumsChainOnTheCopyStream) {
  constexpr Dim kSize = 1 << 20;
  PinnedBuffer pinned(Device::cuda, kSize * sizeof(float));
  const View host(pinned.data(), DType::f32, Device::cpu, {kSize});
  std::fill_n(host.data<float>(), kSize, static_cast<float>(rank() + 1));
  Tensor x = filled(DType::f32, kSize, -1000);
  Stream& copies = ctx().copy_stream();

  (void)copy_async(ctx(), host, x.view());
  for (int i = 0; i < 2; ++i) {
    const Ticket sum = group().all_reduce(copies, x.view(), ReduceOp::sum);
    group().wait(ctx(), copies, sum);
  }
  copy(copies, x.view(), host);
  copies.record().wait();

  const double expected = size() * (sum_of_ranks() + size());
  EXPECT_EQ(to_doubles(host), std::vector<double>(kSize, expected));
}

TEST_F(Nccl, ComputationWaitsForASumAfterACopy) {
  Tensor source = filled(DType::f32, 1021, rank() + 1);
  Tensor x = filled(DType::f32, 1021, -1000);

  (void)copy_async(ctx(), source.view(), x.view());
  group().wait(ctx(), group().all_reduce(ctx().copy_stream(), x.view(), ReduceOp::sum));

  EXPECT_EQ(numbers(x.view()), std::vector<double>(1021, sum_of_ranks() + size()));
}

TEST_F(Nccl, SplitsIntoGroupsOfAnyShape) {
  const auto halves = group().split(rank() % 2, -rank(), comm::GroupRole::data);
  const auto all_but_one = group().split(rank() == 0 ? 7 : 3, rank(), comm::GroupRole::tied);
  Tensor in_half = filled(DType::i32, 3, 1 << rank());
  Tensor in_rest = filled(DType::bf16, 5, 1 << rank());

  const Ticket first = halves->all_reduce(ctx(), in_half.view(), ReduceOp::sum);
  const Ticket second = all_but_one->all_reduce(ctx(), in_rest.view(), ReduceOp::sum);
  halves->wait(ctx(), first);
  all_but_one->wait(ctx(), second);
  halves->barrier();

  double half = 0;
  double rest = 0;
  for (int r = 0; r < size(); ++r) {
    if (r % 2 == rank() % 2) half += 1 << r;
    if ((r == 0) == (rank() == 0)) rest += 1 << r;
  }
  EXPECT_EQ(numbers(in_half.view()), std::vector<double>(3, half));
  EXPECT_EQ(numbers(in_rest.view()), std::vector<double>(5, rest));
  EXPECT_EQ(halves->rank(), (size() - 1 - rank()) / 2) << "ordered by key";
  EXPECT_EQ(halves->device(), Device::cuda);
  EXPECT_EQ(all_but_one->size(), rank() == 0 ? 1 : size() - 1);
  EXPECT_THROW((void)group().split(-1, 0, comm::GroupRole::other), Error);
}

TEST_F(Nccl, ReportsTheDeviceTimeOfReductions) {
  Tensor x = filled(DType::f32, 8 << 20, 1);
  GraphSegment segment;
  (void)group().collect_seconds();
  for (int run = 0; run < 3; ++run) {
    const double begin = now_seconds();
    segment.run(ctx(), true,
                [&] { group().wait(ctx(), group().all_reduce(ctx(), x.view(), ReduceOp::max)); });
    synchronize(ctx());
    const double passed = now_seconds() - begin;

    const double seconds = group().collect_seconds();

    EXPECT_GE(seconds, size() > 1 ? 1e-6 : 0) << run;
    EXPECT_LE(seconds, passed) << run;
    EXPECT_EQ(group().collect_seconds(), 0) << run;
  }
  group().report_reductions(false);
  group().wait(ctx(), group().all_reduce(ctx(), x.view(), ReduceOp::max));
  synchronize(ctx());
  group().report_reductions(true);
  EXPECT_EQ(group().collect_seconds(), 0);
}

TEST_F(Nccl, TheDeviceKeepsTheTimeThatIsReportedToTheHost) {
  const std::uint64_t* there = group().device_nanoseconds();
  if (size() == 1) {
    EXPECT_EQ(there, nullptr);
    return;
  }
  const auto kept = [&] {
    std::uint64_t value = 0;
    const CView on_device(there, DType::u8, Device::cuda, {sizeof value});
    std::memcpy(&value, on_cpu(on_device).view().raw(), sizeof value);
    return value;
  };
  Tensor x = filled(DType::f32, 1 << 20, 1);
  (void)group().collect_seconds();
  const std::uint64_t before = kept();

  group().wait(ctx(), group().all_reduce(ctx(), x.view(), ReduceOp::max));
  const std::uint64_t passed = kept() - before;

  EXPECT_GT(passed, 1000U);
  EXPECT_NEAR(group().collect_seconds(), 1e-9 * static_cast<double>(passed), 1e-9);
}

TEST_F(Nccl, ReportsTheDeviceTimeOfEveryOperationIfAskedTo) {
  if (size() == 1) GTEST_SKIP() << "one rank moves nothing";
  Tensor x = filled(DType::f32, 1 << 20, 1);
  Tensor all = filled(DType::f32, (1 << 20) * size(), 0);
  const auto seconds = [&] {
    group().wait(ctx(), group().all_gather(ctx(), x.view(), all.view()));
    group().wait(ctx(), group().broadcast(ctx(), x.view(), 0));
    group().group_begin();
    group().send(ctx(), x.view(), (rank() + 1) % size());
    group().recv(ctx(), all.view().slice(0, 1 << 20), (rank() + size() - 1) % size());
    group().wait(ctx(), group().group_end(ctx()));
    synchronize(ctx());
    return group().collect_seconds();
  };
  (void)seconds();

  EXPECT_EQ(seconds(), 0);
  group().time_operations(true);
  EXPECT_GE(seconds(), 3e-6);
  group().time_operations(false);
  EXPECT_EQ(seconds(), 0);
}

TEST_F(Nccl, EveryRankHasAGpuOfItsOwn) {
  EXPECT_EQ(comm::nccl_version().substr(0, 7), "NCCL 2.");
  EXPECT_FALSE(device_bus_id().empty());
  comm::require_distinct_gpus(world(), device_bus_id());
  comm::require_one_nccl(world());
  group().barrier();
}

}  // namespace
}  // namespace hyperslab::test
