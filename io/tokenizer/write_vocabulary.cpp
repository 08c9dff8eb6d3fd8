// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/write_vocabulary.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "files/atomic_file.hpp"
#include "hyperslab/io/tokenizer.hpp"
#include "tokenizer/byte_text.hpp"

namespace hyperslab::io {
namespace {

using nlohmann::ordered_json;

/// Removes the folder again unless files came into it.
class NewFolder {
 public:
  explicit NewFolder(const std::string& path) : path_(path) {
    std::error_code error;
    const bool exists = std::filesystem::is_directory(path, error);
    try {
      storage::make_folder(path);
    } catch (const storage::CallError& refused) {
      fail_write(path, refused.error_number());
    }
    is_new_ = !exists;
  }
  ~NewFolder() {
    std::error_code ignored;
    if (is_new_) std::filesystem::remove(path_, ignored);  // which spares a folder with files
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  NewFolder(NewFolder&&) = delete;
  NewFolder& operator=(NewFolder&&) = delete;

 private:
  std::string path_;
  bool is_new_ = false;
};

ordered_json tokens_by_text(const LearnedMerges& learned,
                            const std::vector<std::string>& specials) {
  ordered_json out = ordered_json::object();
  auto& entries = out.get_ref<ordered_json::object_t&>();  // whose emplace() would search all
  int id = 0;
  for (const std::string& token : learned.tokens) entries.emplace_back(bytes_to_text(token), id++);
  for (const std::string& special : specials) entries.emplace_back(special, id++);
  return out;
}

std::vector<std::string> merge_lines(const LearnedMerges& learned) {
  std::vector<std::string> lines;
  lines.reserve(learned.merges.size());
  for (const auto& [left, right] : learned.merges) {
    lines.push_back(bytes_to_text(learned.tokens[static_cast<std::size_t>(left)]) + ' ' +
                    bytes_to_text(learned.tokens[static_cast<std::size_t>(right)]));
  }
  return lines;
}

ordered_json added_tokens(std::size_t first_id, const std::vector<std::string>& specials) {
  ordered_json out = ordered_json::array();
  for (std::size_t i = 0; i < specials.size(); ++i) {
    out.push_back({{"id", first_id + i},
                   {"content", specials[i]},
                   {"single_word", false},
                   {"lstrip", false},
                   {"rstrip", false},
                   {"normalized", false},
                   {"special", true}});
  }
  return out;
}

ordered_json tokenizer_json(const LearnedMerges& learned,
                            const std::vector<std::string>& specials) {
  const ordered_json byte_level = {{"type", "ByteLevel"},
                                   {"add_prefix_space", false},
                                   {"trim_offsets", true},
                                   {"use_regex", true}};
  ordered_json file = {
      {"version", "1.0"},          {"truncation", nullptr},
      {"padding", nullptr},        {"added_tokens", added_tokens(learned.tokens.size(), specials)},
      {"normalizer", nullptr},     {"pre_tokenizer", byte_level},
      {"post_processor", nullptr}, {"decoder", byte_level}};
  file["model"] = {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"ignore_merges", false},
                   {"vocab", tokens_by_text(learned, specials)},
                   {"merges", merge_lines(learned)}};
  return file;
}

}  // namespace

std::string byte_tokenizer_json() {
  LearnedMerges bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.tokens.emplace_back(1, static_cast<char>(byte));
  return tokenizer_json(bytes, {"<|endoftext|>"}).dump() + '\n';
}

void write_vocabulary(const LearnedMerges& learned, const std::vector<std::string>& specials,
                      const std::string& folder) {
  const NewFolder guard(folder);
  const std::filesystem::path path(folder);
  AtomicFile vocab_file((path / "vocab.json").string());
  AtomicFile merges_file((path / "merges.txt").string());
  AtomicFile tokenizer_file((path / "tokenizer.json").string());
  const ordered_json file = tokenizer_json(learned, specials);
  vocab_file.append(file.at("model").at("vocab").dump() + '\n');
  merges_file.append("#version: 0.2\n");
  for (const std::string& line : merge_lines(learned)) merges_file.append(line + '\n');
  tokenizer_file.append(file.dump() + '\n');
  vocab_file.commit();
  merges_file.commit();
  tokenizer_file.commit();
}

}  // namespace hyperslab::io
