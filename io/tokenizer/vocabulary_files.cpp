// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/vocabulary_files.hpp"

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "tokenizer/vocabulary_parts.hpp"

namespace hyperslab::io {
namespace {

constexpr const char* kConfig = "config.json";

/// The ids that end texts in a model's config.json in the folder, as JSON; empty: none.
std::string ends_of_config(const std::filesystem::path& folder) {
  constexpr const char* kKey = "eos_token_id";
  std::error_code ignored;
  const std::filesystem::path path = folder / kConfig;
  if (!std::filesystem::is_regular_file(path, ignored)) return {};
  const nlohmann::json config = read_json_file(path.string());
  if (!config.is_object() || !config.contains(kKey)) return {};
  return nlohmann::json{{kKey, config[kKey]}}.dump(2) + "\n";
}

}  // namespace

std::vector<VocabularyFile> read_vocabulary_files(const std::string& vocabulary) {
  constexpr std::array kSettings = {"tokenizer_config.json", "special_tokens_map.json",
                                    "added_tokens.json", "generation_config.json",
                                    "chat_template.jinja"};
  if (vocabulary == "bytes") return {};
  const std::string file = vocabulary_file(vocabulary);
  std::vector<VocabularyFile> files;
  if (is_tokenizer_json(read_json_file(file))) {
    files.push_back({"tokenizer.json", read_vocabulary_text(file)});
  } else {
    files.push_back({"vocab.json", read_vocabulary_text(file)});
    files.push_back({"merges.txt", read_vocabulary_text(merges_file(file))});
  }
  const std::filesystem::path folder = std::filesystem::path(file).parent_path();
  for (const char* name : kSettings) {
    std::error_code ignored;
    const std::filesystem::path path = folder / name;
    if (!std::filesystem::is_regular_file(path, ignored)) continue;
    files.push_back({name, read_vocabulary_text(path.string())});
  }
  if (std::string ends = ends_of_config(folder); !ends.empty()) {
    files.push_back({kConfig, std::move(ends)});
  }
  return files;
}

}  // namespace hyperslab::io
