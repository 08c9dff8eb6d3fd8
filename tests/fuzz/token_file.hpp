// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "fuzz/input.hpp"
#include "hyperslab/io/dataset.hpp"

namespace hyperslab::fuzz {

/// Opens the bytes as a token file of this name, and reads its first and last tokens, masks and
/// documents.
inline void read_token_file(const std::string& name, std::string_view bytes, bool loss_mask) {
  static const Folder folder;
  const std::string path = folder.write(name, bytes);
  take_or_refuse({ExitCode::data}, [&] {
    const auto source = io::open_tokens({path}, io::RawIds::uint16, 50257, 1, loss_mask);
    std::vector<std::int32_t> ids(
        static_cast<std::size_t>(std::min<std::int64_t>(source->size(), 64)));
    source->read(0, ids);
    source->read(source->size() - static_cast<std::int64_t>(ids.size()), ids);
    if (source->has_mask()) {
      std::vector<std::uint8_t> mask(ids.size());
      source->read_mask(0, mask);
    }
    (void)source->fingerprint();
    (void)source->documents(0);
  });
}

}  // namespace hyperslab::fuzz
