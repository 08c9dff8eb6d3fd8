// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/profiler.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <utility>

#include "hyperslab/core/arena.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab {
namespace {

using testing::Each;
using testing::Gt;
using testing::HasSubstr;

TEST(CallKind, GoesByTheNameOfTheFunction) {
  for (const char* name : {"cudaMalloc_v3020", "cudaMallocAsync", "cudaHostAlloc", "cudaFree",
                           "cuMemAlloc_v2", "cuMemCreate", "cudaGraphInstantiate_v12000"}) {
    EXPECT_EQ(kind_of_call(name), CallKind::allocation) << name;
  }
  for (const char* name :
       {"cudaStreamSynchronize_ptsz", "cudaDeviceSynchronize", "cuEventSynchronize",
        "cuCtxSynchronize", "cudaMemcpy", "cuMemcpyDtoH_v2", "cudaMemset_v3020"}) {
    EXPECT_EQ(kind_of_call(name), CallKind::synchronization) << name;
  }
  for (const char* name :
       {"cudaLaunchKernel_v7000", "__cudaLaunchKernel_v13000", "cudaLaunchKernelExC_v11060",
        "cuLaunchKernelEx", "cudaLaunchCooperativeKernel"}) {
    EXPECT_EQ(kind_of_call(name), CallKind::launch) << name;
  }
  EXPECT_EQ(kind_of_call("cudaGraphLaunch_v10000"), CallKind::graph_launch);
  for (const char* name :
       {"cudaMemcpyAsync_v3020", "cuMemcpyHtoDAsync_v2", "cudaMemsetAsync", "cudaEventRecord",
        "cudaStreamWaitEvent", "cudaEventQuery", "cudaGetLastError", "cudaStreamIsCapturing"}) {
    EXPECT_EQ(kind_of_call(name), CallKind::other) << name;
  }
}

TEST(KernelNames, AreThoseOfTheSource) {
  EXPECT_EQ(readable_kernel("void hyperslab::ops::cuda::(anonymous namespace)::each_kernel<4, "
                            "hyperslab::ops::cuda::(anonymous namespace)::Update<float> "
                            ">(hyperslab::ops::cuda::(anonymous namespace)::Update<float>, long)"),
            "each_kernel<4, Update<float> >");
  EXPECT_EQ(
      readable_kernel("_ZN9hyperslab3ops4cuda12_GLOBAL__N_111mark_kernelEPNS0_11DeviceClockEi"),
      "mark_kernel");
  EXPECT_EQ(readable_kernel("void hyperslab::comm::(anonymous namespace)::begin(unsigned long*)"),
            "begin");
  EXPECT_EQ(readable_kernel("sm90_xmma_gemm_bf16"), "sm90_xmma_gemm_bf16");
}

TEST(CommunicationTime, IsExposedWhileNothingElseRuns) {
  constexpr bool kCommunicates = true;
  const auto seconds = [](std::vector<KernelSpan> spans) {
    const auto [busy, exposed] = communication_time(std::move(spans));
    return std::pair(std::lround(1e9 * busy), std::lround(1e9 * exposed));
  };
  const KernelSpan sum = {10, 30, kCommunicates};

  EXPECT_EQ(seconds({}), std::pair(0L, 0L));
  EXPECT_EQ(seconds({{10, 30, false}}), std::pair(0L, 0L));
  EXPECT_EQ(seconds({sum}), std::pair(20L, 20L));
  EXPECT_EQ(seconds({{30, 40, false}, sum, {0, 10, false}}), std::pair(20L, 20L));
  EXPECT_EQ(seconds({sum, {5, 12, false}}), std::pair(20L, 18L));
  EXPECT_EQ(seconds({sum, {25, 40, false}}), std::pair(20L, 15L));
  EXPECT_EQ(seconds({sum, {12, 14, false}, {13, 16, false}}), std::pair(20L, 16L));
  EXPECT_EQ(seconds({sum, {0, 100, false}}), std::pair(20L, 0L));
  EXPECT_EQ(seconds({sum, {20, 40, kCommunicates}, {35, 50, false}}), std::pair(30L, 25L));
  EXPECT_EQ(seconds({sum, {12, 20, kCommunicates}, {15, 25, false}}), std::pair(20L, 10L));
  EXPECT_EQ(seconds({sum, {35, 40, kCommunicates}}), std::pair(30L, 30L)) << "waits from 30 on";
  EXPECT_EQ(seconds({sum, {28, 33, false}, {35, 40, kCommunicates}}), std::pair(27L, 25L));
  EXPECT_EQ(seconds({{1, 5, false}, sum}), std::pair(25L, 25L));
  EXPECT_EQ(seconds({sum, {40, 50, false}}), std::pair(20L, 20L)) << "idle before a product";
}

TEST(OwnTime, BeginsWhereTheKernelBeforeEnds) {
  OwnTime time;

  EXPECT_EQ(time.begin_ns(7, 10, 30), 10U);
  EXPECT_EQ(time.begin_ns(7, 12, 35), 30U);  // waited beside it
  EXPECT_EQ(time.begin_ns(7, 13, 35), 35U);  // and this one had nothing to do
  EXPECT_EQ(time.begin_ns(7, 40, 50), 40U);
  EXPECT_EQ(time.begin_ns(9, 12, 35), 12U);  // another stream
  EXPECT_EQ(time.begin_ns(7, 20, 45), 20U);  // came late
  EXPECT_EQ(time.begin_ns(7, 45, 60), 50U);
}

TEST(Profiler, SaysWhyThereIsNone) {
  if (Profiler::unavailable().empty()) GTEST_SKIP() << "CUPTI is here";
  const Recorder recorder;
  try {
    const Profiler profiler(recorder, Profiler::Watch::calls);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::device);
    EXPECT_THAT(error.what(), HasSubstr("CUPTI"));
  }
}

