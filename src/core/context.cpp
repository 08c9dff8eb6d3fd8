// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/context.hpp"

#include <omp.h>

#include <algorithm>

#include "hyperslab/core/error.hpp"

namespace hyperslab {

Context::Context(Device device, std::size_t workspace_bytes)
    : Context(device, workspace_bytes, device) {}

Context::Context(Device device, std::size_t workspace_bytes, Device planned)
    : device_(device),
      planned_(planned),
      stream_(device),
      workspace_(device, workspace_bytes),
      threads_(omp_get_max_threads()) {
  require(device == planned || device == Device::meta, "only a context on meta plans for another");
}

Stream& Context::copy_stream() {
  if (!copy_stream_) copy_stream_ = std::make_unique<Stream>(device_, HostWork::by_thread);
  return *copy_stream_;
}

namespace {

/// Sizes and offsets of partial sums in the workspace, and of memory before them, are multiples.
constexpr std::size_t kAlignment = 256;
constexpr std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

void* Context::workspace(std::string_view op, std::size_t bytes) {
  const std::size_t needed = partial_bytes_ == 0 ? bytes : aligned(bytes) + partial_bytes_;
  workspace_high_water_ = std::max(workspace_high_water_, needed);
  if (device_ != Device::meta && needed > workspace_.bytes()) {
    throw Error(ExitCode::internal, std::string(op) + " needs a workspace of " +
                                        std::to_string(needed) + " bytes, planned were " +
                                        std::to_string(workspace_.bytes()));
  }
  return workspace_.data();
}

void* Context::partials(std::string_view op, std::size_t bytes) {
  partial_bytes_ += aligned(bytes);
  workspace(op, 0);
  if (device_ == Device::meta) return nullptr;
  const std::size_t end = workspace_.bytes() / kAlignment * kAlignment;
  return static_cast<std::byte*>(workspace_.data()) + (end - partial_bytes_);
}

void Context::add_work(std::string_view op, double flops, double bytes, std::string_view path) {
  ledger_.add({recorder_.component().name, op, path}, flops, bytes);
}

}  // namespace hyperslab
