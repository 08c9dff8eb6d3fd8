// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/tokenizer_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>

#include "tokenizer/vocabulary_parts.hpp"

namespace hyperslab::io {
namespace {

using nlohmann::json;

constexpr const char* kDecoder = "added_tokens_decoder";
const std::string kCompleteRemedy = "save the tokenizer with its tokenizer.json";

json read_object(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return json::object();
  json file = read_json_file(path);
  if (!file.is_object()) {
    fail_vocabulary(
        path, fmt::format("expected an object, found {}; copy the file again", file.type_name()));
  }
  return file;
}

/// Text of a token that is a string, or an object with `content`; empty if it is neither.
std::string text_of(const json& token) {
  const json text = token.is_object() ? token.value("content", json()) : token;
  return text.is_string() ? text.get<std::string>() : std::string();
}

/// The id of a token of the vocabulary, or -1.
std::int32_t id_of(const std::string& text, const MergeVocabulary& vocabulary) {
  const auto found = std::ranges::find(vocabulary.tokens, text);
  return found == vocabulary.tokens.end()
             ? -1
             : static_cast<std::int32_t>(found - vocabulary.tokens.begin());
}

/// eos_token_id of a config.json or generation_config.json: an id or several; without the file or
/// the key none.
std::vector<std::int64_t> eos_ids_of(const std::string& path) {
  const json value = read_object(path).value("eos_token_id", json());
  if (value.is_null()) return {};
  const json list = value.is_array() ? value : json::array({value});
  const auto is_id = [](const json& id) { return id.is_number_unsigned(); };
  if (!std::ranges::all_of(list, is_id)) {
    fail_vocabulary(path, fmt::format("eos_token_id: expected an id, a list of ids or null, found "
                                      "{}; correct it",
                                      shown(value.dump())));
  }
  return list.get<std::vector<std::int64_t>>();
}

}  // namespace

TokenizerConfig::TokenizerConfig(const std::string& vocabulary_file)
    : folder_(std::filesystem::path(vocabulary_file).parent_path().string()),
      path_((std::filesystem::path(folder_) / "tokenizer_config.json").string()),
      file_(read_object(path_)) {}

void TokenizerConfig::refuse(const std::string& key, const std::string& expected, const json& found,
                             const std::string& remedy) const {
  fail_vocabulary(path_, fmt::format("{}: expected {}, found {}; {}", key, expected,
                                     shown(found.dump()), remedy));
}

bool TokenizerConfig::flag(const std::string& key) const {
  const json value = file_.value(key, json());
  if (value.is_null()) return false;
  if (!value.is_boolean()) refuse(key, "true or false", value, "correct it");
  return value.get<bool>();
}

void TokenizerConfig::require_gpt2() const {
  constexpr std::array kClasses = {"GPT2Tokenizer", "GPT2TokenizerFast", "CodeGenTokenizer",
                                   "CodeGenTokenizerFast"};
  const json name = file_.value("tokenizer_class", json());
  const bool is_known = std::ranges::any_of(kClasses, [&](const char* one) { return name == one; });
  if (!name.is_null() && !is_known) {
    refuse("tokenizer_class", "GPT2Tokenizer beside vocab.json and merges.txt", name,
           kCompleteRemedy);
  }
  const json decoder = file_.value(kDecoder, json::object());
  if (!decoder.is_object()) refuse(kDecoder, "an object", decoder, kCompleteRemedy);
  for (const auto& [id, token] : decoder.items()) {
    const bool special = token.is_object() && token.value("special", json()) == json(true);
    if (!special) {
      refuse(std::string(kDecoder) + "." + id, "special tokens alone beside vocab.json", token,
             kCompleteRemedy);
    }
  }
}

void TokenizerConfig::require_no_prefix_space() const {
  if (flag("add_prefix_space")) {
    refuse("add_prefix_space", "false, since text is encoded as it is", true,
           "set it to false, and begin texts with a space where the model expects one");
  }
}

void TokenizerConfig::require_prefix_space() const {
  if (file_.value("add_prefix_space", json()) == json(false)) {
    refuse("add_prefix_space", "true or null, as tokenizer.json puts a space before a text", false,
           "delete it if tokenizer.json is right, or save the tokenizer again");
  }
}

void TokenizerConfig::add_tokens(VocabularyBuilder& builder) const {
  const json decoder = file_.value(kDecoder, json::object());
  for (const auto& [key, token] : decoder.items()) {
    const std::string text = text_of(token);
    if (text.empty() || builder.id_of(text) >= 0) continue;
    std::int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size()) {
      refuse(std::string(kDecoder) + "." + key, "an id", key, kCompleteRemedy);
    }
    builder.add_literal(text, id);
  }
}

