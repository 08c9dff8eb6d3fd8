// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tokenizer/vocabulary_parts.hpp"

namespace hyperslab::io {

/// A tokenizer.json, of which all settings are honoured or refused: the part that its kinds share.
/// All functions throw Error(data) with the file and the key.
class TokenizerFile {
 public:
  /// `path` and `file` must outlive this. `kind`: of tokenizers that are read, for messages.
  TokenizerFile(const std::string& path, const nlohmann::json& file, std::string kind)
      : path_(path), file_(file), kind_(std::move(kind)) {}

  [[nodiscard]] const std::string& path() const { return path_; }
  /// A key of the outermost object; null if it is missing.
  [[nodiscard]] const nlohmann::json& part(const std::string& key) const {
    static const nlohmann::json none;
    const auto found = file_.find(key);
    return found == file_.end() ? none : *found;
  }
  /// `remedy`: what to do; empty: give another file.
  [[noreturn]] void refuse(const std::string& key, const std::string& expected,
                           const nlohmann::json& found, const std::string& remedy = "") const;
  /// `key` of `object` must be absent, null or `expected`. `prefix`: of the key in messages.
  void require_value(const nlohmann::json& object, const std::string& key,
                     const nlohmann::json& expected, const std::string& prefix = "") const;
  /// Adds tokens and merges of `model`, which must be a BPE without dropout, prefixes and suffixes.
  void add_model(const nlohmann::json& model, VocabularyBuilder::Writing writing,
                 VocabularyBuilder& builder) const;

  /// An entry of added_tokens.
  struct Added {
    std::string key;  ///< "added_tokens[3]"
    nlohmann::json entry;
    std::int32_t id;
    bool special;
    bool in_model;  ///< also in model.vocab
  };
  /// Adds the tokens of added_tokens to `builder` and gives them.
  [[nodiscard]] std::vector<Added> add_added_tokens(VocabularyBuilder& builder) const;

 private:
  void add_merge(const nlohmann::json& merge, std::size_t index, VocabularyBuilder& builder) const;

  const std::string& path_;
  const nlohmann::json& file_;
  std::string kind_;
};

}  // namespace hyperslab::io
