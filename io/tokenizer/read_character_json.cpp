// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "tokenizer/text_template.hpp"
#include "tokenizer/tokenizer_file.hpp"
#include "tokenizer/utf8.hpp"
#include "tokenizer/vocabulary_parts.hpp"

namespace hyperslab::io {
namespace {

using nlohmann::json;

constexpr std::size_t kMostSteps = 16;  // steps of a normalizer or decoder

json type_of(const json& part) { return part.is_object() ? part.value("type", json()) : json(); }

bool is_character(const json& text) {
  if (!text.is_string() || text.get_ref<const std::string&>().empty()) return false;
  const auto& bytes = text.get_ref<const std::string&>();
  return character_at(bytes, 0).bytes == bytes.size();
}

/// A file whose settings are refused unless they mean a BPE on characters.
class CharacterFile {
 public:
  CharacterFile(const std::string& path, const json& file)
      : file_(path, file, "BPE such as Llama 2's, Mistral's, Gemma's or GPT-2's"), builder_(path) {}

  CharacterVocabulary read() {
    out_.byte_ids.fill(-1);
    read_model(file_.part("model"));
    read_added_tokens();
    read_normalizer(file_.part("normalizer"));
    read_pre_tokenizer(file_.part("pre_tokenizer"));
    read_decoder(file_.part("decoder"));
    static_cast<MergeVocabulary&>(out_) = builder_.finish();
    out_.whole_pieces = whole_pieces_;
    out_.special = std::move(special_);
    out_.added = std::move(added_);
    out_.text_template =
        read_text_template(file_.path(), file_.part("post_processor"), std::ssize(out_.tokens));
    return std::move(out_);
  }

 private:
  [[nodiscard]] bool flag(const json& object, const std::string& key, bool absent) const {
    const json value = object.value(key, json());
    if (value.is_null()) return absent;
    if (!value.is_boolean()) file_.refuse(key, "true or false", value);
    return value.get<bool>();
  }

  void read_model(const json& model) {
    file_.add_model(model, VocabularyBuilder::Writing::literal, builder_);
    whole_pieces_ = flag(model, "ignore_merges", false);
    out_.fuses_unknown = flag(model, "fuse_unk", false);
    if (flag(model, "byte_fallback", false)) {
      for (std::size_t byte = 0; byte < out_.byte_ids.size(); ++byte) {
        out_.byte_ids[byte] = builder_.id_of(fmt::format("<0x{:02X}>", byte));
      }
    }
    const json unknown = model.value("unk_token", json());
    if (unknown.is_null()) return;
    if (unknown.is_string()) out_.unknown = builder_.id_of(unknown.get<std::string>());
    if (out_.unknown < 0) file_.refuse("model.unk_token", "a token of model.vocab", unknown);
  }

  void read_added_tokens() {
    for (const TokenizerFile::Added& token : file_.add_added_tokens(builder_)) {
      AddedToken added;
      added.text = token.entry["content"].get<std::string>();
      added.id = token.id;
      added.special = added.hidden = token.special;
      added.normalized = flag(token.entry, "normalized", true);
      added.takes_before = flag(token.entry, "lstrip", false);
      added.takes_after = flag(token.entry, "rstrip", false);
      added.in_model = token.in_model;
      added.single_word = flag(token.entry, "single_word", false);
      if (!added.special && added.single_word) {
        file_.refuse(token.key + ".single_word", "false", token.entry);
      }
      if (added.special) special_.push_back(added.id);
      added_.push_back(std::move(added));
    }
  }

  /// The parts of a Sequence, whose list has the key `list`, or `part` alone.
  [[nodiscard]] std::vector<json> parts_of(const json& part, const std::string& key,
                                           const std::string& list) const {
    if (part.is_null()) return {};
    if (type_of(part) != "Sequence") return {part};
    const json parts = part.value(list, json());
    if (!parts.is_array() || parts.size() > kMostSteps) {
      file_.refuse(key, fmt::format("a Sequence of at most {} parts", kMostSteps), part);
    }
    return parts.get<std::vector<json>>();
  }

  /// A Replace of one character by another.
  [[nodiscard]] NormalizerStep replacement(const std::string& key, const json& part) const {
    const json pattern = part.value("pattern", json());
    const json from = pattern.is_object() ? pattern.value("String", json()) : json();
    const json to = part.value("content", json());
    if (!is_character(from) || !is_character(to)) {
      file_.refuse(key, "a Replace of one character by another", part);
    }
    return {from.get<std::string>(), to.get<std::string>()};
  }

  void read_normalizer(const json& normalizer) {
    for (const json& part : parts_of(normalizer, "normalizer", "normalizers")) {
      if (type_of(part) == "Replace") {
        out_.normalizer.push_back(replacement("normalizer", part));
      } else if (type_of(part) == "Prepend" && is_character(part.value("prepend", json()))) {
        out_.normalizer.push_back({"", part["prepend"].get<std::string>()});
      } else {
        file_.refuse("normalizer",
                     "null, a Prepend or Replace of one character, or a Sequence of these",
                     type_of(part).is_string() ? type_of(part) : part);
      }
    }
  }

