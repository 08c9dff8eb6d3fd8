// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "tokenizer/pattern.hpp"
#include "tokenizer/text_template.hpp"
#include "tokenizer/tokenizer_file.hpp"
#include "tokenizer/vocabulary_parts.hpp"

namespace hyperslab::io {
namespace {

using nlohmann::json;

/// A file whose settings are refused unless they mean plain byte-level BPE.
class ByteLevelFile {
 public:
  ByteLevelFile(const std::string& path, const json& file)
      : file_(path, file, "byte-level BPE such as GPT-2's or Llama 3's"), builder_(path) {}

  BpeVocabulary read() {
    const json normalizer = alone(file_.part("normalizer"), "normalizers");
    const bool in_nfc = normalizer == json{{"type", "NFC"}};
    if (!in_nfc && !normalizer.is_null()) file_.refuse("normalizer", "null or NFC", normalizer);
    const json decoder = alone(file_.part("decoder"), "decoders");
    if (!decoder.is_null() && type_of(decoder) != "ByteLevel") {
      file_.refuse("decoder", "null or ByteLevel", decoder);
    }
    const std::string pattern = read_pattern();
    const json& model = file_.part("model");
    file_.add_model(model, VocabularyBuilder::Writing::gpt2, builder_);
    file_.require_value(model, "byte_fallback", false, "model.");
    read_added_tokens();
    BpeVocabulary vocabulary;
    static_cast<MergeVocabulary&>(vocabulary) = builder_.finish();
    vocabulary.byte_ids = builder_.byte_ids();
    vocabulary.pattern = pattern;
    vocabulary.pattern_source = fmt::format("vocabulary file '{}': pre_tokenizer", file_.path());
    vocabulary.in_nfc = in_nfc;
    vocabulary.whole_pieces = model.value("ignore_merges", json()) == json(true);
    vocabulary.added = std::move(added_);
    vocabulary.special = std::move(special_);
    vocabulary.text_template = read_text_template(file_.path(), file_.part("post_processor"),
                                                  std::ssize(vocabulary.tokens));
    return vocabulary;
  }

 private:
  static json type_of(const json& part) {
    return part.is_object() ? part.value("type", json()) : json();
  }
  /// The one part of a Sequence, whose list has the key `list`, or `part`.
  static json alone(const json& part, const std::string& list) {
    if (type_of(part) != "Sequence") return part;
    const json parts = part.value(list, json());
    return parts.is_array() && parts.size() == 1 ? parts[0] : part;
  }
  /// The types of a list's parts, for messages.
  static json types_of(const json& parts) {
    json types = json::array();
    for (const json& part : parts) types.push_back(type_of(part));
    return types;
  }

  void require_byte_level(const json& part, bool with_pattern) {
    if (!part.is_object() || part.value("type", json()) != "ByteLevel") {
      file_.refuse("pre_tokenizer", "type ByteLevel", part);
    }
    if (part.value("add_prefix_space", json(true)) != json(false)) {
      file_.refuse("pre_tokenizer.add_prefix_space", "false",
                   part.value("add_prefix_space", json(true)));
    }
    if (part.value("use_regex", json(true)) != json(with_pattern)) {
      file_.refuse("pre_tokenizer.use_regex",
                   with_pattern ? "true" : "false beside a Split, whose pattern it would follow",
                   part.value("use_regex", json(true)));
    }
  }

  /// ByteLevel alone, or a Split by a pattern and then ByteLevel.
  std::string read_pattern() {
    const json& part = file_.part("pre_tokenizer");
    if (!part.is_object() || part.value("type", json()) != "Sequence") {
      require_byte_level(part, true);
      return std::string(kGpt2Pattern);
    }
    const json parts = part.value("pretokenizers", json());
    if (!parts.is_array() || types_of(parts) != json{"Split", "ByteLevel"}) {
      file_.refuse("pre_tokenizer", "ByteLevel, or a Sequence of Split and ByteLevel",
                   parts.is_array() ? types_of(parts) : parts);
    }
    require_byte_level(parts[1], false);
    const json pattern = parts[0].value("pattern", json());
    const bool is_split = parts[0].value("type", json()) == "Split" && pattern.is_object() &&
                          pattern.contains("Regex") && pattern["Regex"].is_string() &&
                          parts[0].value("behavior", json()) == "Isolated" &&
                          parts[0].value("invert", json(false)) == json(false);
    if (!is_split)
      file_.refuse("pre_tokenizer", "a Split by a Regex, Isolated, not inverted", parts[0]);
    return pattern["Regex"].get<std::string>();
  }

  /// Special tokens stay hidden in text unless they are parsed; the others are found.
  void read_added_tokens() {
    for (const TokenizerFile::Added& token : file_.add_added_tokens(builder_)) {
      const auto flag = [&](const char* key) {
        return token.entry.value(key, json(false)) != json(false);
      };
      for (const char* key : {"single_word", "lstrip", "rstrip"}) {
        if (!token.special && flag(key)) file_.refuse(token.key + "." + key, "false", token.entry);
      }
      if (token.special) special_.push_back(token.id);
      added_.push_back(
          {.text = token.entry["content"].get<std::string>(),
           .id = token.id,
           .special = token.special,
           .hidden = token.special,
           .normalized = token.entry.value("normalized", json(!token.special)) != json(false),
           .takes_before = flag("lstrip"),
           .takes_after = flag("rstrip"),
           .single_word = flag("single_word"),
           .in_model = token.in_model});
    }
  }

  TokenizerFile file_;
  VocabularyBuilder builder_;
  std::vector<AddedToken> added_;
  std::vector<std::int32_t> special_;
};

}  // namespace

BpeVocabulary read_tokenizer_json(const std::string& path, const json& file) {
  return ByteLevelFile(path, file).read();
}

}  // namespace hyperslab::io
