// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "problems.hpp"

namespace hyperslab::deck {

struct Entry;

/// A YAML value with its mark. Unlike YAML::Node it keeps duplicate keys and quotes.
struct Node {
  enum class Kind : std::uint8_t { null, scalar, sequence, map };
  Kind kind = Kind::null;
  bool quoted = false;
  std::string text;  ///< value of a scalar
  Mark mark;
  std::vector<Node> items;     ///< elements of a sequence
  std::vector<Entry> entries;  ///< entries of a map, in the order of the file
};

struct Entry {
  std::string key;
  Mark mark;  ///< position of the key
  Node value;
};

/// The first entry of a map with this key, or null.
[[nodiscard]] Entry* find_entry(Node& map, std::string_view key);

/// Parses one document; an empty one is null. Nothing if it is not UTF-8 or not the YAML that
/// decks use, which `problems` then says: no aliases, anchors, tags, directives, nor values over
/// several lines. Every mark gets `override_index`.
[[nodiscard]] std::optional<Node> parse_yaml(const std::string& text, int override_index,
                                             Problems& problems);

}  // namespace hyperslab::deck
