// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/vocabulary.hpp"

#include <fmt/format.h>

#include "files/crc32c.hpp"
#include "files/storage.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::io {

std::uint64_t bytes_of(std::span<const VocabularyFile> files) {
  std::uint64_t bytes = 0;
  for (const VocabularyFile& file : files) bytes += file.content.size();
  return bytes;
}

std::vector<CheckpointReader::VocabularyEntry> write_vocabulary(
    const std::string& folder, std::span<const VocabularyFile> files) {
  std::vector<CheckpointReader::VocabularyEntry> entries;
  if (files.empty()) return entries;
  const std::string inside = folder + "/" + kVocabularyFolder;
  storage::make_folder(inside);
  for (const auto& [name, content] : files) {
    storage::write_text(inside + "/" + name, content);
    entries.push_back({name, content.size(), crc32c(content.data(), content.size())});
  }
  storage::sync_folder(inside);
  return entries;
}

std::vector<std::string> vocabulary_problems(
    const std::string& folder, std::span<const CheckpointReader::VocabularyEntry> entries) {
  std::vector<std::string> problems;
  for (const auto& [name, bytes, expected] : entries) {
    const std::string path = fmt::format("{}/{}/{}", folder, kVocabularyFolder, name);
    try {
      const std::string text = storage::read_text(path, bytes);
      const std::uint32_t found = crc32c(text.data(), text.size());
      if (text.size() != bytes) {
        problems.push_back(
            fmt::format("{}: it has {} bytes, expected {}", path, text.size(), bytes));
      } else if (found != expected) {
        problems.push_back(fmt::format("{}: it was changed: CRC32C is {:08x}, expected {:08x}",
                                       path, found, expected));
      }
    } catch (const Error& error) {
      problems.emplace_back(error.what());
    }
  }
  return problems;
}

}  // namespace hyperslab::io
