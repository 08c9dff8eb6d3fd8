// SPDX-License-Identifier: Apache-2.0
// Rule 1 of the hot path: a step allocates nothing after the first.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "train/small_run.hpp"

extern "C" void* __libc_memalign(std::size_t alignment, std::size_t bytes);  // NOLINT

namespace {

std::atomic<long> allocations = 0;

void* counted(std::size_t bytes) {
  ++allocations;
  void* memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// Every way in which this project comes to memory: operator new for objects and containers,
// aligned_alloc for buffers. Plain malloc is not counted: OpenBLAS takes and returns small buffers
// inside its products.
void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
extern "C" void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  ++allocations;
  return __libc_memalign(alignment, bytes);
}

namespace hyperslab {
namespace {

TEST(Step, TheCountersSeeEveryKindOfAllocation) {
  const long before = allocations;
  { const Tensor aligned(Device::cpu, DType::f32, {1000}); }
  EXPECT_EQ(allocations - before, 1);
  ::operator delete(::operator new(1000));
  EXPECT_EQ(allocations - before, 2);
}

TEST(Step, AllocatesNothingAfterTheFirst) {
  for (const char* family : {"model.family=gpt2", "model.family=llama"}) {
    for (const char* attention : {"model.attention=fused", "model.attention=reference"}) {
      const train::Config config = test::small_config({family, attention, "model.dropout=0.1"}, 1);
      const mesh::Mesh mesh = mesh::Mesh::plan(config.parallel, 0);
      test::SmallRun run(config, mesh, 0);
      run.step(1);

      const long before = allocations;
      for (int step = 2; step <= 5; ++step) run.step(step);

      EXPECT_EQ(allocations - before, 0) << family << " " << attention;
    }
  }
}

}  // namespace
}  // namespace hyperslab
