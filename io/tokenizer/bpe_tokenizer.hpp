// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bitset>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hyperslab/io/tokenizer.hpp"
#include "tokenizer/bpe_vocabulary.hpp"
#include "tokenizer/idle_workers.hpp"
#include "tokenizer/pattern.hpp"
#include "tokenizer/piece_encoder.hpp"

namespace hyperslab::io {

/// Byte-level BPE (Sennrich et al. 2016 on bytes, as GPT-2). Threads may encode at the same time.
class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeVocabulary vocabulary);
  ~BpeTokenizer() override = default;
  BpeTokenizer(const BpeTokenizer&) = delete;  // the tables point to the vocabulary
  BpeTokenizer& operator=(const BpeTokenizer&) = delete;
  BpeTokenizer(BpeTokenizer&&) = delete;
  BpeTokenizer& operator=(BpeTokenizer&&) = delete;

  [[nodiscard]] std::int64_t vocabulary() const override {
    return static_cast<std::int64_t>(vocabulary_.tokens.size());
  }
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const override;
  [[nodiscard]] std::size_t last_cut(std::string_view text, std::size_t from) const override;
  [[nodiscard]] std::string decode(std::int32_t id) const override;
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
    Splitter splitter;
    PieceEncoder encoder;
    std::string composed;
    std::vector<AddedTokenSearch::Part> parts;
    std::vector<AddedTokenSearch::Part> normal_parts;
  };
  void add(const AddedToken& token);
  [[nodiscard]] bool may_cut(std::string_view text, std::size_t at) const;
  /// Encodes the text between added tokens that are not normalized.
  void append(std::string_view text, Worker& worker, std::vector<std::int32_t>& ids) const;

  /// A symbol for each byte.
  class Bytes final : public Alphabet {
   public:
    explicit Bytes(const std::array<std::int32_t, 256>& ids) : ids_(ids) {}
    void append(std::string_view piece, std::vector<std::int32_t>& ids) const override;

   private:
    const std::array<std::int32_t, 256>& ids_;
  };

  BpeVocabulary vocabulary_;
  std::vector<bool> special_;
  Pattern pattern_;
  Bytes bytes_;
  BpeTables tables_;
  AddedTokenSearch added_;                            ///< in text as it is
  AddedTokenSearch normal_added_;                     ///< in normalized text between them
  std::bitset<std::size_t{256} * 256> inside_added_;  ///< pairs of bytes that added tokens have
  std::bitset<256> ends_with_space_;  ///< last bytes of those that take white space after them
  bool any_takes_before_ = false;     ///< white space, of those that are found
  mutable IdleWorkers<Worker> workers_;
};

}  // namespace hyperslab::io
