// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/stream.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "gpu_test.hpp"
#include "hyperslab/ops/elementwise.hpp"

namespace hyperslab {
namespace {

using namespace hyperslab::test;

/// A context with work that keeps its compute stream busy for about a tenth of a second.
class GpuStream : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    ctx_.emplace(Device::cuda, 0);
    large_ = Tensor(Device::cuda, DType::f32, {Dim{64} << 20});
  }
  Context& ctx() { return *ctx_; }
  void keep_busy() {
    constexpr int kFills = 1000;
    for (int i = 0; i < kFills; ++i) ops::fill(ctx(), 1, large_.view());
  }
  /// Pinned memory as a view of the host.
  static View on_host(PinnedBuffer& buffer, Dim size) {
    return {buffer.data(), DType::f32, Device::cpu, {size}};
  }

 private:
  std::optional<Context> ctx_;
  Tensor large_;
};

TEST_F(GpuStream, CopiesBesideComputation) {
  constexpr Dim kSize = 1 << 20;
  PinnedBuffer pinned(Device::cuda, kSize * sizeof(float));
  Tensor x(Device::cuda, DType::f32, {kSize});
  ops::fill(ctx(), 3, x.view());

  const Event copied = copy_async(ctx(), x.view(), on_host(pinned, kSize));
  keep_busy();
  const Event computed = ctx().stream().record();
  copied.wait();
  const bool beside = !computed.is_complete();
  computed.wait();

  EXPECT_TRUE(beside) << "the copy was done while the GPU computed";
  EXPECT_TRUE(computed.is_complete());
  EXPECT_EQ(to_doubles(on_host(pinned, kSize)), std::vector<double>(kSize, 3));
}

TEST_F(GpuStream, ACopyStartsAfterTheWorkBeforeIt) {
  PinnedBuffer pinned(Device::cuda, 8 * sizeof(float));
  Tensor x(Device::cuda, DType::f32, {8});
  ops::fill(ctx(), -1, x.view());
  keep_busy();
  ops::fill(ctx(), 5, x.view());

  copy_async(ctx(), x.view(), on_host(pinned, 8)).wait();

  EXPECT_EQ(to_doubles(on_host(pinned, 8)), std::vector<double>(8, 5));
}

TEST_F(GpuStream, ComputationWaitsForACopy) {
  constexpr Dim kSize = Dim{16} << 20;
  PinnedBuffer pinned(Device::cuda, kSize * sizeof(float));
  PinnedBuffer back(Device::cuda, kSize * sizeof(float));
  Tensor x(Device::cuda, DType::f32, {kSize});
  Tensor y(Device::cuda, DType::f32, {kSize});
  std::fill_n(on_host(pinned, kSize).data<float>(), kSize, 7.0F);
  ops::fill(ctx(), -1, x.view());

  const Event copied = copy_async(ctx(), on_host(pinned, kSize), x.view());
  ctx().stream().wait(copied);
  copy(ctx(), x.view(), y.view());
  copy(ctx(), y.view(), on_host(back, kSize));
  synchronize(ctx());

  EXPECT_TRUE(copied.is_complete());
  EXPECT_EQ(to_doubles(on_host(back, kSize)), std::vector<double>(kSize, 7));
}

TEST_F(GpuStream, WaitsForWorkOfTheHost) {
  Stream host(Device::cpu, HostWork::by_thread);
  std::atomic<bool> done = false;
  host.run([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    done = true;
  });

  ctx().stream().wait(host.record());

  EXPECT_TRUE(done) << "a CUDA stream lets the caller wait for the host";
  keep_busy();
  const Event computed = ctx().stream().record();
  host.wait(computed);
  host.record().wait();
  EXPECT_TRUE(computed.is_complete()) << "a thread of the host waits for the GPU";
}

}  // namespace
}  // namespace hyperslab
