// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hyperslab/deck/deck.hpp"
#include "keys.hpp"
#include "nearest.hpp"
#include "problems.hpp"
#include "scalar.hpp"
#include "schema.hpp"
#include "structure.hpp"
#include "tree.hpp"

namespace hyperslab::deck {

/// Visits the description and fills the fields whose keys are in the tree; absent keys leave the
/// default of the struct.
class Reader {
 public:
  Reader(Node& root, Problems& problems, BadKeys& bad)
      : root_(root), problems_(problems), bad_(bad) {}

  void section(std::string_view name) {
    section_ = name;
    entries_ = nullptr;
    if (auto* entry = find_entry(root_, name); entry && !bad_.contains(name)) {
      entries_ = &entry->value;
    }
  }
  template <class Enum, std::size_t N>
  void named(std::string_view key, Enum& value, const std::array<Name<Enum>, N>& table) {
    const auto* node = find(key);
    if (node == nullptr) return;
    std::vector<std::string_view> names;
    std::ranges::copy(std::views::keys(table), std::back_inserter(names));
    std::string read;
    if (!take(key, *node, parse_text(*node), read) || !is_one_of(key, *node, names)) return;
    value = std::ranges::find(table, read, &Name<Enum>::first)->second;
  }
  template <class Enum, std::size_t N>
  void named_list(std::string_view key, std::vector<Enum>& values,
                  const std::array<Name<Enum>, N>& table) {
    const auto* node = find(key);
    if (node == nullptr) return;
    std::vector<std::string_view> names;
    std::ranges::copy(std::views::keys(table), std::back_inserter(names));
    values.clear();
    for (const auto& item : items_of(*node)) {
      std::string read;
      if (!take(key, item, parse_text(item), read) || !is_one_of(key, item, names)) continue;
      values.push_back(std::ranges::find(table, read, &Name<Enum>::first)->second);
    }
  }
  void text(std::string_view key, std::string& value) {
    const auto* node = find(key);
    if (node != nullptr && take(key, *node, parse_text(*node), value) && value.empty()) {
      complain(key, node->mark, "must not be empty");
    }
  }
  void maybe_text(std::string_view key, std::string& value) {
    const auto* node = find(key, true);
    if (node == nullptr) return;
    value.clear();
    if (node->kind != Node::Kind::null) take(key, *node, parse_text(*node), value);
  }
  void flag(std::string_view key, bool& value) {
    if (const auto* node = find(key)) take(key, *node, parse_flag(*node), value);
  }
  template <class Integer>
  void integer(std::string_view key, Integer& value, const IntegerRange& range) {
    if (const auto* node = find(key)) take(key, *node, parse_integer(*node, range), value);
  }
  void real(std::string_view key, double& value, const RealRange& range) {
    if (const auto* node = find(key)) take(key, *node, parse_real(*node, range), value);
  }
  void texts(std::string_view key, std::vector<std::string>& values) {
    const auto* node = find(key);
    if (node == nullptr) return;
    values.clear();
    for (const auto& item : items_of(*node)) {
      std::string value;
      if (!take(key, item, parse_text(item), value)) continue;
      if (value.empty()) complain(key, item.mark, "must not hold an empty text");
      values.push_back(std::move(value));
    }
  }
  void integers(std::string_view key, std::vector<std::int64_t>& values,
                const IntegerRange& range) {
    const auto* node = find(key);
    if (node == nullptr) return;
    values.clear();
    for (const auto& item : items_of(*node)) {
      std::int64_t value = 0;
      if (take(key, item, parse_integer(item, range), value)) values.push_back(value);
    }
  }
  template <std::size_t N>
  void reals(std::string_view key, std::array<double, N>& values, const RealRange& range) {
    const auto* node = find(key);
    if (node == nullptr) return;
    if (node->kind != Node::Kind::sequence || node->items.size() != values.size()) {
      const auto found = node->kind == Node::Kind::sequence
                             ? fmt::format("a list of {}", node->items.size())
                             : shown(*node);
      return complain(key, node->mark,
                      fmt::format("must be a list of {} numbers, found {}", number_word(N), found));
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      take(key, node->items[i], parse_real(node->items[i], range), values[i]);
    }
  }
  void reals(std::string_view key, std::vector<double>& values, const RealRange& range) {
    const auto* node = find(key);
    if (node == nullptr) return;
    values.clear();
    for (const auto& item : items_of(*node)) {
      double value = 0;
      if (take(key, item, parse_real(item, range), value)) values.push_back(value);
    }
  }
  void keep(std::string_view key, std::int64_t& value) {
    const auto* node = find(key);
    if (node == nullptr) return;
    if (node->kind == Node::Kind::scalar && node->text == "all") {
      value = 0;
      return;
    }
    const auto parsed = parse_integer(*node, IntegerRange{.least = 2, .most = kMostSteps});
    if (!parsed.value) {
      return complain(key, node->mark, parsed.problem + "; to keep every checkpoint write all");
    }
    value = *parsed.value;
  }
  void resume(std::string_view key, io::ResumeChoice& value) {
    const auto* node = find(key);
    if (node == nullptr) return;
    const auto choice = node->kind == Node::Kind::scalar ? parse_resume(node->text) : std::nullopt;
    const auto step = parse_integer(*node, kSteps).value;
    if ((!choice || choice->from == io::ResumeFrom::step) && !step) {
      return complain(key, node->mark,
                      fmt::format("must be auto, never or a step, found {}", shown(*node)));
    }
    value = step ? io::ResumeChoice{io::ResumeFrom::step, *step} : *choice;
  }

