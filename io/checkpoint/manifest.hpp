// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "hyperslab/io/checkpoint.hpp"

namespace hyperslab::io {

inline constexpr const char* kManifestName = "manifest.json";

/// Contents of manifest.json.
struct Manifest {
  CheckpointMeta meta;
  std::uint64_t block_bytes = CheckpointReader::kBlockBytes;
  std::map<std::string, CheckpointReader::TensorEntry> tensors;
  std::vector<CheckpointReader::FileEntry> files;
  std::vector<CheckpointReader::VocabularyEntry> vocabulary;
};

/// JSON with a CRC32C of itself, so that a changed digit is found.
[[nodiscard]] std::string to_text(const Manifest& manifest);
/// Throws Error(checkpoint) that names `path`: torn, changed, of a newer format, contradicting
/// itself.
[[nodiscard]] Manifest manifest_of_text(const std::string& text, const std::string& path);
/// Reads the manifest of a step folder and checks that every file is there with its size.
[[nodiscard]] Manifest open_manifest(const std::string& folder);

/// The files and pieces of one rank as a line of JSON for rank 0, which adds it to the manifest.
[[nodiscard]] std::string table_text(const Manifest& mine);
void add_table(Manifest& all, const std::string& text);

}  // namespace hyperslab::io
