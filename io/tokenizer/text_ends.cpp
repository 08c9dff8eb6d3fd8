// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/text_ends.hpp"

#include <algorithm>

namespace hyperslab::io {

void TextEnds::add(std::int32_t id) {
  if (id < 0 || std::ranges::find(ids, id) != ids.end()) return;
  if (separator < 0) separator = id;
  ids.push_back(id);
}

TextEnds TextEnds::with(std::span<const std::int64_t> more) const {
  TextEnds all = *this;
  for (const std::int64_t id : more) all.add(static_cast<std::int32_t>(id));
  return all;
}

}  // namespace hyperslab::io
