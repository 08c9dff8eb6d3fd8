// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/core/view.hpp"
#include "hyperslab/nn/fp8_config.hpp"
#include "hyperslab/ops/fp8.hpp"
#include "hyperslab/param/store.hpp"

namespace hyperslab::nn {

/// The three products of a linear layer in 8-bit floats: inputs and weights in e4m3, gradients of
/// outputs in e5m2 with a scale a tensor and in e4m3 otherwise, sums in f32. With a scale a block
/// weights have the same FP8 values forward and backward, while inputs and gradients are rounded
/// again for the gradient of the weight, whose sums go along their rows. Operands are rounded into
/// the context's workspace for each product, so that activations take no more memory than without;
/// only a gradient is rounded for both products that it takes part in.
class Fp8Product {
 public:
  Fp8Product() = default;
  /// `outputs`, `inputs`: of the whole layer; `rank_outputs`, `rank_inputs`: of this rank. Throws
  /// Error(usage) if this rank's are not multiples of ops::kFp8Multiple.
  Fp8Product(const Fp8Config& config, Dim outputs, Dim inputs, Dim rank_outputs, Dim rank_inputs);

  /// True if products of the layer are computed so if they have rows enough.
  [[nodiscard]] explicit operator bool() const { return is_used_; }
  /// True if products of so many rows are computed so. Fewer read each weight for next to no work,
  /// as generation does, and rounding the weights would take longer than the product.
  [[nodiscard]] bool takes(Dim rows) const { return is_used_ && rows >= kFewestRows; }
  static constexpr Dim kFewestRows = 64;

  /// Values that one product leaves for another.
  struct Kept {
    /// kept_bytes(): dy^T in 8-bit floats, which backward_input leaves for backward_weight; or
    /// absent.
    View gradient{};
    /// (kAmaxes) f32: the amaxes of x and, unless their FP8 values are kept, of the
    /// weights, which forward leaves for both, and of dy; absent: they are found again.
    View amax{};
    /// `given` if the writer of x, or of dy, has put its amax there.
    ops::Fp8Amax input = ops::Fp8Amax::found;
    ops::Fp8Amax output_gradient = ops::Fp8Amax::found;
    Fp8Weights weights = Fp8Weights::rounded;
  };
  static constexpr Dim kAmaxes = 3;
  /// True if `amax` is of use: with a scale a tensor.
  [[nodiscard]] bool keeps_amax() const { return is_used_ && recipe_ == Fp8Recipe::tensor; }
  /// The view into which the writer of x, or of dy, puts its amax; absent if `amax` is.
  [[nodiscard]] static View amax_of_input(View amax);
  [[nodiscard]] static View amax_of_gradient(View amax);

  /// Bytes that it takes to keep a rank's (M, K) weights from forward to forward: the FP8 values
  /// and scales of the matrix and of its transpose, or the transpose's values alone if the matrix's
  /// are gathered.
  [[nodiscard]] static std::size_t kept_weight_bytes(const Fp8Config& config, Dim M, Dim K);
  /// Sets where the weights are kept in a training run; it must outlive the product. Null: nowhere.
  void keep_weights_in(const param::KeptFp8* kept) { kept_ = kept; }

  /// y = x weight^T + bias. x: (..., K); weight: (M, K); bias: (M) or absent; y: (..., M).
  void forward(Context& ctx, CView x, CView weight, CView bias, const Kept& kept, View y) const;
  /// Bytes that backward_input keeps of so many outputs and rows, at most.
  [[nodiscard]] static Dim kept_bytes(const Fp8Config& config, Dim outputs, Dim rows);
  /// dx = dy weight, and dy^T into kept.gradient. dy: (..., M); weight: (M, K); dx: (..., K).
  void backward_input(Context& ctx, CView dy, CView weight, const Kept& kept, View dx) const;
  /// dweight (+)= dy^T x. dy: (..., M); x: (..., K), as forward had it; dweight: (M, K) f32.
  void backward_weight(Context& ctx, CView dy, CView x, const Kept& kept,
                       ops::Accumulate accumulate, View dweight) const;

 private:
  /// (M, rows) in Kept::gradient; absent if that is.
  [[nodiscard]] ops::Fp8Matrix kept_gradient(CView rows, View kept) const;
  /// The weights and their transpose where they are kept; absent FP8 values if they are not.
  struct RoundedWeights {
    ops::Fp8Matrix straight, transposed;
  };
  [[nodiscard]] RoundedWeights kept_weights(CView weight, Fp8Weights weights) const;
  void renew(Context& ctx, CView weight, const RoundedWeights& rounded) const;
  bool is_used_ = false;
  Fp8Recipe recipe_ = Fp8Recipe::tensor;
  const param::KeptFp8* kept_ = nullptr;
};

}  // namespace hyperslab::nn
