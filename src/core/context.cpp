// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/context.hpp"

#include <omp.h>

#include <algorithm>

#include "cuda.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab {
namespace {

std::shared_ptr<CUstream_st> stream_on(Device device) {
  if constexpr (kHasCuda) {
    if (device == Device::cuda) return {cuda_runtime::make_stream(), cuda_runtime::destroy_stream};
  }
  return nullptr;
}

}  // namespace

Context::Context(Device device, std::size_t workspace_bytes)
    : Context(device, workspace_bytes, device) {}

Context::Context(Device device, std::size_t workspace_bytes, Device planned)
    : device_(device),
      planned_(planned),
      cuda_stream_(stream_on(device)),
      stream_(cuda_stream_.get()),
      workspace_(device, workspace_bytes),
      threads_(omp_get_max_threads()) {
  require(device == planned || device == Device::meta, "only a context on meta plans for another");
}

void* Context::workspace(std::string_view op, std::size_t bytes) {
  workspace_high_water_ = std::max(workspace_high_water_, bytes);
  if (device_ != Device::meta && bytes > workspace_.bytes()) {
    throw Error(ExitCode::internal, std::string(op) + " needs a workspace of " +
                                        std::to_string(bytes) + " bytes, planned were " +
                                        std::to_string(workspace_.bytes()));
  }
  return workspace_.data();
}

void Context::add_work(std::string_view op, double flops, double bytes, std::string_view path) {
  ledger_.add({recorder_.component().name, op, path}, flops, bytes);
}

}  // namespace hyperslab
