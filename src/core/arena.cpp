// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/arena.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <string>
#include <utility>

#include "cuda.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/philox.hpp"
#include "hyperslab/core/profiler.hpp"
#include "hyperslab/core/round_up.hpp"

namespace hyperslab {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kMostBytes = std::size_t{1} << 62;  // largest arena: sums stay exact
constexpr unsigned char kCanary = 0xA5;
constexpr std::size_t kGuardBytes = 65536;
constexpr std::size_t kReadBytes = 1U << 24;  // part of an arena that is read at once

void* allocate_on_host(std::size_t bytes) {
  void* memory = std::aligned_alloc(kPage, round_up(bytes, kPage));
  if (memory == nullptr) throw OutOfMemory("", bytes, device_memory(Device::cpu).free);
  return memory;
}

/// "1.50 GiB"; small counts in bytes.
std::string readable_bytes(std::size_t bytes) {
  constexpr double kGibibyte = 1073741824.0;
  const double gibibytes = static_cast<double>(bytes) / kGibibyte;
  if (gibibytes < 0.1) return std::to_string(bytes) + " bytes";
  std::array<char, 48> text{};
  (void)std::snprintf(text.data(), text.size(), "%.2f GiB", gibibytes);
  return text.data();
}

std::string facts_of(const std::string& where, std::size_t asked, std::size_t free,
                     const std::string& arena) {
  return "out of memory" + (where.empty() ? "" : " " + where) + ": " + readable_bytes(asked) +
         " were asked for" + (arena.empty() ? "" : " (" + arena + ")") + ", " +
         readable_bytes(free) + " are free";
}

/// The memory of an arena; if it runs out, the error names the arena.
Buffer buffer_of(const std::string& arena, Device device, std::size_t bytes, Home home) {
  try {
    return {device, bytes, home};
  } catch (const OutOfMemory& error) {
    throw error.in_arena(arena);
  }
}

void require_cuda_in_build() {
  if constexpr (!kHasCuda) {
    throw Error(ExitCode::device,
                "memory of a GPU was asked for, but this build has no CUDA; configure with "
                "-DHYPERSLAB_CUDA=ON or set run.device: cpu");
  }
}

/// Copies from memory of the device to memory of the device or the host.
void copy_from(Device device, void* to, const void* from, std::size_t bytes) {
  if constexpr (kHasCuda) {
    if (device == Device::cuda) return cuda_runtime::copy_blocking(to, from, bytes);
  }
  require(device == Device::cpu, "there is no memory to read on that device");
  std::memcpy(to, from, bytes);
}

void fill_with_canary(const Buffer& buffer) {
  if (buffer.device() == Device::meta) return;
  if constexpr (kHasCuda) {
    if (buffer.device() == Device::cuda) {
      return cuda_runtime::fill_blocking(buffer.data(), kCanary, buffer.bytes());
    }
  }
  std::memset(buffer.data(), kCanary, buffer.bytes());
}

/// The address at which an arena begins. On `meta` there is no memory, and addresses are numbers:
/// arenas lie far apart, so that views of two arenas do not seem to be the same.
std::uintptr_t base_of(const Buffer& buffer, const std::string& arena) {
  if (buffer.device() != Device::meta) return reinterpret_cast<std::uintptr_t>(buffer.data());
  constexpr int kLog2Apart = 44;
  return (name_hash(arena) % (1U << 18U) + 1) << kLog2Apart;
}

/// A GPU frees memory only when its kernels have ended, and a kernel of NCCL may wait for a peer
/// that is lost. While an error is on its way out the memory goes with the process.
[[maybe_unused]] bool leaves_to_process() { return std::uncaught_exceptions() > 0; }

}  // namespace

OutOfMemory::OutOfMemory(const std::string& where, std::size_t asked_bytes, std::size_t free_bytes,
                         const std::string& arena)
    : Error(ExitCode::device, facts_of(where, asked_bytes, free_bytes, arena) +
                                  "; reduce train.microbatch or model.context, set "
                                  "memory.recompute, or use more ranks"),
      where_(where),
      asked_bytes_(asked_bytes),
      free_bytes_(free_bytes),
      facts_(facts_of(where, asked_bytes, free_bytes, arena)) {}

Buffer::Buffer(Device device, std::size_t bytes, Home home)
    : bytes_(bytes), device_(device), home_(home) {
  if (device == Device::meta || bytes == 0) return;
  if (device == Device::cuda) {
    require_cuda_in_build();
    if constexpr (kHasCuda) {
      data_ =
          home == Home::host ? cuda_runtime::allocate_pinned(bytes) : cuda_runtime::allocate(bytes);
    }
    return;
  }
  data_ = allocate_on_host(bytes);
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      device_(other.device_),
      home_(other.home_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    release();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    device_ = other.device_;
    home_ = other.home_;
  }
  return *this;
}

