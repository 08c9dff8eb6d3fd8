// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/view.hpp"

namespace hyperslab {

/// Memory ran out: the bytes asked for and the bytes free. Error(device).
class OutOfMemory : public Error {
 public:
  /// `where`: "on NVIDIA H200", or empty for the host's memory. `arena`: that asked, if known.
  OutOfMemory(const std::string& where, std::size_t asked_bytes, std::size_t free_bytes,
              const std::string& arena = {});
  /// This error with the name of the arena that asked for the memory.
  [[nodiscard]] OutOfMemory in_arena(const std::string& name) const {
    return {where_, asked_bytes_, free_bytes_, name};
  }
  /// The message without its advice.
  [[nodiscard]] const std::string& facts() const { return facts_; }

 private:
  std::string where_;
  std::size_t asked_bytes_;
  std::size_t free_bytes_;
  std::string facts_;
};

/// Bytes on a device, released on destruction. On `meta` there is a size and no memory.
class Buffer {
 public:
  Buffer() = default;
  /// CPU memory is aligned to 4096 bytes, CUDA memory (of the GPU in use) to 256; neither is
  /// initialized. Home::host on `cuda`: page-locked memory of the host. Throws OutOfMemory.
  Buffer(Device device, std::size_t bytes, Home home = Home::device);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] Device device() const { return device_; }

 private:
  void release() noexcept;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Device device_ = Device::cpu;
  Home home_ = Home::device;
};

/// Bytes of the host that both the host and kernels on `device` read and write: page-locked and
/// mapped for `cuda`, plain memory for `cpu`, none on `meta`. Zeroed, aligned to 4096 bytes.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  PinnedBuffer(Device device, std::size_t bytes);
  PinnedBuffer(PinnedBuffer&& other) noexcept;
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  ~PinnedBuffer();

  /// The address for the host.
  [[nodiscard]] void* data() const { return data_; }
  /// The address for kernels.
  [[nodiscard]] void* device_data() const { return device_data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] Device device() const { return device_; }

 private:
  void release() noexcept;
  void* data_ = nullptr;
  void* device_data_ = nullptr;
  std::size_t bytes_ = 0;
  Device device_ = Device::cpu;
};

/// An owning tensor for setup, tests and input/output; a step uses views into arenas.
class Tensor {
 public:
  Tensor() = default;
  Tensor(Device device, DType dtype, Shape shape);  ///< contents are undefined
  /// On a GPU it waits for everything before it.
  [[nodiscard]] Tensor clone() const;
  [[nodiscard]] View view() { return view_; }
  [[nodiscard]] CView view() const { return view_; }

 private:
  Buffer buffer_;
  View view_;
};

/// One allocation of an arena, for `--shapes` and for error messages.
struct Allocation {
  std::string label;
  DType dtype = DType::f32;
  Shape shape;
  std::size_t offset_bytes = 0;
  std::size_t bytes = 0;
};

/// Memory with fixed addresses, handed out once at setup and never given back. The same setup code
/// runs first on `meta`, where an arena of unlimited capacity measures, then on a real device with
/// exactly the measured capacity.
class Arena {
 public:
  static constexpr std::size_t kAlignment = 256;  ///< bytes, of every allocation

  /// A measuring arena on `meta`.
  explicit Arena(std::string name);
  /// A real arena of exactly `capacity_bytes`. `canary` fills it (and a guard after it) with a
  /// pattern, so that `highest_touched()` can find the highest byte ever written.
  Arena(std::string name, Device device, std::size_t capacity_bytes, bool canary = false,
        Home home = Home::device);

  /// The next view; throws an internal Error if the plan is exceeded.
  View take(DType dtype, const Shape& shape, std::string label);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] Device device() const { return buffer_.device(); }
  /// All of it.
  [[nodiscard]] const Buffer& buffer() const { return buffer_; }
  [[nodiscard]] std::size_t used_bytes() const { return used_; }
  [[nodiscard]] const std::vector<Allocation>& allocations() const { return allocations_; }
  /// Offset after the highest byte that no longer holds the canary, guard included. On a GPU it
  /// waits for everything before it.
  [[nodiscard]] std::size_t highest_touched() const;

 private:
  std::string name_;
  Buffer buffer_;
  std::size_t capacity_ = 0;
  std::size_t used_ = 0;
  bool canary_ = false;
  std::vector<Allocation> allocations_;
};

}  // namespace hyperslab
