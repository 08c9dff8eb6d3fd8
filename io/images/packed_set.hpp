// SPDX-License-Identifier: Apache-2.0
// A folder of pack-images: shards shard_00000.tar ..., index.npy (images, 4) of int64 (shard,
// offset, bytes, label), and set.json, which names shards and classes.
#pragma once

#include <string>

#include "images/tar_images.hpp"

namespace hyperslab::io {

inline constexpr const char* kSetFile = "set.json";
inline constexpr const char* kIndexFile = "index.npy";
inline constexpr const char* kSetFormat = "hyperslab images";
inline constexpr int kSetVersion = 1;

/// True if the folder holds a packed set.
[[nodiscard]] bool is_packed_set(const std::string& folder);
/// Throws Error(data) that names the file.
[[nodiscard]] ImageFiles open_packed_set(const std::string& folder);

}  // namespace hyperslab::io
