// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "gpu_test.hpp"
#include "hyperslab/core/cuda_check.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab {
namespace {

using namespace hyperslab::test;

class GpuMemory : public GpuTest {};

TEST_F(GpuMemory, TravelsThereAndBack) {
  Context ctx(Device::cuda, 0);
  const Tensor source = random_tensor(DType::f32, {1000, 3}, 1);
  Tensor there(Device::cuda, DType::f32, {1000, 3});
  Tensor beside(Device::cuda, DType::f32, {1000, 3});
  Tensor back = poisoned(DType::f32, {1000, 3});

  copy(ctx, source.view(), there.view());
  copy(ctx, there.view(), beside.view());
  const Tensor cloned = beside.clone();
  copy(ctx, cloned.view(), back.view());
  synchronize(ctx);

  EXPECT_TRUE(same_bits(source.view(), back.view()));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(there.view().raw()) % 256, 0U);
}

TEST_F(GpuMemory, PinnedMemoryIsSeenFromBothSides) {
  Context ctx(Device::cuda, 0);
  PinnedBuffer pinned(Device::cuda, 64 * sizeof(float));
  auto* host = static_cast<float*>(pinned.data());
  EXPECT_EQ(host[63], 0.0F);
  for (int i = 0; i < 64; ++i) host[i] = static_cast<float>(i);
  const View mapped(pinned.device_data(), DType::f32, Device::cuda, {64});
  Tensor other(Device::cuda, DType::f32, {64});

  copy(ctx, mapped, other.view());
  synchronize(ctx);
  for (int i = 0; i < 64; ++i) host[i] = -1;
  copy(ctx, other.view(), mapped);
  synchronize(ctx);

  EXPECT_EQ(host[0], 0.0F);
  EXPECT_EQ(host[63], 63.0F);
  PinnedBuffer moved = std::move(pinned);
  EXPECT_EQ(pinned.data(), nullptr);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(static_cast<float*>(moved.data())[63], 63.0F);
}

TEST_F(GpuMemory, ArenaKnowsTheHighestByteTouched) {
  Context ctx(Device::cuda, 0);
  Arena arena("test", Device::cuda, 1000, true);
  EXPECT_EQ(arena.highest_touched(), 0U);
  const View view = arena.take(DType::u8, {1000}, "bytes");
  const Tensor one = filled_tensor(DType::u8, {1}, 7);

  copy(ctx, one.view(), view.slice(122, 1));
  synchronize(ctx);

  EXPECT_EQ(arena.highest_touched(), 123U);
}

TEST(CudaCheck, NamesWhoCalledAndWhat) {
  EXPECT_NO_THROW(check_cuda(0, "group tensor", "cudaEventRecord"));
  try {
    check_cuda(1, "group tensor", "cudaEventRecord");
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::device);
    EXPECT_THAT(error.what(),
                testing::HasSubstr("group tensor: cudaEventRecord failed: cudaErrorInvalidValue"));
  }
}

TEST(CudaCheck, LogsWhatADestructorMayNotThrow) {
  testing::internal::CaptureStderr();

  log_if_cuda_failed(0, "group tensor", "cudaEventDestroy");
  log_if_cuda_failed(1, "group tensor", "cudaEventDestroy");

  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "group tensor: cudaEventDestroy failed: cudaErrorInvalidValue (invalid argument)\n");
}

TEST_F(GpuMemory, AFullGpuIsAnErrorWithTheNumbers) {
  constexpr std::size_t kTooMuch = std::size_t{1} << 50;
  try {
    const Buffer buffer(Device::cuda, kTooMuch);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::device);
    EXPECT_THAT(error.what(), testing::HasSubstr("1048576.00 GiB were asked for"));
    EXPECT_THAT(error.what(), testing::HasSubstr("free"));
  }
  // The next call does not inherit the failure.
  const Buffer small(Device::cuda, 16);
  EXPECT_NE(small.data(), nullptr);
}

TEST_F(GpuMemory, WorkspaceBeyondThePlanIsAnError) {
  Context ctx(Device::cuda, 100);
  EXPECT_NE(ctx.workspace("op", 100), nullptr);
  EXPECT_THROW(ctx.workspace("op", 101), Error);
  EXPECT_NE(ctx.stream().cuda(), nullptr);
}

TEST_F(GpuMemory, DevicesHaveNamesAndNumbers) {
  EXPECT_FALSE(device_name().empty());
  use_cuda_device(0);
  EXPECT_THROW(use_cuda_device(cuda_device_count()), Error);
  EXPECT_THROW(use_cuda_device(-1), Error);
}

}  // namespace
}  // namespace hyperslab
