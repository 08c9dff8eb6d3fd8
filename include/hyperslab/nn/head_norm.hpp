// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "hyperslab/nn/norm.hpp"
#include "hyperslab/nn/tensor_group.hpp"
#include "hyperslab/ops/head_norm.hpp"
#include "hyperslab/param/store.hpp"

namespace hyperslab::nn {

/// RMSNorm of query and key heads before their products. Every rank of a tensor group holds both
/// weights and computes their gradients of its own heads.
class HeadNorm {
 public:
  HeadNorm() = default;
  HeadNorm(param::ParamStore& params, const TensorGroup& group, const std::string& name,
           Dim head_width, float eps);

  /// (B, T, (H + H_kv) Dh) in the compute type and (B, T, H + H_kv), kept for backward.
  using Slot = ops::HeadNormSaved;
  [[nodiscard]] Slot plan(Arena& activations, const Shape& tokens, const ops::HeadLayout& heads,
                          DType compute, DType statistics, const std::string& label) const;
  /// qkv: (B, T, packed), in place.
  void forward(Context& ctx, const ops::HeadLayout& heads, View qkv, const Slot& slot) const;
  void backward(Context& ctx, const ops::HeadLayout& heads, const Slot& slot, Accumulate accumulate,
                View d_qkv) const;

 private:
  [[nodiscard]] ops::HeadNormWeights weights() const;
  float eps_ = 0;
  param::FusedParam query_;
  param::FusedParam key_;
};

}  // namespace hyperslab::nn
