// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "tokenizer/pattern.hpp"
#include "tokenizer/text_template.hpp"
#include "tokenizer/vocabulary_parts.hpp"

namespace hyperslab::io {
namespace {

using nlohmann::json;

/// A file whose settings are refused unless they mean plain byte-level BPE.
class TokenizerFile {
 public:
  TokenizerFile(const std::string& path, const json& file)
      : path_(path), file_(file), builder_(path) {}

  BpeVocabulary read() {
    const bool in_nfc = file_.value("normalizer", json()) == json{{"type", "NFC"}};
    if (!in_nfc) require_value(file_, "normalizer", json());
    const std::string pattern = read_pattern();
    const json& model = file_.at("model");
    read_model(model);
    read_added_tokens();
    BpeVocabulary vocabulary = builder_.finish();
    vocabulary.pattern = pattern;
    vocabulary.pattern_source = fmt::format("vocabulary file '{}': pre_tokenizer", path_);
    vocabulary.in_nfc = in_nfc;
    vocabulary.whole_pieces = model.value("ignore_merges", json()) == json(true);
    vocabulary.added = std::move(added_);
    vocabulary.special = std::move(special_);
    vocabulary.text_template = read_text_template(path_, file_.value("post_processor", json()),
                                                  std::ssize(vocabulary.tokens));
    return vocabulary;
  }

 private:
  [[noreturn]] void refuse(const std::string& key, const std::string& expected, const json& found) {
    fail_vocabulary(path_, fmt::format("{}: expected {}, found {}; give the tokenizer.json of a "
                                       "byte-level BPE such as GPT-2's or Llama 3's",
                                       key, expected, shown(found.dump())));
  }

  /// `key` of `object` must be absent, null or `expected`.
  void require_value(const json& object, const std::string& key, const json& expected) {
    const json found = object.value(key, json());
    if (!found.is_null() && found != expected) refuse(key, expected.dump(), found);
  }

  void require_byte_level(const json& part, bool with_pattern) {
    if (!part.is_object() || part.value("type", json()) != "ByteLevel") {
      refuse("pre_tokenizer", "type ByteLevel", part);
    }
    if (part.value("add_prefix_space", json(true)) != json(false)) {
      refuse("pre_tokenizer.add_prefix_space", "false", part.value("add_prefix_space", json(true)));
    }
    if (part.value("use_regex", json(true)) != json(with_pattern)) {
      refuse("pre_tokenizer.use_regex", with_pattern ? "true" : "false", part);
    }
  }

  /// ByteLevel alone, or a Split by a pattern and then ByteLevel.
  std::string read_pattern() {
    const json part = file_.value("pre_tokenizer", json());
    if (!part.is_object() || part.value("type", json()) != "Sequence") {
      require_byte_level(part, true);
      return std::string(kGpt2Pattern);
    }
    const json parts = part.value("pretokenizers", json());
    if (!parts.is_array() || parts.size() != 2 || !parts[0].is_object()) {
      refuse("pre_tokenizer", "a Split and a ByteLevel", parts);
    }
    require_byte_level(parts[1], false);
    const json pattern = parts[0].value("pattern", json());
    const bool is_split = parts[0].value("type", json()) == "Split" && pattern.is_object() &&
                          pattern.contains("Regex") && pattern["Regex"].is_string() &&
                          parts[0].value("behavior", json()) == "Isolated" &&
                          parts[0].value("invert", json(false)) == json(false);
    if (!is_split) refuse("pre_tokenizer", "a Split by a Regex, Isolated, not inverted", parts[0]);
    return pattern["Regex"].get<std::string>();
  }

  void read_model(const json& model) {
    if (model.value("type", json("BPE")) != "BPE") refuse("model.type", "BPE", model["type"]);
    require_value(model, "dropout", json());
    require_value(model, "continuing_subword_prefix", "");
    require_value(model, "end_of_word_suffix", "");
    require_value(model, "byte_fallback", false);
    builder_.add_tokens(model.value("vocab", json()));
    const json merges = model.value("merges", json());
    if (!merges.is_array()) refuse("model.merges", "a list", merges);
    for (std::size_t i = 0; i < merges.size(); ++i) read_merge(merges[i], i);
  }

  void read_merge(const json& merge, std::size_t index) {
    const std::string mark = fmt::format("model.merges[{}]", index);
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      return builder_.add_merge(merge[0], merge[1], path_, mark);
    }
    const std::string line = merge.is_string() ? merge.get<std::string>() : std::string();
    const std::size_t space = line.find(' ');
    if (space == line.npos) refuse(mark, "two tokens", merge);
    builder_.add_merge(line.substr(0, space), line.substr(space + 1), path_, mark);
  }

  /// Special tokens never are found in text; the others are, and then only as plain text.
  void read_added_tokens() {
    const json tokens = file_.value("added_tokens", json::array());
    if (!tokens.is_array()) refuse("added_tokens", "a list", tokens);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const json& token = tokens[i];
      const std::string key = fmt::format("added_tokens[{}]", i);
      const bool named = token.is_object() && token.value("content", json()).is_string() &&
                         !token["content"].get_ref<const std::string&>().empty();
      if (!named) refuse(key, "an object with content and id", token);
      builder_.add_literal(token["content"], token.value("id", json()));
      const auto id = token["id"].get<std::int32_t>();
      if (token.value("special", json(false)) == json(true)) {
        special_.push_back(id);
        continue;
      }
      for (const char* flag : {"single_word", "lstrip", "rstrip"}) {
        if (token.value(flag, json(false)) != json(false)) refuse(key + "." + flag, "false", token);
      }
      added_.push_back(id);
    }
  }

  const std::string& path_;
  const json& file_;
  VocabularyBuilder builder_;
  std::vector<std::int32_t> added_;
  std::vector<std::int32_t> special_;
};

}  // namespace

BpeVocabulary read_tokenizer_json(const std::string& path, const json& file) {
  return TokenizerFile(path, file).read();
}

}  // namespace hyperslab::io
