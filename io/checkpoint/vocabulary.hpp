// SPDX-License-Identifier: Apache-2.0
// The vocabulary that a step keeps beside its tensors, so that a checkpoint can be used alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "hyperslab/io/checkpoint.hpp"

namespace hyperslab::io {

inline constexpr const char* kVocabularyFolder = "vocabulary";  ///< inside a step's folder

[[nodiscard]] std::uint64_t bytes_of(std::span<const VocabularyFile> files);
/// Writes the files into `<folder>/vocabulary` and puts them on the disk; makes nothing if there
/// are none. Returns the manifest's entries for them. Throws Error(storage).
[[nodiscard]] std::vector<CheckpointReader::VocabularyEntry> write_vocabulary(
    const std::string& folder, std::span<const VocabularyFile> files);
/// A line for every file that is missing, of another size or changed.
[[nodiscard]] std::vector<std::string> vocabulary_problems(
    const std::string& folder, std::span<const CheckpointReader::VocabularyEntry> entries);

}  // namespace hyperslab::io
