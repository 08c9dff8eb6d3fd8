// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <source_location>

#include "hyperslab/core/context.hpp"

namespace hyperslab::ops::cuda {

/// Throws Error(device) naming the call and the library's own words.
void require_ok(cublasStatus_t status, const char* call,
                std::source_location where = std::source_location::current());

/// Logs a handle that was not closed.
void log_if_close_failed(cublasStatus_t status) noexcept;
void log_if_close_failed(cudaError_t status) noexcept;

/// A handle of a C library; a failed close is logged, because destructors do not throw.
template <auto Close>
struct Closer {
  template <class H>
  void operator()(H* handle) const noexcept {
    log_if_close_failed(Close(handle));
  }
};
using LtHandle = std::unique_ptr<cublasLtContext, Closer<&cublasLtDestroy>>;

struct GemmPlans;           // algorithms and descriptors, gemm_plans.hpp
struct AttentionPlans;      // cuDNN's handle and graphs, attention/cudnn.cpp
struct DeferredReductions;  // partial sums that wait, reduce.cu

/// State that the ops of one CUDA context keep between calls. Everything is made at the first use
/// of a shape and has a fixed address from then on, so that captured graphs stay valid.
struct Backend {
  static constexpr std::size_t kLtWorkspaceBytes = 32U << 20;  ///< cuBLAS's advice for Hopper

  explicit Backend(CUstream_st* context_stream);

  CUstream_st* stream;
  LtHandle lt;
  Buffer lt_workspace;
  std::shared_ptr<GemmPlans> gemms;
  std::shared_ptr<AttentionPlans> attention;
  std::shared_ptr<DeferredReductions> deferred_reductions;
};

/// Shared memory that a block of the GPU in use may have at most, in bytes.
[[nodiscard]] int most_shared_bytes();
/// Its multiprocessors.
[[nodiscard]] int multiprocessors();
/// The compute capability of the GPU in use, 10 times the major number and the minor one.
[[nodiscard]] int compute_capability();

/// The context's backend, made at the first call.
[[nodiscard]] Backend& backend_of(Context& ctx);

/// True if the stream records a graph, when nothing may be timed or waited for.
[[nodiscard]] bool is_capturing(const Backend& backend);

}  // namespace hyperslab::ops::cuda
