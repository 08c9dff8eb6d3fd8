// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <algorithm>

#include "gpu_test.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/graph.hpp"
#include "hyperslab/core/profiler.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/ops/kernel_class.hpp"
#include "hyperslab/ops/matmul.hpp"

namespace hyperslab {
namespace {

using namespace hyperslab::test;
using testing::AllOf;
using testing::Ge;
using testing::Gt;
using testing::HasSubstr;
using testing::Le;
using testing::Not;

class GpuProfile : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    const std::string reason = Profiler::unavailable();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

std::int64_t count(const Profiler& profiler, CallKind kind) {
  std::int64_t sum = 0;
  for (const CallCount& call : profiler.calls()) sum += call.kind == kind ? call.calls : 0;
  return sum;
}

TEST_F(GpuProfile, CountsEveryCallOnce) {
  Context ctx(Device::cuda, 0);
  Tensor x(Device::cuda, DType::f32, {1000});
  ops::fill(ctx, 1, x.view());
  synchronize(ctx);
  Profiler profiler(ctx.recorder(), Profiler::Watch::calls);

  profiler.start();
  for (int i = 0; i < 5; ++i) ops::fill(ctx, 1, x.view());
  profiler.stop();
  EXPECT_EQ(count(profiler, CallKind::launch), 5);
  EXPECT_EQ(count(profiler, CallKind::allocation), 0);
  for (const CallCount& call : profiler.calls()) {
    EXPECT_THAT(call.name, Not(HasSubstr("KernelGetName")));  // asked for the profiler alone
  }
  EXPECT_EQ(count(profiler, CallKind::synchronization), 0);

  profiler.start();
  synchronize(ctx);
  { const Tensor other(Device::cuda, DType::f32, {1000}); }
  profiler.stop();
  EXPECT_EQ(count(profiler, CallKind::launch), 0);
  EXPECT_EQ(count(profiler, CallKind::allocation), 2);  // and its release
  EXPECT_EQ(count(profiler, CallKind::synchronization), 1);
}

TEST_F(GpuProfile, AGraphIsOneLaunch) {
  Context ctx(Device::cuda, 0);
  Tensor x(Device::cuda, DType::f32, {1000});
  GraphSegment segment;
  const auto work = [&] {
    for (int i = 0; i < 7; ++i) ops::fill(ctx, static_cast<float>(i), x.view());
  };
  for (int i = 0; i < 3; ++i) segment.run(ctx, true, work);
  Profiler profiler(ctx.recorder(), Profiler::Watch::calls);

  profiler.start();
  for (int i = 0; i < 4; ++i) segment.run(ctx, true, work);
  profiler.stop();

  EXPECT_EQ(count(profiler, CallKind::graph_launch), 4);
  EXPECT_EQ(count(profiler, CallKind::launch), 0);
  EXPECT_EQ(count(profiler, CallKind::allocation), 0);
  synchronize(ctx);
}

TEST_F(GpuProfile, KernelsHaveClassPhaseAndTime) {
  Context ctx(Device::cuda, std::size_t{64} << 20);
  Tensor x(Device::cuda, DType::bf16, {512, 512});
  Tensor y(Device::cuda, DType::bf16, {512, 512});
  const Tensor ones = filled_tensor(DType::bf16, {512, 512}, 1);
  copy(ctx, ones.view(), x.view());
  const auto multiply = [&] {
    ops::matmul(ctx, x.view(), ops::Trans::no, x.view(), ops::Trans::no, ops::Accumulate::no,
                y.view());
  };
  multiply();  // chooses its algorithm
  synchronize(ctx);
  Profiler profiler(ctx.recorder(), Profiler::Watch::calls_and_kernels);

  profiler.start();
  ctx.recorder().begin_step(1, false);
  {
    const Scope forward(ctx.recorder(), Phase::forward);
    for (int i = 0; i < 3; ++i) multiply();
  }
  {
    const Scope backward(ctx.recorder(), Phase::backward);
    for (int i = 0; i < 2; ++i) ops::add(ctx, x.view(), x.view(), y.view());
  }
  synchronize(ctx);
  profiler.stop();

  std::int64_t gemms = 0;
  std::int64_t sums = 0;
  for (const KernelTime& row : profiler.kernels()) {
    EXPECT_THAT(row.seconds, AllOf(Gt(0.0), testing::Lt(0.1))) << row.name;
    if (ops::class_of_kernel(row.name) == ops::KernelClass::matmul) {
      EXPECT_EQ(row.phase, Phase::forward) << row.name;
      gemms += row.calls;
    }
    if (row.name.starts_with("each_kernel")) {
      EXPECT_EQ(row.phase, Phase::backward) << row.name;
      EXPECT_EQ(ops::class_of_kernel(row.name), ops::KernelClass::elementwise);
      sums += row.calls;
    }
  }
  EXPECT_THAT(gemms, Ge(3));  // a GEMM may be two kernels
  EXPECT_EQ(sums, 2);
}

TEST_F(GpuProfile, TheTimelineLiesInTheStepAndNamesStreams) {
  Context ctx(Device::cuda, std::size_t{64} << 20);
  Tensor x(Device::cuda, DType::f32, {1 << 20});
  const PinnedBuffer host(Device::cuda, std::size_t{4} << 20);
  const View on_host(host.data(), DType::f32, Device::cpu, {1 << 20});
  ops::fill(ctx, 1, x.view());
  (void)copy_async(ctx, x.view(), on_host);
  synchronize(ctx);
  Profiler profiler(ctx.recorder(), Profiler::Watch::timeline, ops::is_communication);
  profiler.name_stream(ctx.stream(), "compute");
  profiler.name_stream(ctx.copy_stream(), "copy");

  const double begin = now_seconds();
  profiler.start();
  ctx.recorder().begin_step(1, true);
  ctx.recorder().set_microbatch(2);
  {
    const Scope backward(ctx.recorder(), Phase::backward);
    ops::add(ctx, x.view(), x.view(), x.view());
    copy_async(ctx, x.view(), on_host).wait();
  }
  synchronize(ctx);
  const double end = now_seconds();
  profiler.stop();

  const std::vector<DeviceEvent> events = profiler.events();
  const auto sum = std::ranges::find_if(
      events, [](const DeviceEvent& event) { return event.name.starts_with("each_kernel"); });
  const auto copied = std::ranges::find(events, "copy device to host", &DeviceEvent::name);
  ASSERT_NE(sum, events.end());
  ASSERT_NE(copied, events.end());
  EXPECT_EQ(sum->stream, "compute");
  EXPECT_EQ(copied->stream, "copy");
  EXPECT_EQ(copied->bytes, std::int64_t{4} << 20);
  constexpr double kBetweenClocks = 50e-6;
  for (const auto& event : {*sum, *copied}) {
    EXPECT_EQ(event.phase, Phase::backward) << event.name;
    EXPECT_EQ(event.microbatch, 2) << event.name;
    EXPECT_EQ(event.operation, -1) << event.name;
    EXPECT_GT(event.begin_seconds, begin - kBetweenClocks) << event.name;
    EXPECT_LT(event.end_seconds, end + kBetweenClocks) << event.name;
    EXPECT_GT(event.end_seconds, event.begin_seconds) << event.name;
  }
  EXPECT_GE(copied->begin_seconds, sum->end_seconds - kBetweenClocks) << "the copy waits for it";
}

TEST_F(GpuProfile, EventsAgreeWithTheHost) {
  Context ctx(Device::cuda, 0);
  Tensor x(Device::cuda, DType::f32, {Dim{1} << 26});
  ops::fill(ctx, 1, x.view());
  synchronize(ctx);
  EventTimer timer(ctx, 1);

  const double start = now_seconds();
  timer.begin();
  for (int i = 0; i < 50; ++i) ops::fill(ctx, 1, x.view());
  timer.end();
  const std::vector<double> seconds = timer.seconds();
  const double host = now_seconds() - start;

  ASSERT_EQ(seconds.size(), 1U);
  EXPECT_GT(seconds[0], 0.5 * host);
  EXPECT_LE(seconds[0], host);
}

TEST_F(GpuProfile, OnlyOneAtATime) {
  Context ctx(Device::cuda, 0);
  const Profiler one(ctx.recorder(), Profiler::Watch::calls);

  EXPECT_THROW(Profiler(ctx.recorder(), Profiler::Watch::calls), Error);
}

TEST_F(GpuProfile, MemoryInUseGrowsByWhatIsTaken) {
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  constexpr std::size_t kPages = std::size_t{4} << 20;
  const DeviceMemory before = device_memory(Device::cuda);
  const Buffer buffer(Device::cuda, kBytes);
  const DeviceMemory after = device_memory(Device::cuda);

  EXPECT_EQ(before.total, after.total);
  // The driver takes whole pages of 2 MiB.
  ASSERT_GE(before.free, after.free);
  EXPECT_THAT(before.free - after.free, AllOf(Ge(kBytes), Le(kBytes + kPages)));
}

}  // namespace
}  // namespace hyperslab
