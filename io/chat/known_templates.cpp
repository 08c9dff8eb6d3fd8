// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "hyperslab/core/error.hpp"
#include "hyperslab/io/chat.hpp"
#include "hyperslab/io/text_file.hpp"
#include "tokenizer/vocabulary_parts.hpp"

namespace hyperslab::io {
namespace {

/// A published template, known by its fingerprint.
struct KnownTemplate {
  std::uint64_t fingerprint;
  std::string_view name;  ///< that the template which does the same has here
};
constexpr std::array kKnownTemplates = {
    KnownTemplate{0x88BF4138D5C826F0U, "chatml"},
    KnownTemplate{0x8A87094E0E1E24C5U, "qwen2"},
    KnownTemplate{0x11D394755CEF9355U, "qwen2.5"},
    KnownTemplate{0x521E84E1430005C3U, "qwen3"},
    KnownTemplate{0xABB815B933A4981AU, "qwen3"},
    KnownTemplate{0xE62B0EB869D628C3U, "qwen3-2507"},
    KnownTemplate{0x4D1512049817743DU, "llama2"},
    KnownTemplate{0x0E60067A5537498EU, "llama3"},
    KnownTemplate{0x4FD30286BC0DA17CU, "llama3.1"},
    KnownTemplate{0x8C734B90B4F8D84DU, "mistral"},
    KnownTemplate{0xD99E5B4469BE13B3U, "mistral-v1"},
    KnownTemplate{0x09EB1999B1FCF65FU, "mistral-v3"},
    KnownTemplate{0xF1784176FABCEB43U, "mistral-nemo"},
    KnownTemplate{0x5C10EE65212D93B3U, "gemma"},
    KnownTemplate{0xD19B6FF3A49DEEA5U, "gemma3"},
    KnownTemplate{0xECEBDB26677C663DU, "phi3"},
    KnownTemplate{0xCF278CDE387A54C8U, "phi3.5"},
};

/// A published template that depends on more than the messages.
struct RefusedTemplate {
  std::uint64_t fingerprint;
  std::string_view reason;
};
constexpr std::array kRefusedTemplates = {
    RefusedTemplate{0x1A6DA26E3AEF1B34U, "writes the day on which it is used (Llama 3.2)"},
};

struct TemplateSource {
  std::string file;
  std::string text;
};

std::string template_remedy(ChatUse use) {
  return fmt::format(
      "name one that does the same with --chat-template ({}){}",
      fmt::join(chat_template_names(use), ", "),
      use == ChatUse::rows ? ", or render the rows by jobs/data/render_chats.py" : "");
}

/// The text of `chat_template`, which is a text or a list of named ones; nothing without the key.
std::optional<std::string> template_text(const std::string& file, const nlohmann::json& value,
                                         ChatUse use) {
  if (value.is_null()) return {};
  if (value.is_string()) return value.get<std::string>();
  for (const nlohmann::json& each : value.is_array() ? value : nlohmann::json::array()) {
    const bool is_default = each.is_object() && each.value("name", nlohmann::json()) == "default";
    const nlohmann::json text = is_default ? each.value("template", nlohmann::json()) : each;
    if (is_default && text.is_string()) return text.get<std::string>();
  }
  fail_vocabulary(file, fmt::format("chat_template: expected a text, or a list with one named "
                                    "'default', found {}; {}",
                                    value.type_name(), template_remedy(use)));
}

std::optional<TemplateSource> template_in(const std::filesystem::path& folder, ChatUse use) {
  std::error_code ignored;
  const std::filesystem::path jinja = folder / "chat_template.jinja";
  if (std::filesystem::is_regular_file(jinja, ignored)) {
    return TemplateSource{jinja.string(), read_vocabulary_text(jinja.string())};
  }
  const std::string config = (folder / "tokenizer_config.json").string();
  if (!std::filesystem::is_regular_file(config, ignored)) return {};
  const nlohmann::json settings = read_json_file(config);
  if (!settings.is_object()) return {};
  const auto text = template_text(config, settings.value("chat_template", nlohmann::json()), use);
  if (!text) return {};
  return TemplateSource{config, *text};
}

}  // namespace

std::uint64_t fingerprint_of_template(std::string_view source) {
  if (source.ends_with('\n')) source.remove_suffix(1);  // as Jinja does
  if (source.ends_with('\r')) source.remove_suffix(1);
  std::uint64_t hash = 0xCBF29CE484222325ULL;  // FNV-1a
  for (std::size_t i = 0; i < source.size(); ++i) {
    char c = source[i];
    if (source.substr(i).starts_with("\r\n")) continue;
    if (source.substr(i).starts_with("\\n")) {
      c = '\n';
      ++i;
    }
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  }
  return hash;
}

std::optional<ChatTemplate> known_chat_template(std::uint64_t fingerprint) {
  const auto known = std::ranges::find(kKnownTemplates, fingerprint, &KnownTemplate::fingerprint);
  if (known == kKnownTemplates.end()) return {};
  return find_chat_template(known->name);
}

ChatTemplate chat_template_of(const std::string& vocabulary, ChatUse use) {
  std::optional<TemplateSource> source;
  if (vocabulary != "bytes") {
    source = template_in(std::filesystem::path(vocabulary_file(vocabulary)).parent_path(), use);
  }
  if (!source) {
    throw Error(ExitCode::data, fmt::format("vocabulary '{}': expected a chat template in its "
                                            "chat_template.jinja or tokenizer_config.json, found "
                                            "none; {}",
                                            vocabulary, template_remedy(use)));
  }
  const std::uint64_t fingerprint = fingerprint_of_template(source->text);
  if (const auto known = known_chat_template(fingerprint)) return *known;
  const auto refused =
      std::ranges::find(kRefusedTemplates, fingerprint, &RefusedTemplate::fingerprint);
  const std::string found = refused != kRefusedTemplates.end()
                                ? fmt::format("one that {}", refused->reason)
                                : fmt::format("another one (fingerprint {:016x})", fingerprint);
  fail_vocabulary(source->file, fmt::format("chat_template: expected one of those known here, "
                                            "found {}; {}",
                                            found, template_remedy(use)));
}

}  // namespace hyperslab::io