  [[nodiscard]] Metaspace metaspace(const std::string& key, const json& part) const {
    Metaspace out;
    const json replacement = part.value("replacement", json());
    if (!is_character(replacement)) file_.refuse(key + ".replacement", "a character", replacement);
    out.replacement = replacement.get<std::string>();
    out.splits = flag(part, "split", true);
    const bool has_prefix = flag(part, "add_prefix_space", true);  // as older files say it
    const json scheme = part.value("prepend_scheme", json(has_prefix ? "always" : "never"));
    if (!has_prefix && scheme != "never") {
      file_.refuse(key + ".add_prefix_space", "true beside prepend_scheme " + scheme.dump(), part);
    }
    if (scheme == "never") {
      out.prefix = Metaspace::Prefix::never;
    } else if (scheme == "first") {
      out.prefix = Metaspace::Prefix::first;
    } else if (scheme != "always") {
      file_.refuse(key + ".prepend_scheme", "never, first or always", scheme);
    }
    return out;
  }

  void read_pre_tokenizer(const json& part) {
    if (part.is_null()) return;
    if (type_of(part) == "Metaspace") {
      if (out_.puts_prefix()) {
        file_.refuse("pre_tokenizer", "null beside a normalizer with a Prepend", part);
      }
      out_.metaspace = metaspace("pre_tokenizer", part);
      return;
    }
    const json pattern = type_of(part) == "Split" ? part.value("pattern", json()) : json();
    const json text = pattern.is_object() ? pattern.value("String", json()) : json();
    const bool is_split = is_character(text) &&
                          part.value("behavior", json()) == "MergedWithPrevious" &&
                          !flag(part, "invert", false);
    if (!is_split) {
      file_.refuse("pre_tokenizer",
                   "null, Metaspace or a Split by one character, MergedWithPrevious, not inverted",
                   part);
    }
    out_.split_after = text.get<std::string>();
  }

  /// Metaspace alone, or in this order Replace, ByteFallback, Fuse and Strip, of which each may be
  /// missing, but a Strip comes after a Fuse.
  void read_decoder(const json& decoder) {
    const std::vector<json> parts = parts_of(decoder, "decoder", "decoders");
    if (parts.size() == 1 && type_of(parts[0]) == "Metaspace") {
      const Metaspace mark = metaspace("decoder", parts[0]);
      out_.rules.from = mark.replacement;
      out_.rules.to = " ";
      if (mark.prefix != Metaspace::Prefix::never) out_.rules.drops_in_first = mark.replacement;
      return;
    }
    constexpr std::array kOrder = {"Replace", "ByteFallback", "Fuse", "Strip"};
    std::size_t next = 0;
    bool fused = false;
    for (const json& part : parts) {
      const json type = type_of(part);
      while (next < kOrder.size() && type != kOrder[next]) ++next;
      const bool is_strip = type == "Strip";
      const bool fits = next < kOrder.size() && (!is_strip || (fused && strips_one_space(part)));
      if (!fits) refuse_decoder(type.is_string() && !is_strip ? type : part);
      fused = fused || type == "Fuse";
      if (type == "ByteFallback") out_.rules.has_bytes = true;
      if (is_strip) out_.rules.strips_first_space = part.value("start", json()) == 1;
      if (type == "Replace") {
        auto [from, to] = replacement("decoder", part);
        out_.rules.from = std::move(from);
        out_.rules.to = std::move(to);
      }
      ++next;
    }
    if (next == 0) refuse_decoder(decoder);
  }

  [[nodiscard]] static bool strips_one_space(const json& part) {
    const json start = part.value("start", json());
    return part.value("content", json()) == " " && part.value("stop", json()) == 0 &&
           (start == 0 || start == 1);
  }

  [[noreturn]] void refuse_decoder(const json& found) const {
    file_.refuse("decoder",
                 "Metaspace, or a Sequence of Replace, ByteFallback, Fuse and a Strip of one space "
                 "at the start",
                 found);
  }

  TokenizerFile file_;
  VocabularyBuilder builder_;
  CharacterVocabulary out_;
  std::vector<std::int32_t> special_;
  std::vector<AddedToken> added_;
  bool whole_pieces_ = false;
};

}  // namespace

bool is_character_json(const json& file) {
  if (type_of(file.value("decoder", json())) == "ByteLevel") return false;
  const json part = file.value("pre_tokenizer", json());
  if (part.is_null() || type_of(part) == "Metaspace") return true;
  const json pattern = type_of(part) == "Split" ? part.value("pattern", json()) : json();
  return pattern.is_object() && pattern.contains("String");
}

CharacterVocabulary read_character_json(const std::string& path, const json& file) {
  return CharacterFile(path, file).read();
}

}  // namespace hyperslab::io
