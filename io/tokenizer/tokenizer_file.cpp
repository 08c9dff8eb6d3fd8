// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/tokenizer_file.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace hyperslab::io {

using nlohmann::json;

namespace {
// Bytes of an added token, as searching takes their product with a text's; and of all, as each is a
// node of a tree.
constexpr std::size_t kLongestAdded = 1 << 10;
constexpr std::size_t kMostAdded = 4 << 20;
}  // namespace

void TokenizerFile::refuse(const std::string& key, const std::string& expected, const json& found,
                           const std::string& remedy) const {
  fail_vocabulary(path_,
                  fmt::format("{}: expected {}, found {}; {}", key, expected, shown(found.dump()),
                              remedy.empty() ? "give the tokenizer.json of a " + kind_ : remedy));
}

void TokenizerFile::require_value(const json& object, const std::string& key, const json& expected,
                                  const std::string& prefix) const {
  const json found = object.value(key, json());
  if (!found.is_null() && found != expected) refuse(prefix + key, expected.dump(), found);
}

void TokenizerFile::add_model(const json& model, VocabularyBuilder::Writing writing,
                              VocabularyBuilder& builder) const {
  if (const json dropout = model.value("dropout", json()); !dropout.is_null() && dropout != 0) {
    refuse("model.dropout", "null, as equal texts have equal ids", dropout, "set it to null");
  }
  require_value(model, "continuing_subword_prefix", "", "model.");
  require_value(model, "end_of_word_suffix", "", "model.");
  const json vocab = model.value("vocab", json());
  if (!vocab.is_object()) refuse("model.vocab", "an object of tokens and ids", vocab);
  builder.add_tokens(vocab, writing);
  const json merges = model.value("merges", json());
  if (!merges.is_array()) refuse("model.merges", "a list", merges);
  for (std::size_t i = 0; i < merges.size(); ++i) add_merge(merges[i], i, builder);
}

void TokenizerFile::add_merge(const json& merge, std::size_t index,
                              VocabularyBuilder& builder) const {
  const std::string mark = fmt::format("model.merges[{}]", index);
  const bool is_pair =
      merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string();
  std::string left = is_pair ? merge[0].get<std::string>() : std::string();
  std::string right = is_pair ? merge[1].get<std::string>() : std::string();
  if (merge.is_string()) {
    const auto& line = merge.get_ref<const std::string&>();
    const std::size_t space = std::min(line.find(' '), line.size());
    left = line.substr(0, space);
    right = line.substr(std::min(space + 1, line.size()));
  }
  if (left.empty() || right.empty()) refuse(mark, "two tokens", merge);
  builder.add_merge(left, right, path_, mark);
}

std::vector<TokenizerFile::Added> TokenizerFile::add_added_tokens(
    VocabularyBuilder& builder) const {
  const json tokens = file_.value("added_tokens", json::array());
  if (!tokens.is_array()) refuse("added_tokens", "a list", tokens);
  std::vector<Added> all;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const json& token = tokens[i];
    const std::string key = fmt::format("added_tokens[{}]", i);
    const bool named = token.is_object() && token.value("content", json()).is_string() &&
                       !token["content"].get_ref<const std::string&>().empty();
    if (!named) refuse(key, "an object with content and id", token);
    const std::size_t size = token["content"].get_ref<const std::string&>().size();
    if (size > kLongestAdded) {
      refuse(key, fmt::format("a token of at most {} bytes", kLongestAdded), token);
    }
    bytes += size;
    if (bytes > kMostAdded) {
      refuse(key, fmt::format("added tokens of at most {} bytes in all", kMostAdded), token);
    }
    const bool in_model = builder.id_of(token["content"]) >= 0;
    builder.add_literal(token["content"], token.value("id", json()));
    const bool special = token.value("special", json(false)) == json(true);
    all.push_back({key, token, token["id"].get<std::int32_t>(), special, in_model});
  }
  return all;
}

}  // namespace hyperslab::io
