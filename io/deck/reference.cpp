// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/deck/reference.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "hyperslab/core/error.hpp"
#include "hyperslab/deck/deck.hpp"
#include "keys.hpp"
#include "nearest.hpp"

namespace hyperslab::deck {
namespace {

constexpr std::size_t kColumns = 98;

/// The words of `text` on lines of at most kColumns, each after `indent` blanks.
std::string wrapped(std::string_view text, std::size_t indent) {
  std::string out;
  std::size_t column = kColumns;
  while (!text.empty()) {
    const auto word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    if (column + 1 + word.size() > kColumns) {
      out += (out.empty() ? "" : "\n") + std::string(indent, ' ');
      column = indent;
    } else {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  return out + '\n';
}

/// "required", "default 1", "default learned, with family llama rope", with a mark around values.
std::string default_text(const KeyInfo& key, std::string_view mark) {
  if (key.gpt2_default.empty()) {
    return key.vit_default.empty() ? "required" : "required, but not with family vit";
  }
  auto text = fmt::format("default {0}{1}{0}", mark, key.gpt2_default);
  const auto add = [&](std::string_view family, const std::string& fallback) {
    if (fallback == key.gpt2_default) return;
    text += fallback.empty() ? fmt::format(", with family {} required", family)
                             : fmt::format(", with family {0} {1}{2}{1}", family, mark, fallback);
  };
  add("llama", key.llama_default);
  add("vit", key.vit_default);
  return text;
}

std::string without(char mark, std::string text) {
  std::erase(text, mark);
  return text;
}

std::string key_text(const KeyInfo& key) {
  return fmt::format(
      "{}\n{}{}", key.key,
      wrapped(fmt::format("{}; {}", without('`', key.values), default_text(key, "")), 4),
      wrapped(key.sentence, 4));
}

std::string key_row(const KeyInfo& key) {
  const auto fallback = default_text(key, "`");
  constexpr std::string_view kDefault = "default ";
  return fmt::format("| `{}` | {} | {} | {} |\n", key.key, key.values,
                     fallback.starts_with(kDefault) ? fallback.substr(kDefault.size()) : fallback,
                     key.sentence);
}

/// Throws for a section that there is not.
void require_section(std::string_view section) {
  if (section.empty() || find_section(section) != nullptr) return;
  const auto near = nearest_word(section, section_names());
  throw Error(ExitCode::usage,
              fmt::format("there is no section '{}' ({})", section,
                          near.empty() ? fmt::format("known are {}", listed(section_names(), ""))
                                       : fmt::format("did you mean '{}'?", near)));
}

bool is_of(std::string_view key, std::string_view section) {
  return section.empty() || key.substr(0, key.find('.')) == section;
}

/// "section.key" of the first section that has this key; empty if none has.
std::string key_anywhere(std::string_view key) {
  for (const auto& section : known_sections()) {
    if (std::ranges::find(section.keys, key) != section.keys.end()) {
      return fmt::format("{}.{}", section.name, key);
    }
  }
  return "";
}

std::string nearest_in(std::string_view section, std::string_view key) {
  const auto* known = find_section(section);
  const auto near = known == nullptr ? std::string_view() : nearest_word(key, known->keys);
  return near.empty() ? "" : fmt::format("{}.{}", section, near);
}

}  // namespace

std::string keys_text(std::string_view section) {
  if (is_key(section)) {
    const auto name = section.substr(0, section.find('.'));
    const auto all = sections();
    const auto& keys = std::ranges::find(all, name, &SectionInfo::name)->keys;
    return key_text(*std::ranges::find(keys, section, &KeyInfo::key));
  }
  if (section.find('.') != std::string_view::npos) {
    const auto meant = meant_key(section);
    throw Error(ExitCode::usage,
                fmt::format("there is no key '{}'{}", section,
                            meant.empty() ? "" : fmt::format("; did you mean '{}'?", meant)));
  }
  require_section(section);
  std::string text;
  for (const auto& one : sections()) {
    if (!is_of(one.name, section)) continue;
    text += fmt::format("{}{}: {}\n", text.empty() ? "" : "\n", one.name, one.sentence);
    for (const auto& key : one.keys) text += '\n' + key_text(key);
  }
  return text;
}

std::string keys_markdown(std::string_view section) {
  require_section(section);
  std::string text;
  for (const auto& one : sections()) {
    if (!is_of(one.name, section)) continue;
    text +=
        fmt::format("{}### `{}`\n\n{}\n\n| key | values | default | meaning |\n|---|---|---|---|\n",
                    text.empty() ? "" : "\n", one.name, one.sentence);
    for (const auto& key : one.keys) text += key_row(key);
  }
  return text;
}

std::string rules_text(std::string_view section) {
  require_section(section);
  std::string text;
  std::string_view last;
  for (const auto& rule : rules()) {
    if (!is_of(rule.key, section)) continue;
    if (rule.key != last) text += fmt::format("{}{}\n", text.empty() ? "" : "\n", rule.key);
    last = rule.key;
    text += wrapped(without('`', std::string(rule.name)), 4);
  }
  return text;
}

std::string rules_table(std::string_view section) {
  require_section(section);
  std::string table = "| key | must be |\n|---|---|\n";
  for (const auto& rule : rules()) {
    if (is_of(rule.key, section)) table += fmt::format("| `{}` | {} |\n", rule.key, rule.name);
  }
  return table;
}

bool is_key(std::string_view key) {
  return std::ranges::find(full_keys(), key) != full_keys().end();
}

std::string meant_key(std::string_view word) {
  const auto dot = word.find('.');
  const auto key = dot == std::string_view::npos ? word : word.substr(dot + 1);
  const auto given = dot == std::string_view::npos ? std::string_view() : word.substr(0, dot);
  const auto section = given.empty() || find_section(given) != nullptr
                           ? given
                           : nearest_word(given, section_names());
  const auto there = fmt::format("{}.{}", section, key);
  if (is_key(there)) return there;
  const auto near = section.empty() ? "" : nearest_in(section, key);
  if (near.starts_with(there)) return near;  // its beginning
  if (auto elsewhere = key_anywhere(key); !elsewhere.empty()) return elsewhere;
  if (!section.empty()) return near;
  if (!given.empty()) return "";
  std::vector<std::string_view> keys;
  for (const auto& known : known_sections()) {
    keys.insert(keys.end(), known.keys.begin(), known.keys.end());
  }
  return key_anywhere(nearest_word(key, keys));
}

}  // namespace hyperslab::deck
