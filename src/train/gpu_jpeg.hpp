// SPDX-License-Identifier: Apache-2.0
// JPEG images decoded by the GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "hyperslab/core/stream.hpp"

namespace hyperslab::train {

/// Decodes batches on the GPU in use by nvJPEG, whose library is opened at run time: by its
/// hardware engine if there is one, else by kernels. To be used by one thread at a time.
class GpuJpeg {
 public:
  /// Null if this program was built without nvJPEG, or its library cannot be used; then `why` says
  /// so.
  [[nodiscard]] static std::unique_ptr<GpuJpeg> open(std::string& why);
  ~GpuJpeg();
  GpuJpeg(const GpuJpeg&) = delete;
  GpuJpeg& operator=(const GpuJpeg&) = delete;
  GpuJpeg(GpuJpeg&&) = delete;
  GpuJpeg& operator=(GpuJpeg&&) = delete;

  struct Image {
    std::span<const std::byte> bytes;  ///< encoded, in memory of the host
    std::uint8_t* rgb = nullptr;       ///< GPU memory: (height, width, 3)
    std::int32_t width = 0;
  };
  /// Enqueues the decoding of all on a stream; the bytes must live until it has passed. False if
  /// nvJPEG refuses one of them, and then the memory holds anything.
  [[nodiscard]] bool decode(std::span<const Image> images, const Stream& stream);
  /// For logs: "nvJPEG, 7 engines".
  [[nodiscard]] const std::string& description() const { return description_; }

 private:
  struct Library;
  explicit GpuJpeg(std::unique_ptr<Library> library);
  [[nodiscard]] bool make_handle(int backend);
  std::unique_ptr<Library> library_;
  std::string description_;
};

}  // namespace hyperslab::train
