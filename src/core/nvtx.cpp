// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/nvtx.hpp"

#include <atomic>
#include <cstdlib>
#include <string>

#include "hyperslab/core/device.hpp"
#ifdef HYPERSLAB_WITH_CUDA
#include <nvtx3/nvToolsExt.h>
#endif

namespace hyperslab::nvtx {
namespace {

std::atomic<bool>& flag() {
  static std::atomic<bool> on = [] {
    const char* wish = std::getenv("HYPERSLAB_NVTX");
    return kHasCuda && wish != nullptr && std::string_view(wish) == "1";
  }();
  return on;
}

}  // namespace

bool enabled() { return flag(); }
void enable() { flag() = kHasCuda; }

void push([[maybe_unused]] std::string_view name) {
#ifdef HYPERSLAB_WITH_CUDA
  (void)nvtxRangePushA(name.data());
#endif
}

void pop() {
#ifdef HYPERSLAB_WITH_CUDA
  (void)nvtxRangePop();
#endif
}

}  // namespace hyperslab::nvtx
