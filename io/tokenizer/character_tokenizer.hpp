// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hyperslab/io/tokenizer.hpp"
#include "tokenizer/added_tokens.hpp"
#include "tokenizer/character_alphabet.hpp"
#include "tokenizer/character_cuts.hpp"
#include "tokenizer/character_texts.hpp"
#include "tokenizer/character_vocabulary.hpp"
#include "tokenizer/idle_workers.hpp"
#include "tokenizer/piece_encoder.hpp"

namespace hyperslab::io {

/// BPE on characters with a fallback to bytes (Kudo and Richardson 2018, as Hugging Face's
/// tokenizers do it). Threads may encode at the same time. A piece of text is one word, however
/// long; it is merged in the parts that CharacterCuts gives, so that these are short.
class CharacterTokenizer final : public Tokenizer {
 public:
  explicit CharacterTokenizer(CharacterVocabulary vocabulary);
  ~CharacterTokenizer() override = default;
  CharacterTokenizer(const CharacterTokenizer&) = delete;  // the tables point to the vocabulary
  CharacterTokenizer& operator=(const CharacterTokenizer&) = delete;
  CharacterTokenizer(CharacterTokenizer&&) = delete;
  CharacterTokenizer& operator=(CharacterTokenizer&&) = delete;

  [[nodiscard]] std::int64_t vocabulary() const override {
    return static_cast<std::int64_t>(vocabulary_.tokens.size());
  }
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const override {
    return encode_part(text, TextPlace::start);
  }
  [[nodiscard]] std::vector<std::int32_t> encode_part(std::string_view text,
                                                      TextPlace place) const override;
  [[nodiscard]] std::size_t last_cut(std::string_view text, std::size_t from) const override {
    return cuts_.last_cut(text, from);
  }
  [[nodiscard]] std::string decode(std::int32_t id) const override;
  [[nodiscard]] std::string decode_first(std::int32_t id) const override;
  [[nodiscard]] bool is_special(std::int32_t id) const override;
  [[nodiscard]] std::int32_t end_of_text() const override { return vocabulary_.ends.separator; }
  [[nodiscard]] TextEnds text_ends() const override { return vocabulary_.ends; }
  [[nodiscard]] TextTemplate text_template() const override { return vocabulary_.text_template; }
  [[nodiscard]] NamedTokens named_tokens() const override { return vocabulary_.named; }
  [[nodiscard]] std::optional<SpecialToken> special_token(std::string_view name) const override {
    return vocabulary_.special_token(name);
  }

 private:
  /// Working memory of one thread, kept from call to call.
  struct Worker {
    explicit Worker(const BpeTables& tables) : encoder(tables) {}
    PieceEncoder encoder;
    std::string normal;
    std::string spaced;
    std::vector<AddedTokenSearch::Part> parts;
    std::vector<AddedTokenSearch::Part> normal_parts;
  };

  void append_piece(std::string_view text, TextPlace place, Worker& worker,
                    std::vector<std::int32_t>& ids) const;
  void append_words(std::string_view text, TextPlace place, Worker& worker,
                    std::vector<std::int32_t>& ids) const;
  void append_word(std::string_view word, Worker& worker, std::vector<std::int32_t>& ids) const;
  [[nodiscard]] std::size_t end_of_word(std::string_view text, std::size_t begin) const;

  CharacterVocabulary vocabulary_;
  std::vector<bool> special_;
  CharacterAlphabet alphabet_;
  BpeTables tables_;
  CharacterCuts cuts_;
  CharacterTexts texts_;
  AddedTokenSearch added_;                                    ///< in text as it is
  AddedTokenSearch normal_added_;                             ///< in normalized text
  std::unordered_map<std::string_view, std::int32_t> whole_;  ///< words that are not merged

  mutable IdleWorkers<Worker> workers_;
};

}  // namespace hyperslab::io
