// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "hyperslab/core/arena.hpp"
#include "hyperslab/core/ledger.hpp"
#include "hyperslab/core/recorder.hpp"

struct CUstream_st;  // the only thing that public headers know of CUDA

namespace hyperslab {

/// Where enqueued work runs in order. On the CPU work is done when the call returns; a CUDA stream
/// is a non-blocking stream owned by the composition root.
class Stream {
 public:
  Stream() = default;
  explicit Stream(CUstream_st* cuda) : cuda_(cuda) {}
  [[nodiscard]] CUstream_st* cuda() const { return cuda_; }

 private:
  CUstream_st* cuda_ = nullptr;
};

/// What an op needs besides its views: device, stream, workspace, ledger, recorder. One per rank,
/// made by the composition root and passed down; there are no globals.
class Context {
 public:
  /// `workspace_bytes` is what the plan on `meta` found to be the largest need of any op.
  explicit Context(Device device, std::size_t workspace_bytes = 0);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  Context(Context&&) = delete;
  Context& operator=(Context&&) = delete;
  ~Context() = default;

  [[nodiscard]] Device device() const { return device_; }
  [[nodiscard]] Stream& stream() { return stream_; }
  [[nodiscard]] Recorder& recorder() { return recorder_; }
  [[nodiscard]] Ledger& ledger() { return ledger_; }
  /// Threads that CPU ops use; fixed for the life of the context.
  [[nodiscard]] int threads() const { return threads_; }

  /// Scratch memory for the op `op`, valid until the next call. On `meta` it only raises
  /// `workspace_high_water()`; on a device it throws an internal Error beyond the planned size.
  void* workspace(std::string_view op, std::size_t bytes);
  [[nodiscard]] std::size_t workspace_high_water() const { return workspace_high_water_; }

  /// Adds an op's work to the ledger under the recorder's component. Ops call it on `meta` only.
  void add_work(std::string_view op, double flops, double bytes);

 private:
  Device device_;
  Stream stream_;
  Recorder recorder_;
  Ledger ledger_;
  Buffer workspace_;
  std::size_t workspace_high_water_ = 0;
  int threads_ = 1;
};

}  // namespace hyperslab
