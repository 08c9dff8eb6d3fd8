// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "hyperslab/core/error.hpp"
#include "hyperslab/io/dataset.hpp"

namespace hyperslab::io {

void TokenSource::read_mask(std::int64_t /*first*/, std::span<std::uint8_t> out) const {
  std::ranges::fill(out, std::uint8_t{1});
}

void TokenSource::read_values(std::int64_t /*first*/, std::span<float> out) const {
  std::ranges::fill(out, 1.0F);
}

void TokenSource::read_teacher_ids(std::int64_t /*first*/, std::span<std::int32_t> out) const {
  std::ranges::fill(out, 0);
}

std::vector<std::int64_t> TokenSource::documents(std::int32_t /*end_token*/) const {
  throw Error(ExitCode::data, description() +
                                  ": expected documents, found none; set data.validation_fraction "
                                  "to 0, or give token files");
}

}  // namespace hyperslab::io