std::vector<AddedToken> TokenizerConfig::special_tokens(const MergeVocabulary& vocabulary) const {
  std::vector<AddedToken> found;
  const auto add = [&](const json& token) {
    const auto flag = [&](const char* key) {
      return token.is_object() && token.value(key, json()) == json(true);
    };
    const std::string text = text_of(token);
    const auto place = std::ranges::find(vocabulary.tokens, text);
    if (text.empty() || place == vocabulary.tokens.end()) return;
    if (std::ranges::count(found, text, &AddedToken::text) != 0) return;
    found.push_back({.text = text,
                     .id = static_cast<std::int32_t>(place - vocabulary.tokens.begin()),
                     .special = true,
                     .hidden = true,
                     .takes_before = flag("lstrip"),
                     .takes_after = flag("rstrip"),
                     .single_word = flag("single_word")});
  };
  const json decoder = file_.value(kDecoder, json::object());
  for (const json& token : decoder) add(token);
  json named = file_;
  if (decoder.empty()) named.update(special_tokens_map());
  for (const auto& [key, value] : named.items()) {
    if (key.ends_with("_token")) add(value);
    if (!key.ends_with("_special_tokens") || !value.is_structured()) continue;
    for (const json& token : value) add(token);
  }
  if (vocabulary.ends.separator >= 0) {
    add(vocabulary.tokens[static_cast<std::size_t>(vocabulary.ends.separator)]);
  }
  return found;
}

json TokenizerConfig::special_tokens_map() const {
  return read_object((std::filesystem::path(folder_) / "special_tokens_map.json").string());
}

/// The text of a token such as bos_token: a string, or an object with `content`.
json TokenizerConfig::named_token(const std::string& key) const {
  json token = file_.value(key, json());
  if (token.is_null()) {
    token = special_tokens_map().value(key, json());
  }
  return token.is_object() ? token.value("content", json()) : token;
}

std::int32_t TokenizerConfig::named_id(const std::string& key,
                                       const MergeVocabulary& vocabulary) const {
  const json token = named_token(key);
  return token.is_string() ? id_of(token.get_ref<const std::string&>(), vocabulary) : -1;
}

TextEnds TokenizerConfig::text_ends(const MergeVocabulary& vocabulary) const {
  constexpr std::array kNames = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"};
  const auto ids = [&](const char* name) {
    std::vector<std::int64_t> found = eos_ids_of((std::filesystem::path(folder_) / name).string());
    std::erase_if(found, [&](std::int64_t id) { return id >= std::ssize(vocabulary.tokens); });
    return found;
  };
  TextEnds ends;
  ends.of_generation = ids("generation_config.json");
  ends.of_config = ids("config.json");
  ends.add(named_id("eos_token", vocabulary));
  ends = ends.with(ends.of_generation).with(ends.of_config);
  for (const char* name : kNames) {
    if (ends.ids.empty()) ends.add(id_of(name, vocabulary));
  }
  const std::vector<std::int32_t>& after = vocabulary.text_template.after;
  if (ends.ids.empty() && !after.empty()) ends.add(after.back());
  return ends;
}

NamedTokens TokenizerConfig::named_tokens(const MergeVocabulary& vocabulary) const {
  const auto or_else = [](std::int32_t id, std::int32_t absent) { return id < 0 ? absent : id; };
  const std::vector<std::int32_t>& before = vocabulary.text_template.before;
  return {.bos = or_else(named_id("bos_token", vocabulary), before.empty() ? -1 : before.front()),
          .eos = or_else(named_id("eos_token", vocabulary), vocabulary.ends.separator),
          .pad = named_id("pad_token", vocabulary)};
}

TextTemplate TokenizerConfig::text_template(const BpeVocabulary& vocabulary) const {
  const auto id_of = [&](const std::string& key) {
    json token = named_token(key);
    if (token.is_null()) token = "<|endoftext|>";
    const auto found = token.is_string()
                           ? std::ranges::find(vocabulary.tokens, token.get<std::string>())
                           : vocabulary.tokens.end();
    if (found == vocabulary.tokens.end()) {
      refuse(key, fmt::format("a token of the vocabulary (add_{} is true)", key), token,
             fmt::format("name the token, or set add_{} to false", key));
    }
    return static_cast<std::int32_t>(found - vocabulary.tokens.begin());
  };
  TextTemplate text;
  if (flag("add_bos_token")) text.before.push_back(id_of("bos_token"));
  if (flag("add_eos_token")) text.after.push_back(id_of("eos_token"));
  return text;
}

}  // namespace hyperslab::io
