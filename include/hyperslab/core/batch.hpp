// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>

#include "hyperslab/core/view.hpp"

namespace hyperslab {

/// One microbatch on its way from the loader to the units of a model that read it: views of memory
/// that someone else owns. A view that is absent is not needed there.
struct Batch {
  View tokens;            ///< (B, T) i32
  View targets;           ///< (B, T) i32, ops::kIgnoredTarget if a position does not count
  View token_sort_index;  ///< (B * T) i32: positions sorted by token, stable
  View sample_position;   ///< (B) i64: position of each sample in the global batch
  /// (B, T of all context ranks) i32: where the document of every token begins in its sample
  View first_keys = {};
  View own_first_keys = {};  ///< (B, T) i32: likewise of this rank's tokens, if others have more
  /// (B, T, TokenColumns::count()) f32: values of every target, 1 where the files have none
  View token_values = {};
  View teacher_ids = {};  ///< (B, T, TokenColumns::teachers) i32: a teacher's likely tokens
  /// (B, T) i32 ascending in a sample: 2 p for targets of the chosen answer of its pair p, 2 p + 1
  /// for those of the rejected one, kNoPair behind the last pair
  View pairs = {};
  /// (B, N, P) in the compute type: N patches in rows of the image, each of P values in the order
  /// (channel, row, column) of a convolution's weight, normalized.
  View patches = {};
  View labels = {};         ///< (B, 2) i32: the classes of an image and of its mixed-in partner
  View label_weights = {};  ///< (B) f32: of the first label; the second has the rest
};

inline constexpr std::int32_t kNoPair = std::numeric_limits<std::int32_t>::max();

/// A view of a batch, whichever batch.
using BatchView = View Batch::*;
inline constexpr std::array<BatchView, 12> kBatchViews = {
    &Batch::sample_position,  &Batch::patches,    &Batch::tokens,         &Batch::targets,
    &Batch::token_sort_index, &Batch::first_keys, &Batch::own_first_keys, &Batch::token_values,
    &Batch::teacher_ids,      &Batch::pairs,      &Batch::labels,         &Batch::label_weights};

/// Some of the views of a batch.
class BatchViews {
 public:
  BatchViews() = default;
  BatchViews(std::initializer_list<BatchView> views) {
    for (const BatchView view : views) at(view) = true;
  }
  /// These, and the view if `is_needed`.
  [[nodiscard]] BatchViews with(BatchView view, bool is_needed) const {
    BatchViews all = *this;
    all.at(view) |= is_needed;
    return all;
  }
  BatchViews& operator|=(const BatchViews& other) {
    for (const BatchView view : kBatchViews) at(view) |= other.has(view);
    return *this;
  }
  [[nodiscard]] bool has(BatchView view) const { return has_[index(view)]; }
  [[nodiscard]] bool any() const { return std::ranges::find(has_, true) != has_.end(); }
  /// The batch without its other views.
  [[nodiscard]] Batch of(const Batch& batch) const {
    Batch some;
    for (const BatchView view : kBatchViews) {
      if (has(view)) some.*view = batch.*view;
    }
    return some;
  }

 private:
  static std::size_t index(BatchView view) {
    return static_cast<std::size_t>(std::ranges::find(kBatchViews, view) - kBatchViews.begin());
  }
  bool& at(BatchView view) { return has_[index(view)]; }

  std::array<bool, kBatchViews.size()> has_{};
};

/// The share of keys that remain visible under document masking, for full and for windowed layers.
struct KeyShares {
  double all = 1;
  double windowed = 1;
};

}  // namespace hyperslab
