// SPDX-License-Identifier: Apache-2.0
#include "structure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "hyperslab/train/renamed_keys.hpp"
#include "keys.hpp"
#include "nearest.hpp"
#include "scalar.hpp"

namespace hyperslab::deck {
namespace {

std::string did_you_mean(std::string_view word, std::span<const std::string_view> known) {
  if (!word.empty()) return fmt::format("did you mean '{}'?", word);
  return fmt::format("known are {}", listed(known, ""));
}

void complain_of_key(const std::string& section, const Entry& entry, Problems& problems,
                     BadKeys& bad) {
  const auto meant = meant_key(fmt::format("{}.{}", section, entry.key));
  const bool same_section = meant.starts_with(section + ".");
  const auto word = same_section ? meant.substr(section.size() + 1) : meant;
  problems.add(entry.mark, fmt::format("{}.{}", section, entry.key),
               fmt::format("unknown key '{}' ({})", entry.key,
                           did_you_mean(word, find_section(section)->keys)));
  if (!meant.empty()) bad.insert(meant);
}

/// Keys that stand twice in one map; `prefix` is "" or "section.".
void check_duplicates(const Node& map, const std::string& prefix, Problems& problems,
                      BadKeys& bad) {
  std::map<std::string_view, int> first_lines;
  for (const auto& entry : map.entries) {
    const auto [first, is_new] = first_lines.emplace(entry.key, entry.mark.line);
    if (is_new) continue;
    const auto full = prefix + entry.key;
    const std::string_view former = train::former_key(full);
    const std::string also = former.empty() ? "" : fmt::format(" (also as {})", former);
    problems.add(entry.mark, full,
                 fmt::format("given twice, on line {} and on line {}{}; delete one", first->second,
                             entry.mark.line, also));
    bad.insert(full);
  }
}

void check_section(const Entry& section, Problems& problems, BadKeys& bad) {
  const auto* known = find_section(section.key);
  if (known == nullptr) {
    const auto near = nearest_word(section.key, section_names());
    problems.add(
        section.mark, section.key,
        fmt::format("unknown section '{}' ({})", section.key, did_you_mean(near, section_names())));
    if (!near.empty()) bad.insert(std::string(near));
    return;
  }
  if (section.value.kind == Node::Kind::null) return;
  if (section.value.kind != Node::Kind::map) {
    problems.add(section.mark, section.key,
                 fmt::format("must be a map of keys, found {}", shown(section.value)));
    bad.insert(section.key);
    return;
  }
  for (const auto& entry : section.value.entries) {
    const bool is_known = std::ranges::find(known->keys, entry.key) != known->keys.end();
    if (!is_known) complain_of_key(section.key, entry, problems, bad);
  }
  check_duplicates(section.value, section.key + ".", problems, bad);
}

void use_current_value(const std::string& path, Node& value) {
  if (value.kind == Node::Kind::scalar)
    value.text = std::string(train::current_value(path, value.text));
}

/// The entry of a map with this key, added if it is not there yet.
Entry& entry_of(Node& map, std::string_view key, Mark mark) {
  map.kind = Node::Kind::map;
  if (auto* found = find_entry(map, key)) return *found;
  map.entries.push_back({std::string(key), mark, Node{}});
  return map.entries.back();
}

/// The value of an override. An empty one is an empty text.
std::optional<Node> override_value(const std::string& text, int index, Problems& problems) {
  if (text.find_first_not_of(" \t") != std::string::npos) return parse_yaml(text, index, problems);
  Node empty;
  empty.kind = Node::Kind::scalar;
  empty.mark = {index, 1, 1};
  return empty;
}

void complain_of_path(const std::string& path, Mark mark, Problems& problems, BadKeys& bad) {
  const auto meant = meant_key(path);
  const auto* section = find_section(path.substr(0, path.find('.')));
  const auto known = section == nullptr ? "a key is section.key, as in model.heads"
                                        : did_you_mean("", section->keys);
  problems.add(mark, path,
               fmt::format("unknown key '{}' ({})", path,
                           meant.empty() ? known : fmt::format("did you mean '{}'?", meant)));
  if (!meant.empty()) bad.insert(meant);
}

void apply_override(const std::string& text, int index, Node& root, Problems& problems,
                    BadKeys& bad) {
  const Mark mark = {index, 1, 1};
  const auto equals = text.find('=');
  if (equals == std::string::npos) {
    problems.add(mark, "", "an override is section.key=value");
    return;
  }
  const auto path = std::string(train::current_key(std::string_view(text).substr(0, equals)));
  if (std::ranges::find(full_keys(), path) == full_keys().end()) {
    complain_of_path(path, mark, problems, bad);
    return;
  }
  auto value = override_value(text.substr(equals + 1), index, problems);
  if (!value) {
    bad.insert(path);
    return;
  }
  use_current_value(path, *value);
  const auto section = path.substr(0, path.find('.'));
  if (bad.contains(section)) return;
  auto& section_map = entry_of(root, section, mark).value;
  auto& entry = entry_of(section_map, path.substr(section.size() + 1), mark);
  entry.mark = mark;
  entry.value = std::move(*value);
}

bool is_overridden(const Entry* entry) {
  return entry != nullptr && entry->mark.override_index >= 0;
}

/// A resolved deck of an image model holds keys that follow from others. An override of the others
/// removes the keys that follow, unless it gives them itself.
void leave_out_derived(Node& root) {
  Entry* const model = find_entry(root, "model");
  if (model == nullptr) return;
  Node& keys = model->value;
  const Entry* const family = find_entry(keys, "family");
  if (family == nullptr || family->value.text != "vit") return;
  const auto follows = [&](std::string_view derived, std::initializer_list<const char*> sources) {
    const auto changes = [&](const char* source) {
      return is_overridden(find_entry(keys, source));
    };
    if (std::ranges::none_of(sources, changes)) return;
    std::erase_if(keys.entries, [&](const Entry& entry) {
      return entry.key == derived && !is_overridden(&entry);
    });
  };
  follows("context", {"image", "patch", "pooling"});
  follows("vocabulary", {"classes"});
}

}  // namespace

void use_current_names(Node& root) {
  for (auto& section : root.entries) {
    const std::string prefix = section.key + ".";
    for (auto& entry : section.value.entries) {
      const auto path = std::string(train::current_key(prefix + entry.key));
      entry.key = path.substr(prefix.size());
      use_current_value(path, entry.value);
    }
  }
}

void check_structure(const Node& root, Problems& problems, BadKeys& bad) {
  for (const auto& section : root.entries) check_section(section, problems, bad);
  check_duplicates(root, "", problems, bad);
}

void apply_overrides(std::span<const std::string> overrides, Node& root, Problems& problems,
                     BadKeys& bad) {
  for (std::size_t i = 0; i < overrides.size(); ++i) {
    apply_override(overrides[i], static_cast<int>(i), root, problems, bad);
  }
  leave_out_derived(root);
}

}  // namespace hyperslab::deck
