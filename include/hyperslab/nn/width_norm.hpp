// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "hyperslab/core/arena.hpp"
#include "hyperslab/nn/for_tokens.hpp"
#include "hyperslab/ops/attention.hpp"
#include "hyperslab/ops/matmul.hpp"
#include "hyperslab/param/store.hpp"

namespace hyperslab::nn {

/// RMSNorm of all queries of a token together, and of all its keys (QK-norm of OLMo 2, Walsh et al.
/// 2024, section 3.2), with a factor for every feature of every head. Of a tensor group of one
/// rank: another would have to sum squares over the ranks.
class WidthNorm {
 public:
  /// `heads`: all of the model.
  WidthNorm(param::ParamStore& params, const std::string& name, const ops::HeadLayout& heads,
            float eps);

  struct Slot {
    View queries;     ///< (B, T, H Dh), as they were
    View keys;        ///< (B, T, H_kv Dh), as they were
    View query_rstd;  ///< (B, T)
    View key_rstd;    ///< (B, T)
    [[nodiscard]] Slot for_tokens(const TokenCount& count) const;
  };
  [[nodiscard]] Slot plan(Arena& activations, const Shape& tokens, DType compute, DType statistics,
                          const std::string& label) const;
  /// qkv: (B, T, packed), in place. scratch: (B, T, H Dh).
  void forward(Context& ctx, View qkv, const Slot& slot, View scratch) const;
  void backward(Context& ctx, const Slot& slot, ops::Accumulate accumulate, View d_qkv,
                View scratch) const;

 private:
  /// Queries or keys: where they stand in a packed row.
  struct Part {
    param::FusedParam weight;
    Dim first = 0;
    Dim width = 0;
  };
  void forward(Context& ctx, const Part& part, View qkv, View kept, View rstd, View scratch) const;
  void backward(Context& ctx, const Part& part, View d_qkv, CView kept, CView rstd,
                ops::Accumulate accumulate, View scratch) const;

  Part queries_;
  Part keys_;
  float eps_ = 0;
};

}  // namespace hyperslab::nn
