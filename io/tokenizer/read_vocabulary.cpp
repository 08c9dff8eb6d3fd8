// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <string_view>

#include "hyperslab/core/error.hpp"
#include "tokenizer/pattern.hpp"
#include "tokenizer/tokenizer_config.hpp"
#include "tokenizer/vocabulary_parts.hpp"

namespace hyperslab::io {
namespace {

constexpr std::string_view kVocab = "vocab.json";
constexpr std::string_view kMerges = "merges.txt";
constexpr const char* kSentencePiece = "tokenizer.model";
constexpr const char* kConvert =
    "tokenizer.model (SentencePiece's own format); convert it: in a Python with transformers and "
    "sentencepiece AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) writes a "
    "tokenizer.json";

/// "LEFT RIGHT" a line; a first line "#version..." is left out.
void add_merges(const std::string& path, VocabularyBuilder& builder) {
  const std::string text = read_vocabulary_text(path);
  std::string_view rest = text;
  for (std::size_t number = 1; !rest.empty(); ++number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
    const std::string mark = fmt::format("line {}", number);
    const std::size_t space = line.find(' ');
    const bool two = space != line.npos && space > 0 && space + 1 < line.size() &&
                     line.find(' ', space + 1) == line.npos;
    if (!two) {
      fail_vocabulary(path,
                      fmt::format("{}: expected two tokens separated by a space, found {}; copy "
                                  "the file again",
                                  mark, shown(line)));
    }
    builder.add_merge(std::string(line.substr(0, space)), std::string(line.substr(space + 1)), path,
                      mark);
  }
}

BpeVocabulary read_vocab_and_merges(const std::string& path, const nlohmann::json& tokens) {
  if (!path.ends_with(kVocab)) {
    fail_vocabulary(path,
                    "expected a tokenizer.json, or a file that ends in vocab.json beside its "
                    "merges.txt, found JSON of another name; rename it or give its folder");
  }
  VocabularyBuilder builder(path);
  builder.add_tokens(tokens);
  add_merges(merges_file(path), builder);
  BpeVocabulary vocabulary;
  static_cast<MergeVocabulary&>(vocabulary) = builder.finish();
  vocabulary.byte_ids = builder.byte_ids();
  vocabulary.pattern = kGpt2Pattern;
  vocabulary.pattern_source = fmt::format("vocabulary file '{}': the split pattern", path);
  return vocabulary;
}

/// Whether the pre-tokenizer is the one whose prefix space transformers sets by its own file.
bool is_byte_level_alone(const nlohmann::json& tokenizer) {
  const nlohmann::json part = tokenizer.value("pre_tokenizer", nlohmann::json());
  return part.is_object() && part.value("type", nlohmann::json()) == "ByteLevel";
}

/// What ends every text ends documents if no token of a known name does.
void add_end_of_text(MergeVocabulary& vocabulary) {
  const std::vector<std::int32_t>& after = vocabulary.text_template.after;
  if (vocabulary.end_of_text < 0 && !after.empty()) vocabulary.end_of_text = after.back();
}

std::string find_in_folder(const std::filesystem::path& folder) {
  constexpr std::array kNames = {"tokenizer.json", "vocab.json", "gpt2_vocab.json"};
  std::error_code ignored;
  for (const char* name : kNames) {
    if (std::filesystem::exists(folder / name, ignored)) return (folder / name).string();
  }
  const bool has_model = std::filesystem::exists(folder / kSentencePiece, ignored);
  throw Error(ExitCode::data,
              fmt::format("vocabulary '{}': expected a folder with tokenizer.json or "
                          "with vocab.json and merges.txt, found {}",
                          folder.string(), has_model ? kConvert : "neither; give another folder"));
}

}  // namespace

std::string merges_file(const std::string& path) {
  return path.substr(0, path.size() - kVocab.size()).append(kMerges);
}

bool is_tokenizer_json(const nlohmann::json& content) {
  return content.is_object() && content.contains("model") && content["model"].is_object();
}

std::string vocabulary_file(const std::string& path) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  if (!is_folder && !path.ends_with(".json")) {
    fail_vocabulary(path,
                    fmt::format("expected a folder, a tokenizer.json or a vocab.json, found {}",
                                path.ends_with(kSentencePiece)
                                    ? kConvert
                                    : "another file; give the folder that it is in"));
  }
  return is_folder ? find_in_folder(path) : path;
}

Vocabulary read_vocabulary(const std::string& path) {
  const std::string file = vocabulary_file(path);
  const nlohmann::json content = read_json_file(file);
  const bool is_tokenizer = is_tokenizer_json(content);
  const TokenizerConfig config(file);
  if (is_tokenizer && is_character_json(content)) {
    CharacterVocabulary vocabulary = read_character_json(file, content);
    if (vocabulary.puts_prefix()) config.require_prefix_space();
    add_end_of_text(vocabulary);
    vocabulary.named = config.named_tokens(vocabulary);
    return vocabulary;
  }
  if (!is_tokenizer) config.require_gpt2();
  if (!is_tokenizer || is_byte_level_alone(content)) config.require_no_prefix_space();
  BpeVocabulary vocabulary =
      is_tokenizer ? read_tokenizer_json(file, content) : read_vocab_and_merges(file, content);
  if (!is_tokenizer) vocabulary.text_template = config.text_template(vocabulary);
  add_end_of_text(vocabulary);
  vocabulary.named = config.named_tokens(vocabulary);
  return vocabulary;
}

}  // namespace hyperslab::io
