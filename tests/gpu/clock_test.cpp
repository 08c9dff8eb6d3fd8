// SPDX-License-Identifier: Apache-2.0
// The clock of a step on the device: charges of phases, and what other clocks counted meanwhile.
#include "hyperslab/ops/clock.hpp"

#include "gpu_test.hpp"
#include "hyperslab/ops/optimizer.hpp"

namespace hyperslab {
namespace {

using namespace hyperslab::test;
using ops::ClockReading;
using ops::DeviceClock;

class GpuClock : public GpuTest {
 protected:
  [[nodiscard]] Tensor on_gpu(const Tensor& host) {
    Tensor out(Device::cuda, host.view().dtype(), host.view().shape());
    copy(ctx_, host.view(), out.view());
    return out;
  }
  void set(Tensor& counter, std::uint64_t value) {
    copy(ctx_, bytes_of(value).view(), counter.view());
    synchronize(ctx_);
  }
  ClockReading publish(Tensor& clock, std::int64_t step) {
    ops::StepState state;
    state.input.step = step;
    Tensor there = on_gpu(bytes_of(state));
    ops::publish_clock(ctx_, struct_at<DeviceClock>(clock.view()),
                       struct_at<ops::StepState>(there.view()),
                       static_cast<ClockReading*>(readings_.device_data()));
    synchronize(ctx_);
    return static_cast<const ClockReading*>(readings_.data())[step % ops::kResultRing];
  }

  Context ctx_{cuda_device_count() > 0 ? Device::cuda : Device::cpu, 0};
  PinnedBuffer readings_{ctx_.device(), sizeof(ClockReading) * ops::kResultRing};
};

TEST_F(GpuClock, ReportsWhatOtherClocksCountedInTheStep) {
  Tensor first = on_gpu(bytes_of(std::uint64_t{1000}));
  Tensor second = on_gpu(bytes_of(std::uint64_t{70}));
  DeviceClock fresh;
  fresh.counters = {struct_at<std::uint64_t>(first.view()),
                    struct_at<std::uint64_t>(second.view())};
  Tensor clock = on_gpu(bytes_of(fresh));
  auto* device_clock = struct_at<DeviceClock>(clock.view());

  ops::mark_clock(ctx_, device_clock, -1);  // forgets what was counted before
  set(first, 1500);
  ops::mark_clock(ctx_, device_clock, static_cast<int>(Phase::wait));
  set(second, 73);
  const ClockReading one = publish(clock, 5);
  set(first, 1501);
  const ClockReading two = publish(clock, 6);

  EXPECT_EQ(one.step, 5);
  EXPECT_EQ(one.counters_ns, 503U);
  EXPECT_GT(one.ns[static_cast<std::size_t>(Phase::wait)], 0U);
  EXPECT_EQ(one.ns[static_cast<std::size_t>(Phase::checkpoint)], 0U);
  EXPECT_EQ(two.counters_ns, 1U);
  EXPECT_EQ(two.ns[static_cast<std::size_t>(Phase::wait)], 0U);
}

TEST_F(GpuClock, WithoutOtherClocksThereIsNothingToReport) {
  Tensor clock = on_gpu(bytes_of(DeviceClock()));
  ops::mark_clock(ctx_, struct_at<DeviceClock>(clock.view()), -1);

  EXPECT_EQ(publish(clock, 1).counters_ns, 0U);
}

}  // namespace
}  // namespace hyperslab
