// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/arena.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include "hyperslab/core/error.hpp"

namespace hyperslab {
namespace {

constexpr std::size_t kPage = 4096;
constexpr unsigned char kCanary = 0xA5;
constexpr std::size_t kGuardBytes = 65536;

std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

Buffer::Buffer(Device device, std::size_t bytes) : bytes_(bytes), device_(device) {
  if (device == Device::meta || bytes == 0) return;
  require(device == Device::cpu, "this build has no memory on that device");
  data_ = std::aligned_alloc(kPage, round_up(bytes, kPage));
  if (data_ == nullptr) {
    throw Error(ExitCode::device,
                "out of memory: " + std::to_string(bytes) +
                    " bytes were asked for; reduce train.microbatch, model.context or "
                    "memory.recompute, or use more ranks");
  }
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      device_(other.device_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    release();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    device_ = other.device_;
  }
  return *this;
}

Buffer::~Buffer() { release(); }

void Buffer::release() noexcept { std::free(data_); }

Tensor::Tensor(Device device, DType dtype, Shape shape)
    : buffer_(device, static_cast<std::size_t>(shape.numel()) * size_of(dtype)),
      view_(buffer_.data(), dtype, device, shape) {}

Tensor Tensor::clone() const {
  Tensor copy(view_.device(), view_.dtype(), view_.shape());
  if (view_.device() == Device::cpu && view_.bytes() > 0) {
    std::memcpy(copy.view_.raw(), view_.raw(), view_.bytes());
  }
  return copy;
}

Arena::Arena(std::string name)
    : name_(std::move(name)),
      buffer_(Device::meta, 0),
      capacity_(std::numeric_limits<std::size_t>::max()) {}

Arena::Arena(std::string name, Device device, std::size_t capacity_bytes, bool canary)
    : name_(std::move(name)),
      buffer_(device, capacity_bytes + (canary ? kGuardBytes : 0)),
      capacity_(capacity_bytes),
      canary_(canary) {
  if (canary_) std::memset(buffer_.data(), kCanary, buffer_.bytes());
}

View Arena::take(DType dtype, const Shape& shape, std::string label) {
  const std::size_t offset = round_up(used_, kAlignment);
  const std::size_t bytes = static_cast<std::size_t>(shape.numel()) * size_of(dtype);
  if (offset + bytes > capacity_) {
    throw Error(ExitCode::internal, "arena " + name_ + ": " + label + " needs " +
                                        std::to_string(offset + bytes) + " bytes, planned were " +
                                        std::to_string(capacity_));
  }
  used_ = offset + bytes;
  auto* address = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(buffer_.data()) + offset);
  allocations_.push_back({std::move(label), dtype, shape, offset, bytes});
  return {address, dtype, buffer_.device(), shape};
}

std::size_t Arena::highest_touched() const {
  require(canary_ && device() == Device::cpu, "only a CPU arena with a canary knows what it held");
  const auto* begin = static_cast<const unsigned char*>(buffer_.data());
  std::size_t end = buffer_.bytes();
  while (end > 0 && begin[end - 1] == kCanary) --end;
  return end;
}

}  // namespace hyperslab
