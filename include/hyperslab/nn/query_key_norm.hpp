// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <variant>

#include "hyperslab/nn/head_norm.hpp"
#include "hyperslab/nn/qk_norm.hpp"
#include "hyperslab/nn/width_norm.hpp"

namespace hyperslab::nn {

/// The norm of queries and keys that a model has, if any.
class QueryKeyNorm {
 public:
  QueryKeyNorm() = default;  ///< none
  /// `heads`: all of the model.
  QueryKeyNorm(QkNorm kind, param::ParamStore& params, const TensorGroup& group,
               const std::string& name, const ops::HeadLayout& heads, float eps);

  /// Both absent without a norm, else the kind's is there.
  struct Slot {
    HeadNorm::Slot head;
    WidthNorm::Slot width;
    /// The slot of a pass of generation over count.B samples of count.T tokens.
    [[nodiscard]] Slot for_tokens(const TokenCount& count) const;
  };
  /// `heads`: of this rank.
  [[nodiscard]] Slot plan(Arena& activations, const Shape& tokens, const ops::HeadLayout& heads,
                          DType compute, DType statistics, const std::string& label) const;
  /// qkv: (B, T, packed), in place. scratch: (B, T, H Dh).
  void forward(Context& ctx, const ops::HeadLayout& heads, View qkv, const Slot& slot,
               View scratch) const;
  void backward(Context& ctx, const ops::HeadLayout& heads, const Slot& slot, Accumulate accumulate,
                View d_qkv, View scratch) const;

 private:
  std::variant<std::monostate, HeadNorm, WidthNorm> norm_;
};

}  // namespace hyperslab::nn
