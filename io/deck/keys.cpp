// SPDX-License-Identifier: Apache-2.0
#include "keys.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "hyperslab/deck/deck.hpp"
#include "key_sentences.hpp"
#include "schema.hpp"

namespace hyperslab::deck {
namespace {

template <std::size_t N, class Enum>
std::vector<std::string_view> names_of(const std::array<Name<Enum>, N>& table) {
  std::vector<std::string_view> names;
  names.reserve(N);
  for (const auto& [name, value] : table) names.push_back(name);
  return names;
}

bool is_required(std::string_view key, model::Family family) {
  const auto holds = [&](std::span<const std::string_view> keys) {
    return std::ranges::find(keys, key) != keys.end();
  };
  return holds(kRequiredKeys) ||
         holds(family == model::Family::vit ? std::span<const std::string_view>(kRequiredOfImages)
                                            : kRequiredOfText);
}

/// Visits the description and keeps a row per key, with the values that the visited config has as
/// the defaults of family gpt2.
class KeyLister {
 public:
  explicit KeyLister(model::Family family) : family_(family) {}

  /// Gives the visited sections away; leaves nothing here.
  [[nodiscard]] std::vector<SectionInfo> take_sections() { return std::move(sections_); }
  void section(std::string_view name) { sections_.push_back({name, sentence_of(name), {}}); }
  template <class Enum, std::size_t N>
  void named(std::string_view key, Enum value, const std::array<Name<Enum>, N>& table) {
    const auto found = std::ranges::find(table, value, &Name<Enum>::second);
    add_words(key, names_of(table), std::string(found->first));
  }
  void text(std::string_view key, const std::string& value) { add(key, "text", value); }
  void maybe_text(std::string_view key, const std::string&) { add(key, "text or `null`", "null"); }
  void flag(std::string_view key, bool value) {
    add_words(key, {"true", "false"}, value ? "true" : "false");
  }
  template <class Integer>
  void integer(std::string_view key, Integer value, const IntegerRange& range) {
    add(key, "whole number, " + range_text(range), fmt::format("{}", value));
  }
  void real(std::string_view key, double value, const RealRange& range) {
    add(key, "number, " + range_text(range), fmt::format("{}", value));
  }
  template <class Enum, std::size_t N>
  void named_list(std::string_view key, const std::vector<Enum>&,
                  const std::array<Name<Enum>, N>& table) {
    add(key, fmt::format("list of `{}`", fmt::join(names_of(table), "`, `")), "[]");
  }
  void texts(std::string_view key, const std::vector<std::string>&) {
    add(key, "list of texts", "[]");
  }
  void integers(std::string_view key, const std::vector<std::int64_t>&, const IntegerRange& range) {
    add(key, "list of whole numbers, each " + range_text(range), "[]");
  }
  template <std::size_t N>
  void reals(std::string_view key, const std::array<double, N>& value, const RealRange& range) {
    add(key, fmt::format("{} numbers, each {}", number_word(N), range_text(range)),
        fmt::format("[{}]", fmt::join(value, ", ")));
  }
  void reals(std::string_view key, const std::vector<double>&, const RealRange& range) {
    add(key, "list of numbers, each " + range_text(range), "[]");
  }
  void keep(std::string_view key, std::int64_t value) {
    add(key, "whole number, at least 2, or `all`", fmt::format("{}", value));
  }
  void resume(std::string_view key, const io::ResumeChoice& value) {
    add(key, "`auto`, `never` or a step", text_of(value));
  }

 private:
  void add_words(std::string_view key, std::vector<std::string_view> words,
                 const std::string& fallback) {
    add(key, listed(words, "`"), fallback);
    sections_.back().keys.back().choices = std::move(words);
  }
  void add(std::string_view key, std::string values, std::string fallback) {
    auto& section = sections_.back();
    auto full = fmt::format("{}.{}", section.name, key);
    if (is_required(full, family_)) fallback.clear();
    const auto sentence = sentence_of(full);
    auto& row = sections_.back().keys.emplace_back();
    row.key = std::move(full);
    row.values = std::move(values);
    row.gpt2_default = std::move(fallback);
    row.sentence = sentence;
  }
  std::vector<SectionInfo> sections_;
  model::Family family_;
};

std::vector<SectionInfo> list_sections(model::Family family) {
  train::Config defaults;
  defaults.model = model::preset(family);
  KeyLister lister(family);
  visit_keys(lister, defaults);
  return lister.take_sections();
}

std::vector<SectionInfo> list_sections() {
  auto all = list_sections(model::Family::gpt2);
  const auto llama = list_sections(model::Family::llama);
  const auto vit = list_sections(model::Family::vit);
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t k = 0; k < all[i].keys.size(); ++k) {
      auto& key = all[i].keys[k];
      // The family itself is not a default that a family sets.
      const bool is_family = key.key == "model.family";
      key.llama_default = is_family ? key.gpt2_default : llama[i].keys[k].gpt2_default;
      key.vit_default = is_family ? key.gpt2_default : vit[i].keys[k].gpt2_default;
    }
  }
  return all;
}

}  // namespace

std::string range_text(const IntegerRange& range) {
  if (range.most == std::numeric_limits<std::int64_t>::max()) {
    return fmt::format("at least {}", range.least);
  }
  return fmt::format("between {} and {}", range.least, range.most);
}

std::string range_text(const RealRange& range) {
  auto least = fmt::format("{} {}", range.open_least ? "more than" : "at least", range.least);
  if (range.most == std::numeric_limits<double>::infinity()) return least;
  return fmt::format("{} and {} {}", least, range.open_most ? "less than" : "at most", range.most);
}

bool contains(const RealRange& range, double value) {
  const bool above = range.open_least ? value > range.least : value >= range.least;
  const bool below = range.open_most ? value < range.most : value <= range.most;
  return above && below;
}

std::span<const SectionInfo> sections() {
  static const std::vector<SectionInfo> all = list_sections();
  return all;
}

std::span<const KnownSection> known_sections() {
  static const std::vector<KnownSection> known = [] {
    std::vector<KnownSection> made;
    for (const auto& section : sections()) {
      auto& keys = made.emplace_back(KnownSection{section.name, {}}).keys;
      for (const auto& key : section.keys) {
        keys.push_back(std::string_view(key.key).substr(section.name.size() + 1));
      }
    }
    return made;
  }();
  return known;
}

const KnownSection* find_section(std::string_view name) {
  const auto sections = known_sections();
  const auto found = std::ranges::find(sections, name, &KnownSection::name);
  return found == sections.end() ? nullptr : &*found;
}

std::span<const std::string_view> section_names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> made;
    for (const auto& section : sections()) made.push_back(section.name);
    return made;
  }();
  return names;
}

std::span<const std::string_view> full_keys() {
  static const std::vector<std::string_view> keys = [] {
    std::vector<std::string_view> made;
    for (const auto& section : sections()) {
      for (const auto& key : section.keys) made.push_back(key.key);
    }
    return made;
  }();
  return keys;
}

std::string listed(std::span<const std::string_view> words, std::string_view mark) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " or " : ", ";
    text += fmt::format("{}{}{}", mark, words[i], mark);
  }
  return text;
}

}  // namespace hyperslab::deck
