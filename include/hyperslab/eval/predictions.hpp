// SPDX-License-Identifier: Apache-2.0
// Predictions of a model of images for every evaluated image.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hyperslab/comm/world.hpp"
#include "hyperslab/core/view.hpp"
#include "hyperslab/io/images.hpp"

namespace hyperslab::eval {

/// The likeliest class of every evaluated image, and its logits if they are asked for.
class Predictions {
 public:
  Predictions(Dim classes, bool keeps_logits) : classes_(classes), keeps_logits_(keeps_logits) {}

  /// logits: (B, columns) f32, classes first; labels: (B, 2) i32; of samples [first, first + B).
  /// Samples that do not count are left out.
  void take(std::int64_t first, CView logits, CView labels);
  /// Brings all ranks' to rank 0, in the order of the samples. Collective.
  void gather(comm::World& world);

  /// CSV: index, name, label, prediction, correct (0 or 1). Throws Error(storage).
  void write_csv(const std::string& path, const io::ImageSet& images) const;
  /// .npy of f32 (images, classes), in the order of the samples. Throws Error(storage).
  void write_logits(const std::string& path) const;

 private:
  struct Row {
    std::int64_t index = 0;
    std::int64_t prediction = 0;
  };
  [[nodiscard]] std::string packed() const;
  void unpack(const std::string& bytes);

  Dim classes_;
  bool keeps_logits_;
  std::vector<Row> rows_;
  std::vector<float> logits_;  ///< logits of every row
};

}  // namespace hyperslab::eval
