// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <functional>

#include "nccl_group.hpp"

// All-reduce through a Communicator beside plain ncclAllReduce in the same process, in turns: from
// a stream of its own, as whoever overlaps it with other work issues it.
namespace hyperslab::test {
namespace {

constexpr int kRounds = 9;
constexpr int kCalls = 10;
constexpr double kLeastShare = 0.95;

/// A communicator with all of NCCL's own defaults.
class PlainNccl {
 public:
  PlainNccl() {
    ncclUniqueId id{};
    if (world().rank() == 0) {
      EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    }
    const std::string text = world().broadcast(std::string(id.internal, sizeof id.internal));
    std::memcpy(id.internal, text.data(), sizeof id.internal);
    EXPECT_EQ(ncclCommInitRank(&comm_, world().size(), id, world().rank()), ncclSuccess);
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaEventCreateWithFlags(&begin_, cudaEventDisableTiming), cudaSuccess);
    EXPECT_EQ(cudaEventCreateWithFlags(&end_, cudaEventDisableTiming), cudaSuccess);
  }
  ~PlainNccl() {
    ncclCommDestroy(comm_);
    (void)cudaEventDestroy(end_);
    (void)cudaEventDestroy(begin_);
    (void)cudaStreamDestroy(stream_);
  }
  PlainNccl(const PlainNccl&) = delete;
  PlainNccl& operator=(const PlainNccl&) = delete;
  PlainNccl(PlainNccl&&) = delete;
  PlainNccl& operator=(PlainNccl&&) = delete;

  /// In the stream of the context.
  void all_reduce(Context& ctx, View x) { issue(x, ctx.stream().cuda()); }
  /// Beside the stream of the context, which waits for it.
  void all_reduce_beside(Context& ctx, View x) {
    ASSERT_EQ(cudaEventRecord(begin_, ctx.stream().cuda()), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(stream_, begin_, 0), cudaSuccess);
    issue(x, stream_);
    ASSERT_EQ(cudaEventRecord(end_, stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(ctx.stream().cuda(), end_, 0), cudaSuccess);
  }

 private:
  void issue(View x, cudaStream_t stream) {
    ASSERT_EQ(ncclAllReduce(x.raw(), x.raw(), static_cast<std::size_t>(x.numel()), ncclFloat32,
                            ncclSum, comm_, stream),
              ncclSuccess);
  }

  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

class NcclBandwidth : public NcclGroup {
 protected:
  static void SetUpTestSuite() {
    NcclGroup::SetUpTestSuite();
    (void)cudaEventCreate(&begin_event);
    (void)cudaEventCreate(&end_event);
  }

  /// Device seconds of one call, the slowest rank's.
  static double seconds(const std::function<void()>& call) {
    group().barrier();
    EXPECT_EQ(cudaEventRecord(begin_event, ctx().stream().cuda()), cudaSuccess);
    for (int i = 0; i < kCalls; ++i) call();
    EXPECT_EQ(cudaEventRecord(end_event, ctx().stream().cuda()), cudaSuccess);
    EXPECT_EQ(cudaEventSynchronize(end_event), cudaSuccess);
    float milliseconds = 0;
    EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin_event, end_event), cudaSuccess);
    constexpr double kNanoseconds = 1e6;
    return static_cast<double>(
               world().max(static_cast<std::int64_t>(milliseconds * kNanoseconds))) *
           1e-9 / kCalls;
  }
  /// Bytes a link carries per second: all-reduce moves 2 (n - 1) / n of the buffer.
  static double bus_bandwidth(std::size_t bytes, double call_seconds) {
    return static_cast<double>(bytes) * 2 * (size() - 1) / size() / call_seconds;
  }
  /// Of all rounds but the first, which connects.
  static double median(std::vector<double>& times) {
    std::sort(times.begin() + 1, times.end());
    return times[1 + times.size() / 2];
  }

 private:
  static inline cudaEvent_t begin_event = nullptr;
  static inline cudaEvent_t end_event = nullptr;
};

TEST_F(NcclBandwidth, IsThatOfPlainNccl) {
  if (size() == 1) GTEST_SKIP() << "one rank moves nothing";
  PlainNccl plain;
  group().report_reductions(false);  // as the mesh's tensor group, which has no marks
  const auto data = group().split(0, rank(), comm::GroupRole::data);
  constexpr std::array<Dim, 3> kMebibytes = {16, 64, 256};
  for (const Dim mebibytes : kMebibytes) {
    Tensor x = filled(DType::f32, (mebibytes << 20) / 4, 0);
    const auto through = [&](comm::Communicator& comm) {
      return [&] { comm.wait(ctx(), comm.all_reduce(ctx(), x.view(), comm::ReduceOp::sum)); };
    };
    std::vector<double> raw_seconds;
    std::vector<double> plain_seconds;
    std::vector<double> our_seconds;
    std::vector<double> data_seconds;
    for (int round = 0; round < kRounds; ++round) {
      raw_seconds.push_back(seconds([&] { plain.all_reduce(ctx(), x.view()); }));
      plain_seconds.push_back(seconds([&] { plain.all_reduce_beside(ctx(), x.view()); }));
      our_seconds.push_back(seconds(through(group())));
      data_seconds.push_back(seconds(through(*data)));
    }
    const auto rate = [&](std::vector<double>& times) {
      return bus_bandwidth(x.view().bytes(), median(times));
    };
    const double raw_rate = rate(raw_seconds);
    const double plain_rate = rate(plain_seconds);
    const double our_rate = rate(our_seconds);
    const double data_rate = rate(data_seconds);
    if (world().rank() == 0) {
      std::printf(
          "all_reduce of %ld MiB f32 over %d: plain NCCL %.1f GB/s (%.1f in the stream of its "
          "data), tensor %.1f (%.3f), data %.1f (%.3f)\n",
          static_cast<long>(mebibytes), size(), plain_rate * 1e-9, raw_rate * 1e-9, our_rate * 1e-9,
          our_rate / plain_rate, data_rate * 1e-9, data_rate / plain_rate);
    }

    EXPECT_GE(our_rate, kLeastShare * plain_rate) << mebibytes << " MiB";
  }
}

}  // namespace
}  // namespace hyperslab::test
