// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/gemm_buffers.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "cpu/gemm.hpp"
#include "hyperslab/core/address_space.hpp"
#include "hyperslab/core/error.hpp"

// OpenBLAS's own, which other libraries and some of its builds do not have.
extern "C" {
[[gnu::weak]] void* blas_memory_alloc(int position);
[[gnu::weak]] void blas_memory_free(void* buffer);
}

namespace hyperslab::ops {
namespace {

constexpr std::size_t kStackBytes = std::size_t{8} << 20;  // stack of a thread

/// Large enough for all threads: OpenBLAS makes them, and a buffer for each that it keeps.
void multiply_on_all_threads() {
  constexpr Dim kSize = 256;
  const std::vector<float> ones(kSize * kSize, 1.0F);
  std::vector<float> product(kSize * kSize);
  const cpu::Operand<float> operand{ones.data(), kSize};
  cpu::gemm<float>({kSize, kSize, kSize}, 1.0F, operand, operand, {product.data(), kSize, 0.0F});
}

/// The buffers of products that each thread computes alone, at once.
void take_buffers(int count) {
  if (blas_memory_alloc == nullptr || blas_memory_free == nullptr) return;
  std::vector<void*> buffers;
  buffers.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) buffers.push_back(blas_memory_alloc(0));
  for (void* const buffer : buffers) blas_memory_free(buffer);
}

}  // namespace

void reserve_gemm_buffers(int threads) {
  const std::optional<AddressSpace> space = address_space();
  if (!space || threads < 1) return;
  const auto count = static_cast<std::size_t>(threads);
  const auto before_main = static_cast<std::size_t>(std::max(openblas_get_num_threads(), 0));
  const std::size_t buffers = 2 * count - std::min(before_main, count);
  const std::size_t needed = buffers * kGemmBufferBytes + count * kStackBytes;
  if (space->left_bytes < needed) {
    throw Error(ExitCode::device, address_space_shortage(*space, needed, threads));
  }
  multiply_on_all_threads();
  take_buffers(threads);
}

}  // namespace hyperslab::ops
