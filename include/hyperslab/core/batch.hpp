// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/core/view.hpp"

namespace hyperslab {

/// One microbatch on its way from the loader to the units of a model that read it: views of memory
/// that someone else owns. A view that is absent is not needed there.
struct Batch {
  View tokens;            ///< (B, T) i32
  View targets;           ///< (B, T) i32, ops::kIgnoredTarget if a position does not count
  View token_sort_index;  ///< (B * T) i32: positions sorted by token, stable
  View sample_position;   ///< (B) i64: position of each sample in the global batch
  View first_keys = {};   ///< (B, T) i32: where the document of every token begins in its sample
  /// (B, N, P) in the compute type: N patches in rows of the image, each of P values in the order
  /// (channel, row, column) of a convolution's weight, normalized.
  View patches = {};
  View labels = {};         ///< (B, 2) i32: the classes of an image and of its mixed-in partner
  View label_weights = {};  ///< (B) f32: of the first label; the second has the rest
};

/// The share of keys that remain visible under document masking, for full and for windowed layers.
struct KeyShares {
  double all = 1;
  double windowed = 1;
};

}  // namespace hyperslab
