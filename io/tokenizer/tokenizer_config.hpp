// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tokenizer/vocabulary_parts.hpp"

namespace hyperslab::io {

/// The tokenizer_config.json beside a vocabulary's file, which transformers reads as well; without
/// one nothing is set. All functions throw Error(data) with the file and the key.
class TokenizerConfig {
 public:
  explicit TokenizerConfig(const std::string& vocabulary_file);

  /// Throws unless the class of the tokenizer splits text as GPT-2's does and adds no tokens to
  /// vocab.json that would be found in text.
  void require_gpt2() const;
  /// Throws if a space is put before each text.
  void require_no_prefix_space() const;
  /// Throws if none is, by the only setting that says so beside a tokenizer.json.
  void require_prefix_space() const;
  /// The ids of bos_token and eos_token (<|endoftext|> if the file does not name them) if
  /// add_bos_token and add_eos_token ask for them. Beside a tokenizer.json its post_processor says
  /// that instead.
  [[nodiscard]] TextTemplate text_template(const BpeVocabulary& vocabulary) const;
  /// Adds the tokens of added_tokens_decoder that vocab.json does not have.
  void add_tokens(VocabularyBuilder& builder) const;
  /// Special tokens beside vocab.json, as transformers' GPT2Tokenizer finds them: the end of text,
  /// the ones of added_tokens_decoder, and all that keys such as unk_token and
  /// additional_special_tokens name; special_tokens_map.json's count, and first, where there is no
  /// added_tokens_decoder. Hidden until they are parsed; names that the vocabulary does not
  /// have count as missing.
  [[nodiscard]] std::vector<AddedToken> special_tokens(const MergeVocabulary& vocabulary) const;
  /// Tokenizer::text_ends() of a vocabulary whose template is known. Ids that the vocabulary does
  /// not have, which defaults of small models are, count as missing.
  [[nodiscard]] TextEnds text_ends(const MergeVocabulary& vocabulary) const;
  /// Tokenizer::named_tokens(). Names that the vocabulary does not have count as missing.
  [[nodiscard]] NamedTokens named_tokens(const MergeVocabulary& vocabulary) const;

 private:
  [[noreturn]] void refuse(const std::string& key, const std::string& expected,
                           const nlohmann::json& found, const std::string& remedy) const;
  [[nodiscard]] bool flag(const std::string& key) const;
  [[nodiscard]] nlohmann::json special_tokens_map() const;
  [[nodiscard]] nlohmann::json named_token(const std::string& key) const;
  /// The id of a token such as bos_token, or -1.
  [[nodiscard]] std::int32_t named_id(const std::string& key,
                                      const MergeVocabulary& vocabulary) const;

  std::string folder_;
  std::string path_;
  nlohmann::json file_ = nlohmann::json::object();
};

}  // namespace hyperslab::io
