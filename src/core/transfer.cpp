// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/transfer.hpp"

#include <cstring>

#include "cuda.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/stream_priority.hpp"

namespace hyperslab {

void copy(Stream& stream, CView from, View to) {
  require(from && to, "copy: a view is absent");
  require(from.dtype() == to.dtype() && from.numel() == to.numel(),
          "copy: expected equal dtypes and numbers of elements");
  if (stream.device() == Device::meta || from.numel() == 0) return;
  require(from.device() != Device::meta && to.device() != Device::meta,
          "copy: a view on meta has no memory");
  if constexpr (kHasCuda) {
    if (stream.device() == Device::cuda) {
      return cuda_runtime::copy(stream.cuda(), to.raw(), from.raw(), from.bytes());
    }
  }
  require(from.device() == Device::cpu && to.device() == Device::cpu,
          "copy: views of a GPU need its context");
  const auto copy_bytes = [source = from.raw(), target = to.raw(), bytes = from.bytes()] {
    std::memcpy(target, source, bytes);
  };
  stream.has_thread() ? stream.run(copy_bytes) : copy_bytes();
}

void copy(Context& ctx, CView from, View to) { copy(ctx.stream(), from, to); }

Event copy_async(Context& ctx, CView from, View to) {
  Stream& stream = ctx.copy_stream();
  stream.wait(ctx.stream().record());
  copy(stream, from, to);
  return stream.record();
}

void synchronize(Context& ctx) {
  if constexpr (kHasCuda) {
    if (ctx.device() == Device::cuda) cuda_runtime::synchronize(ctx.stream().cuda());
  }
}

int cuda_device_count() noexcept {
  if constexpr (kHasCuda) return cuda_runtime::device_count();
  return 0;
}

void use_cuda_device(int index) {
  if constexpr (kHasCuda) return cuda_runtime::use_device(index);
  throw Error(ExitCode::device, "GPU " + std::to_string(index) +
                                    " was asked for, but this build has no CUDA; configure with "
                                    "-DHYPERSLAB_CUDA=ON or set run.device: cpu");
}

int current_cuda_device() {
  if constexpr (kHasCuda) return cuda_runtime::current_device();
  return 0;
}

void prefer_streams_of_this_thread() noexcept {
  if constexpr (kHasCuda) cuda_runtime::prefer_streams();
}

MainStreams::MainStreams() noexcept {
  if constexpr (kHasCuda) cuda_runtime::make_main_streams(true);
}
MainStreams::~MainStreams() {
  if constexpr (kHasCuda) cuda_runtime::make_main_streams(false);
}

std::string device_name() {
  if constexpr (kHasCuda) return cuda_runtime::device_name();
  return {};
}

std::string device_bus_id() {
  if constexpr (kHasCuda) return cuda_runtime::device_bus_id();
  return {};
}

}  // namespace hyperslab
