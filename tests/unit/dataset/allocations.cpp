// SPDX-License-Identifier: Apache-2.0
#include "unit/dataset/allocations.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<long> calls = 0;

}  // namespace

void* operator new(std::size_t bytes) {
  ++calls;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  ++calls;
  return std::malloc(bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*bytes*/) noexcept { std::free(memory); }

namespace hyperslab::test {

long allocations() { return calls; }

}  // namespace hyperslab::test
