// SPDX-License-Identifier: Apache-2.0
// Functions that the readers of vocab.json with merges.txt and of tokenizer.json share.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "tokenizer/bpe_vocabulary.hpp"
#include "tokenizer/character_vocabulary.hpp"

namespace hyperslab::io {

/// Throws Error(data) "vocabulary file 'PATH': TEXT".
[[noreturn]] void fail_vocabulary(const std::string& path, const std::string& text);

/// `text` in quotes, on one line and not too long.
[[nodiscard]] std::string shown(std::string_view text);

[[nodiscard]] std::string read_vocabulary_text(const std::string& path);
/// Throws Error(data) with line and column if it is broken.
[[nodiscard]] nlohmann::json read_json_file(const std::string& path);

/// The file of a vocabulary that decides which it is: a tokenizer.json or a vocab.json. `path`: of
/// a folder or of the file. Throws Error(data) if there is none.
[[nodiscard]] std::string vocabulary_file(const std::string& path);
/// True if a vocabulary's file is a tokenizer.json; else it is a vocab.json.
[[nodiscard]] bool is_tokenizer_json(const nlohmann::json& content);
/// The path of the merges.txt that belongs to a vocab.json, which `path` ends in.
[[nodiscard]] std::string merges_file(const std::string& path);

/// Collects tokens and merges of one vocabulary and checks them.
class VocabularyBuilder {
 public:
  explicit VocabularyBuilder(std::string path) : path_(std::move(path)) {}
  enum class Writing : std::uint8_t {
    gpt2,     ///< a character for each byte
    literal,  ///< as they are
  };
  /// All entries of {"token": id}.
  void add_tokens(const nlohmann::json& tokens, Writing writing = Writing::gpt2);
  /// A token whose text is meant literally; it may be known already, under the same id.
  void add_literal(const std::string& text, const nlohmann::json& id);
  /// `file` and `mark` ("line 7") say which merge it is.
  void add_merge(const std::string& left, const std::string& right, const std::string& file,
                 const std::string& mark);
  /// The id of a token, or -1.
  [[nodiscard]] std::int32_t id_of(const std::string& text) const;
  /// Ids of the bytes in GPT-2's writing. Throws Error(data) if a byte has none.
  [[nodiscard]] std::array<std::int32_t, 256> byte_ids() const;
  /// Checks that ids have no gaps. Ends the collection.
  [[nodiscard]] MergeVocabulary finish();

 private:
  struct Entry {
    std::int64_t id;
    std::string text;
    std::string bytes;
  };
  void add(const std::string& text, const nlohmann::json& id, std::string bytes);
  [[nodiscard]] std::int32_t find(const std::string& text, const std::string& file,
                                  const std::string& mark) const;
  [[nodiscard]] std::vector<std::string> take_tokens();
  [[nodiscard]] std::int32_t id_of_byte(std::uint8_t byte) const;

  std::string path_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string, std::size_t> index_;  ///< indices in entries_ by text
  std::unordered_map<std::uint64_t, std::size_t> merge_index_;
  std::vector<MergeVocabulary::Merge> merges_;
};

using Vocabulary = std::variant<BpeVocabulary, CharacterVocabulary>;

/// Reads `path`: a folder with tokenizer.json or with vocab.json and merges.txt (or gpt2_vocab.json
/// and gpt2_merges.txt), or one of the .json files; with the tokenizer_config.json of its folder,
/// if there is one. Throws Error(data) that names the file, the line or key, what was expected and
/// found.
[[nodiscard]] Vocabulary read_vocabulary(const std::string& path);

/// A special token that cannot be found in text, for its single_word; empty if there is none.
[[nodiscard]] std::string unparsed_special_token(const MergeVocabulary& vocabulary);
/// From now on special tokens are found in text. `path`: of the vocabulary, for errors.
void parse_special_tokens(const std::string& path, MergeVocabulary& vocabulary);

/// Hugging Face's file of one tokenizer of a byte-level BPE, read from `path`.
[[nodiscard]] BpeVocabulary read_tokenizer_json(const std::string& path,
                                                const nlohmann::json& file);
/// True if a tokenizer.json splits no text into bytes, as those do that came from SentencePiece.
[[nodiscard]] bool is_character_json(const nlohmann::json& file);
/// Vocabulary of a BPE on characters.
[[nodiscard]] CharacterVocabulary read_character_json(const std::string& path,
                                                      const nlohmann::json& file);

}  // namespace hyperslab::io
