// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/core/context.hpp"
#include "hyperslab/ops/step_state.hpp"

namespace hyperslab::ops {

/// Dropout at one site of the model. The mask is a function of (seed, step, site, index in the
/// global batch): element e of sample b has global index sample_position[b] * elements_per_sample +
/// e, where a sample is whole.
struct Dropout {
  float probability = 0;  ///< 0: nothing is dropped, all views may be absent
  std::uint64_t seed = 0;
  std::uint32_t site = 0;            ///< layer * 4 + number in the layer
  CView sample_position;             ///< (B) i64: index of each sample in the global batch
  const StepState* state = nullptr;  ///< for the step, on the device

  /// A rank's part of the microbatch, for `dropout`: x is elements
  /// [first_element, first_element + x.numel()) of the flattened (B, elements_per_sample) and may
  /// begin and end inside a sample. 0: x is whole, (B, ...).
  Dim elements_per_sample = 0;
  Dim first_element = 0;
  /// A rank's part of every sample: element e of a sample of x is element sample_part * n + e of
  /// the mask's sample, for the n elements of a sample that are counted above.
  int sample_part = 0;
  int sample_parts = 1;
  /// A rank's part of the columns, for `dropout`: column c of x is column first_column + c of
  /// total_columns in the mask; elements of x are counted as above. 0: all columns are here.
  Dim first_column = 0;
  Dim total_columns = 0;
  /// A rank's part of the heads, for attention_reference_*: its head h is head first_head + h of
  /// total_heads. 0: all heads are here.
  Dim first_head = 0;
  Dim total_heads = 0;

  [[nodiscard]] bool active() const { return probability > 0; }
};

/// y = x * keep / (1 - p). x, y: equal shapes, (B, ...) if elements_per_sample is 0; may alias;
/// the same call on the gradient is backward.
/// The word of global index g is lane g % 4 of philox({g / 4 as 64 bits, step as 32 bits, site},
/// seed ^ name_hash("dropout")); an element is kept if its uniform is >= p.
void dropout(Context& ctx, const Dropout& dropout, CView x, View y);

/// Stochastic depth (Huang et al. 2016): y = x / (1 - p) for the samples that are kept, else 0; the
/// same call on the gradient is backward. Views are as for dropout. The word of the sample at
/// position g is lane g % 4 of philox({g / 4 as 64 bits, step as 32 bits, site}, seed ^
/// name_hash("drop path")); a sample is kept if its uniform is >= p.
void drop_path(Context& ctx, const Dropout& dropout, CView x, View y);

}  // namespace hyperslab::ops