TEST(EventTimer, TimesEveryInterval) {
  Context ctx(Device::cpu);
  EventTimer timer(ctx, 2);
  for (int i = 0; i < 2; ++i) {
    timer.begin();
    const double end = now_seconds() + 0.002;
    while (now_seconds() < end) {
    }
    timer.end();
  }

  const std::vector<double> seconds = timer.seconds();

  ASSERT_EQ(seconds.size(), 2U);
  EXPECT_THAT(seconds, Each(Gt(0.0019)));
  EXPECT_THROW(timer.begin(), Error);
}

TEST(OutOfMemory, NamesTheArenaTheBytesAndWhatIsFree) {
  constexpr std::size_t kTooMuch = std::size_t{1} << 60;
  try {
    const Arena arena("activations", Device::cpu, kTooMuch);
    FAIL() << "nothing was thrown";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.code(), ExitCode::device);
    EXPECT_THAT(error.facts(), HasSubstr("1073741824.00 GiB were asked for"));
    EXPECT_THAT(error.facts(), HasSubstr("(activations)"));
    EXPECT_THAT(error.facts(), HasSubstr(" are free"));
  }
  EXPECT_GT(device_memory(Device::cpu).total, device_memory(Device::cpu).free);
}

TEST(OpProfiler, TimesOpsByNameAndPhase) {
  Recorder recorder;
  OpProfiler profiler(recorder);
  EXPECT_EQ(recorder.op_observer(), &profiler);
  const auto run = [&](std::string_view op, double seconds) {
    profiler.begin(op);
    const double end = now_seconds() + seconds;
    while (now_seconds() < end) {
    }
    profiler.end();
  };
  recorder.begin_step(1, false);
  run("matmul", 0);  // before the start
  profiler.start();
  {
    const Scope forward(recorder, Phase::forward);
    run("matmul", 0.004);
    run("matmul", 0.002);
    run("add", 0);
  }
  {
    const Scope backward(recorder, Phase::backward);
    run("matmul", 0.001);
  }
  profiler.end();  // of an op that did not begin
  profiler.stop();
  run("matmul", 0);

  const std::vector<KernelTime> ops = profiler.ops();
  ASSERT_EQ(ops.size(), 3U);
  EXPECT_EQ(ops[0].name, "matmul");
  EXPECT_EQ(ops[0].phase, Phase::forward);
  EXPECT_EQ(ops[0].calls, 2);
  ASSERT_EQ(ops[0].call_seconds.size(), 2U);
  EXPECT_GE(ops[0].call_seconds[0], 0.004);
  EXPECT_GE(ops[0].call_seconds[1], 0.002);
  EXPECT_DOUBLE_EQ(ops[0].seconds, ops[0].call_seconds[0] + ops[0].call_seconds[1]);
  EXPECT_EQ(ops[1].phase, Phase::backward);
  EXPECT_EQ(ops[2].name, "add");
}

}  // namespace
}  // namespace hyperslab