  /// Mark for a rule about this key: the key, else its section, else the start of the file.
  [[nodiscard]] Mark mark_of(std::string_view full_key) const {
    const auto dot = full_key.find('.');
    auto* section = find_entry(root_, full_key.substr(0, dot));
    if (section == nullptr) return {};
    const auto* entry = find_entry(section->value, full_key.substr(dot + 1));
    return entry == nullptr ? section->mark : entry->mark;
  }
  [[nodiscard]] bool is_bad(std::string_view full_key) const {
    return bad_.contains(full_key) || bad_.contains(full_key.substr(0, full_key.find('.')));
  }
  [[nodiscard]] bool has(std::string_view full_key) const {
    const auto dot = full_key.find('.');
    const auto name = full_key.substr(0, dot);
    auto* const section = bad_.contains(name) ? nullptr : find_entry(root_, name);
    return section != nullptr && find_entry(section->value, full_key.substr(dot + 1)) != nullptr;
  }
  void require(std::string_view full_key) {
    if (is_bad(full_key) || has(full_key)) return;
    problems_.add(mark_of(full_key), std::string(full_key), "is missing and has no default");
    bad_.insert(std::string(full_key));
  }

 private:
  /// The value of a key of the section; nothing if it is absent or, but for `nullable`, null.
  const Node* find(std::string_view key, bool nullable = false) {
    auto* entry = entries_ == nullptr ? nullptr : find_entry(*entries_, key);
    if (entry == nullptr) return nullptr;
    if (entry->value.kind == Node::Kind::null && !nullable) {
      complain(key, entry->mark, "has no value");
      return nullptr;
    }
    return &entry->value;
  }
  /// The items of a list; one scalar stands for a list of one.
  static std::span<const Node> items_of(const Node& node) {
    if (node.kind == Node::Kind::sequence) return node.items;
    return {&node, 1};
  }
  template <class Read, class Field>
  bool take(std::string_view key, const Node& node, const Parsed<Read>& parsed, Field& field) {
    if (!parsed.value) {
      complain(key, node.mark, parsed.problem);
      return false;
    }
    field = static_cast<Field>(*parsed.value);
    return true;
  }
  bool is_one_of(std::string_view key, const Node& node, std::span<const std::string_view> names) {
    if (std::ranges::find(names, node.text) != names.end()) return true;
    const auto near = nearest_word(node.text, names);
    complain(key, node.mark,
             fmt::format("must be {}, found '{}'{}", listed(names, ""), node.text,
                         near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near)));
    return false;
  }
  void complain(std::string_view key, Mark mark, const std::string& text) {
    auto full = fmt::format("{}.{}", section_, key);
    problems_.add(mark, full, text);
    bad_.insert(std::move(full));
  }

  Node& root_;
  Problems& problems_;
  BadKeys& bad_;
  std::string_view section_;
  Node* entries_ = nullptr;
};

}  // namespace hyperslab::deck
