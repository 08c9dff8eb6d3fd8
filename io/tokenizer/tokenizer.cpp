// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/tokenizer.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <utility>
#include <variant>

#include "hyperslab/core/error.hpp"
#include "tokenizer/added_tokens.hpp"
#include "tokenizer/bpe_tokenizer.hpp"
#include "tokenizer/character_tokenizer.hpp"
#include "tokenizer/cuts.hpp"
#include "tokenizer/vocabulary_parts.hpp"

namespace hyperslab::io {
namespace {

constexpr const char* kEnd = "<|endoftext|>";

class ByteTokenizer final : public Tokenizer {
 public:
  explicit ByteTokenizer(SpecialTokens special) {
    if (special == SpecialTokens::parsed) added_.add({.text = kEnd, .id = 256}, kEnd);
  }
  [[nodiscard]] std::int64_t vocabulary() const override { return 257; }
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids;
    ids.reserve(text.size());
    std::vector<AddedTokenSearch::Part> parts;
    added_.split(text, parts);
    for (const AddedTokenSearch::Part& part : parts) {
      if (part.id >= 0) ids.push_back(part.id);
      for (const char c : part.text) ids.push_back(static_cast<unsigned char>(c));
    }
    return ids;
  }
  [[nodiscard]] std::string decode(std::int32_t id) const override {
    return id >= 0 && id < 256 ? std::string(1, static_cast<char>(id)) : std::string();
  }
  [[nodiscard]] bool is_special(std::int32_t id) const override { return id == 256; }
  [[nodiscard]] std::int32_t end_of_text() const override { return 256; }
  [[nodiscard]] std::optional<SpecialToken> special_token(std::string_view name) const override {
    if (name != kEnd) return {};
    return SpecialToken{.id = 256};
  }

 private:
  AddedTokenSearch added_;
};

}  // namespace

std::size_t Tokenizer::last_cut(std::string_view text, std::size_t from) const {
  return io::last_cut(text, from);
}

std::optional<SpecialToken> Tokenizer::special_token(std::string_view /*name*/) const { return {}; }

TextEnds Tokenizer::text_ends() const {
  TextEnds ends;
  ends.add(end_of_text());
  return ends;
}

std::string TextDecoder::next(std::int32_t id) {
  if (!begins_ || tokenizer_->is_special(id)) return tokenizer_->decode(id);
  begins_ = tokenizer_->decode(id).empty();
  return tokenizer_->decode_first(id);
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& vocabulary, SpecialTokens special) {
  if (vocabulary == "bytes") return std::make_unique<ByteTokenizer>(special);
  std::error_code ignored;
  if (!std::filesystem::exists(vocabulary, ignored)) {
    throw Error(ExitCode::data,
                "vocabulary '" + vocabulary +
                    "': expected 'bytes', a folder or a tokenizer.json, " +
                    "found nothing under this path; correct it or train one with tokenize " +
                    "--train-vocab");
  }
  Vocabulary read = read_vocabulary(vocabulary);
  if (special == SpecialTokens::parsed) {
    const std::string file = vocabulary_file(vocabulary);
    std::visit([&](MergeVocabulary& each) { parse_special_tokens(file, each); }, read);
  }
  if (auto* characters = std::get_if<CharacterVocabulary>(&read)) {
    return std::make_unique<CharacterTokenizer>(std::move(*characters));
  }
  return std::make_unique<BpeTokenizer>(std::get<BpeVocabulary>(std::move(read)));
}

std::int32_t find_token(const Tokenizer& tokenizer, const std::string& vocabulary,
                        const std::string& name) {
  for (std::int32_t id = 0; id < tokenizer.vocabulary(); ++id) {
    if (tokenizer.decode(id) == name) return id;
  }
  throw Error(ExitCode::data,
              fmt::format("vocabulary '{}': expected a token '{}', found none; name a token that "
                          "it has",
                          vocabulary, name));
}

std::string unparsed_special_token(const std::string& vocabulary) {
  if (vocabulary == "bytes") return {};
  const Vocabulary read = read_vocabulary(vocabulary);
  return std::visit([](const MergeVocabulary& each) { return unparsed_special_token(each); }, read);
}

void require_fits_model(const Tokenizer& tokenizer, const std::string& vocabulary,
                        std::int64_t model_vocabulary) {
  if (tokenizer.vocabulary() <= model_vocabulary) return;
  throw Error(
      ExitCode::data,
      fmt::format("vocabulary '{}': expected at most {} tokens (model.vocabulary), found {}; "
                  "give the vocabulary that the model's tokens were made with",
                  vocabulary, model_vocabulary, tokenizer.vocabulary()));
}

}  // namespace hyperslab::io
