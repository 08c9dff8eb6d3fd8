// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/train/memory_meter.hpp"

#include "hyperslab/core/recorder.hpp"

namespace hyperslab::train {

void MemoryMeter::change(std::int64_t bytes, std::string_view label) {
  now_ += bytes;
  peak_ = std::max(peak_, now_);
  if (changes_.size() < changes_.capacity()) changes_.push_back({now_seconds(), now_, label});
}

}  // namespace hyperslab::train
