// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "hyperslab/core/context.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::ops {

/// Adds up a GPU's sums that wait for the end of with_deferred_reductions, which calls it.
void finish_sums(Context& ctx);

/// Calls `work`, the backward pass of some layers. On a GPU many ops leave the gradient of a vector
/// (a bias, the weight of a norm) as partial sums, which one small kernel for each adds up; in here
/// one kernel at the end does so for all of them. Kernels that `work` enqueues must not read such a
/// gradient, and `work` does not call this itself. The kernel counts under no component.
template <class Work>
void with_deferred_reductions(Context& ctx, Work&& work) {
  class Late {
   public:
    explicit Late(Context& of) : ctx_(of) {
      require(!ctx_.deferred_reductions(), "with_deferred_reductions: is in progress");
      ctx_.set_deferred_reductions(true);
    }
    ~Late() { ctx_.set_deferred_reductions(false); }
    Late(const Late&) = delete;
    Late& operator=(const Late&) = delete;
    Late(Late&&) = delete;
    Late& operator=(Late&&) = delete;

   private:
    Context& ctx_;
  };
  const Late late(ctx);
  std::forward<Work>(work)();
  finish_sums(ctx);
}

}  // namespace hyperslab::ops
