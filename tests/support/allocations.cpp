// SPDX-License-Identifier: Apache-2.0
#include "support/allocations.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HS_OWN_ALLOCATOR  // Clang's ThreadSanitizer brings its own allocator: nothing is counted.
#endif
#endif

#ifdef HS_OWN_ALLOCATOR
namespace hyperslab::test {
long allocations() { return 0; }
}  // namespace hyperslab::test
#else

extern "C" void* __libc_memalign(std::size_t alignment, std::size_t bytes);  // NOLINT

namespace {

std::atomic<long> calls = 0;

void* counted(std::size_t bytes) {
  ++calls;
  void* memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  ++calls;
  return std::malloc(bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*bytes*/) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t /*bytes*/) noexcept { std::free(memory); }
extern "C" void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  ++calls;
  return __libc_memalign(alignment, bytes);
}

namespace hyperslab::test {

long allocations() { return calls; }

}  // namespace hyperslab::test
#endif