Buffer::~Buffer() { release(); }

void Buffer::release() noexcept {
  if (data_ == nullptr) return;
  if (device_ != Device::cuda) return std::free(data_);
  if constexpr (kHasCuda) {
    if (leaves_to_process()) return;
    home_ == Home::host ? cuda_runtime::release_pinned(data_) : cuda_runtime::release(data_);
  }
}

PinnedBuffer::PinnedBuffer(Device device, std::size_t bytes) : bytes_(bytes), device_(device) {
  if (device == Device::meta || bytes == 0) return;
  if (device == Device::cuda) {
    require_cuda_in_build();
    if constexpr (kHasCuda) {
      data_ = cuda_runtime::allocate_pinned(bytes);
      device_data_ = cuda_runtime::device_address(data_);
    }
  } else {
    data_ = allocate_on_host(bytes);
    device_data_ = data_;
  }
  std::memset(data_, 0, bytes);
}

PinnedBuffer::PinnedBuffer(PinnedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      device_data_(std::exchange(other.device_data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      device_(other.device_) {}

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  if (this != &other) {
    release();
    data_ = std::exchange(other.data_, nullptr);
    device_data_ = std::exchange(other.device_data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    device_ = other.device_;
  }
  return *this;
}

PinnedBuffer::~PinnedBuffer() { release(); }

void PinnedBuffer::release() noexcept {
  if (data_ == nullptr) return;
  if (device_ != Device::cuda) return std::free(data_);
  if constexpr (kHasCuda) {
    if (!leaves_to_process()) cuda_runtime::release_pinned(data_);
  }
}

Tensor::Tensor(Device device, DType dtype, Shape shape)
    : buffer_(device, static_cast<std::size_t>(shape.numel()) * size_of(dtype)),
      view_(buffer_.data(), dtype, device, shape) {}

Tensor Tensor::clone() const {
  Tensor copy(view_.device(), view_.dtype(), view_.shape());
  if (view_.device() != Device::meta && view_.bytes() > 0) {
    copy_from(view_.device(), copy.view_.raw(), view_.raw(), view_.bytes());
  }
  return copy;
}

Arena::Arena(std::string name)
    : name_(std::move(name)),
      buffer_(Device::meta, 0),
      capacity_(std::numeric_limits<std::size_t>::max()) {}

Arena::Arena(std::string name, Device device, std::size_t capacity_bytes, bool canary, Home home)
    : name_(std::move(name)),
      buffer_(buffer_of(name_, device, capacity_bytes + (canary ? kGuardBytes : 0), home)),
      capacity_(capacity_bytes),
      canary_(canary) {
  if (canary_) fill_with_canary(buffer_);
}

View Arena::take(DType dtype, const Shape& shape, std::string label) {
  const std::size_t offset = round_up(used_, kAlignment);
  const auto elements = static_cast<std::size_t>(shape.numel());
  if (elements > (kMostBytes - std::min(offset, kMostBytes)) / size_of(dtype)) {
    throw Error(ExitCode::usage, "arena " + name_ + ": " + label + " of " + shape.str() +
                                     " goes beyond 4 EiB: the model is too large to be counted");
  }
  const std::size_t bytes = elements * size_of(dtype);
  if (offset + bytes > capacity_) {
    throw Error(ExitCode::internal, "arena " + name_ + ": " + label + " needs " +
                                        std::to_string(offset + bytes) + " bytes, planned were " +
                                        std::to_string(capacity_));
  }
  used_ = offset + bytes;
  auto* address = reinterpret_cast<void*>(base_of(buffer_, name_) + offset);
  allocations_.push_back({std::move(label), dtype, shape, offset, bytes});
  return {address, dtype, buffer_.device(), shape};
}

std::size_t Arena::highest_touched() const {
  require(canary_ && device() != Device::meta, "only an arena with a canary knows what it held");
  const auto* begin = static_cast<const unsigned char*>(buffer_.data());
  std::vector<unsigned char> block(std::min(kReadBytes, buffer_.bytes()));
  std::size_t end = buffer_.bytes();
  while (end > 0) {
    const std::size_t count = std::min(block.size(), end);
    copy_from(device(), block.data(), begin + end - count, count);
    std::size_t touched = count;
    while (touched > 0 && block[touched - 1] == kCanary) --touched;
    end -= count - touched;
    if (touched > 0) break;
  }
  return end;
}

}  // namespace hyperslab
