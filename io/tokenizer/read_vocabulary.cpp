// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
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
constexpr const char* kSentencePiece =
    " (SentencePiece's own format); convert it: in a Python with transformers and sentencepiece "
    "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) writes a tokenizer.json";

/// Files of vocabularies that are not read, and what to do instead.
struct ForeignFile {
  std::string_view name;
  std::string_view remedy;
};
constexpr std::array kForeignFiles = {
    ForeignFile{"tokenizer.model", kSentencePiece},
    ForeignFile{"spiece.model", kSentencePiece},
    ForeignFile{"sentencepiece.bpe.model", kSentencePiece},
    ForeignFile{"tekken.json",
                " (Mistral's own format); take the tokenizer.json of the model's files for "
                "transformers"},
    ForeignFile{"merges.txt",
                " alone, which belongs to a vocab.json; give the folder that both are in"},
    ForeignFile{"vocab.txt",
                " (WordPiece), which is not read; take a model whose tokenizer is a BPE"}};

/// True if each line is a token in base64 and its rank.
bool is_of_tiktoken(const std::string& path) {
  const std::string text = read_vocabulary_text(path);
  const std::string_view line = std::string_view(text).substr(0, text.find('\n'));
  const std::size_t space = line.find(' ');
  const auto has_only = [](std::string_view part, std::string_view characters) {
    return !part.empty() && part.find_first_not_of(characters) == part.npos;
  };
  return space != line.npos && has_only(line.substr(space + 1), "0123456789\r") &&
         has_only(line.substr(0, space),
                  "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=");
}

/// Names a file of a known format that is not read, and the remedy; empty for other files.
std::string foreign_file(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  const auto* const known = std::ranges::find(kForeignFiles, name, &ForeignFile::name);
  std::error_code ignored;
  if (known == kForeignFiles.end() || !std::filesystem::exists(path, ignored)) return {};
  if (known->remedy == kSentencePiece && is_of_tiktoken(path.string())) {
    return name +
           " (tiktoken's format); take the tokenizer.json of the model's files for "
           "transformers";
  }
  return name + std::string(known->remedy);
}

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

BpeVocabulary read_vocab_and_merges(const std::string& path, const nlohmann::json& tokens,
                                    const TokenizerConfig& config) {
  if (path.ends_with("tokenizer.json")) {
    const bool is_object = tokens.is_object();
    const nlohmann::json model = is_object ? tokens.value("model", nlohmann::json()) : tokens;
    fail_vocabulary(path, fmt::format("{}: expected an object, found {}; give the tokenizer.json "
                                      "of a BPE",
                                      is_object ? "model" : "the file", model.type_name()));
  }
  if (!path.ends_with(kVocab)) {
    if (const std::string foreign = foreign_file(path); !foreign.empty()) {
      fail_vocabulary(path, "expected a tokenizer.json or a vocab.json, found " + foreign);
    }
    fail_vocabulary(path,
                    "expected a tokenizer.json, or a file that ends in vocab.json beside its "
                    "merges.txt, found JSON of another name; rename it or give its folder");
  }
  VocabularyBuilder builder(path);
  builder.add_tokens(tokens);
  add_merges(merges_file(path), builder);
  config.add_tokens(builder);
  BpeVocabulary vocabulary;
  static_cast<MergeVocabulary&>(vocabulary) = builder.finish();
  vocabulary.text_template = config.text_template(vocabulary);
  vocabulary.ends = config.text_ends(vocabulary);
  vocabulary.added = config.special_tokens(vocabulary);
  vocabulary.byte_ids = builder.byte_ids();
  vocabulary.pattern = kGpt2Pattern;
  vocabulary.pattern_source = fmt::format("vocabulary file '{}': the split pattern", path);
  return vocabulary;
}

/// Before anything else of the file, which belongs to the kind of its model.
void require_bpe(const std::string& path, const nlohmann::json& model) {
  const nlohmann::json type = model.value("type", nlohmann::json());
  const bool has_scores = model.value("vocab", nlohmann::json()).is_array();
  if (type == "BPE" || (type.is_null() && !has_scores)) return;
  const std::string found = type.is_string() ? shown(type.get_ref<const std::string&>())
                            : type.is_null() ? "a vocabulary of scores ('Unigram')"
                                             : shown(type.dump());
  fail_vocabulary(path, fmt::format("model.type: expected BPE, found {}; other kinds are not read: "
                                    "take a model whose tokenizer is a BPE, or train a vocabulary "
                                    "on your texts with tokenize --train-vocab",
                                    found));
}

/// True if the pre-tokenizer is the one whose prefix space transformers sets by its own file.
bool is_byte_level_alone(const nlohmann::json& tokenizer) {
  const nlohmann::json part = tokenizer.value("pre_tokenizer", nlohmann::json());
  return part.is_object() && part.value("type", nlohmann::json()) == "ByteLevel";
}

std::string find_in_folder(const std::filesystem::path& folder) {
  constexpr std::array kNames = {"tokenizer.json", "vocab.json", "gpt2_vocab.json"};
  std::error_code ignored;
  for (const char* name : kNames) {
    if (std::filesystem::exists(folder / name, ignored)) return (folder / name).string();
  }
  std::string foreign;
  for (const ForeignFile& file : kForeignFiles) {
    if (foreign.empty()) foreign = foreign_file(folder / file.name);
  }
  throw Error(
      ExitCode::data,
      fmt::format("vocabulary '{}': expected a folder with tokenizer.json or "
                  "with vocab.json and merges.txt, found {}",
                  folder.string(), foreign.empty() ? "neither; give another folder" : foreign));
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
    const std::string foreign = foreign_file(path);
    fail_vocabulary(
        path, "expected a folder, a tokenizer.json or a vocab.json, found " +
                  (foreign.empty() ? "another file; give the folder that it is in" : foreign));
  }
  return is_folder ? find_in_folder(path) : path;
}

Vocabulary read_vocabulary(const std::string& path) {
  const std::string file = vocabulary_file(path);
  const nlohmann::json content = read_json_file(file);
  const bool is_tokenizer = is_tokenizer_json(content);
  if (is_tokenizer) require_bpe(file, content["model"]);
  const TokenizerConfig config(file);
  if (is_tokenizer && is_character_json(content)) {
    CharacterVocabulary vocabulary = read_character_json(file, content);
    if (vocabulary.puts_prefix()) config.require_prefix_space();
    vocabulary.ends = config.text_ends(vocabulary);
    vocabulary.named = config.named_tokens(vocabulary);
    return vocabulary;
  }
  if (!is_tokenizer) config.require_gpt2();
  if (!is_tokenizer || is_byte_level_alone(content)) config.require_no_prefix_space();
  BpeVocabulary vocabulary = is_tokenizer ? read_tokenizer_json(file, content)
                                          : read_vocab_and_merges(file, content, config);
  vocabulary.ends = config.text_ends(vocabulary);
  vocabulary.named = config.named_tokens(vocabulary);
  return vocabulary;
}

}  // namespace hyperslab::io
