// SPDX-License-Identifier: Apache-2.0
#include "tree.hpp"

#include <fmt/format.h>
#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <sstream>
#include <string_view>
#include <utility>

#include "utf8.hpp"

namespace hyperslab::deck {
namespace {

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (std::size_t start = 0; start <= text.size();) {
    const auto end = std::min(text.find('\n', start), text.size());
    lines.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return lines;
}

Mark deck_mark(const YAML::Mark& position, int override_index) {
  return {override_index, std::max(position.line, 0) + 1, std::max(position.column, 0) + 1};
}

/// True if the line starts with a whole quoted text.
bool holds_quoted(std::string_view line) {
  const char quote = line.empty() ? ' ' : line.front();
  if (quote != '"' && quote != '\'') return false;
  for (std::size_t i = 1; i < line.size(); ++i) {
    if (line[i] == '\\' && quote == '"') {
      ++i;
    } else if (line[i] == quote) {
      if (quote == '"' || i + 1 >= line.size() || line[i + 1] != quote) return true;
      ++i;
    }
  }
  return false;
}

/// Builds the tree from the parser's events; `open_` are the sequences and maps not yet ended.
class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(std::string_view source, int override_index, Problems& problems)
      : lines_(lines_of(source)), override_index_(override_index), problems_(problems) {}

  [[nodiscard]] Node take_root() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& /*position*/) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& position, YAML::anchor_t /*anchor*/) override {
    finish(node(Node::Kind::null, position));
  }
  void OnAlias(const YAML::Mark& position, YAML::anchor_t /*anchor*/) override {
    problems_.add(mark_of(position), "", "aliases (*name) are not supported; write the value out");
    finish(node(Node::Kind::null, position));
  }
  void OnScalar(const YAML::Mark& position, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    if (is_undecorated(position, tag, anchor)) check_one_line(position, tag == "!", value);
    Node scalar = node(Node::Kind::scalar, position);
    scalar.quoted = tag == "!";
    scalar.text = value;
    finish(std::move(scalar));
  }
  void OnSequenceStart(const YAML::Mark& position, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value /*style*/) override {
    is_undecorated(position, tag, anchor);
    open_.push_back({node(Node::Kind::sequence, position), std::nullopt});
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& position, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value /*style*/) override {
    is_undecorated(position, tag, anchor);
    open_.push_back({node(Node::Kind::map, position), std::nullopt});
  }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    Node node;
    std::optional<Node> key;  ///< last key of an open map, until its value comes
  };

  [[nodiscard]] Mark mark_of(const YAML::Mark& position) const {
    return deck_mark(position, override_index_);
  }
  [[nodiscard]] Node node(Node::Kind kind, const YAML::Mark& position) const {
    Node made;
    made.kind = kind;
    made.mark = mark_of(position);
    return made;
  }
  bool is_undecorated(const YAML::Mark& position, const std::string& tag, YAML::anchor_t anchor) {
    const bool tagged = !tag.empty() && tag != "?" && tag != "!";
    if (tagged) {
      problems_.add(mark_of(position), "", "tags (!!name) are not supported; leave the tag out");
    }
    if (anchor != 0) {
      problems_.add(mark_of(position), "",
                    "anchors (&name) are not supported; leave the anchor out");
    }
    return !tagged && anchor == 0;
  }
  /// yaml-cpp lets a quote that is never closed swallow the rest of the file in silence, and folds
  /// plain lines into one value.
  void check_one_line(const YAML::Mark& position, bool quoted, std::string_view value) {
    const auto mark = mark_of(position);
    const auto line = static_cast<std::size_t>(mark.line - 1);
    const auto column = static_cast<std::size_t>(mark.column - 1);
    if (line >= lines_.size() || column > lines_[line].size()) return;
    const auto source = lines_[line].substr(column);
    const bool complete = quoted ? holds_quoted(source) : source.starts_with(value);
    if (complete) return;
    const bool block = source.starts_with('|') || source.starts_with('>');
    problems_.add(mark, "",
                  !quoted ? "a value must stand on one line"
                  : block ? "block texts (| and >) are not supported"
                          : "a quoted text must end on the line where it starts");
  }
  void close() {
    Node done = std::move(open_.back().node);
    open_.pop_back();
    finish(std::move(done));
  }
  void finish(Node done) {
    if (open_.empty()) {
      root_ = std::move(done);
      return;
    }
    auto& [parent, key] = open_.back();
    if (parent.kind == Node::Kind::sequence) {
      parent.items.push_back(std::move(done));
    } else if (!key) {
      key = std::move(done);
    } else {
      add_entry(parent, std::move(*key), std::move(done));
      key.reset();
    }
  }
  void add_entry(Node& map, Node key, Node value) {
    if (key.kind != Node::Kind::scalar) {
      problems_.add(key.mark, "", "a key must be a plain word");
      return;
    }
    map.entries.push_back({std::move(key.text), key.mark, std::move(value)});
  }

  std::vector<std::string_view> lines_;
  int override_index_;
  Problems& problems_;
  std::vector<Open> open_;
  Node root_;
};

Mark mark_of_byte(std::string_view text, std::size_t index, int override_index) {
  const auto before = text.substr(0, index);
  const auto line_start = before.rfind('\n') + 1;  // npos + 1 is 0
  return {override_index, static_cast<int>(std::ranges::count(before, '\n')) + 1,
          static_cast<int>(index - line_start) + 1};
}

/// yaml-cpp drops directives after the first document in silence, and all of them mean nothing
/// here.
std::optional<std::size_t> first_directive(std::string_view text) {
  if (text.starts_with('%')) return 0;
  const auto found = text.find("\n%");
  return found == std::string_view::npos ? std::nullopt : std::optional(found + 1);
}

/// yaml-cpp takes or refuses them depending on the text around them.
std::optional<std::size_t> first_tab_indent(std::string_view text) {
  for (std::size_t start = 0; start < text.size();) {
    const auto content = text.find_first_not_of(' ', start);
    if (content != std::string_view::npos && text[content] == '\t') return content;
    const auto end = text.find('\n', start);
    if (end == std::string_view::npos) break;
    start = end + 1;
  }
  return std::nullopt;
}

/// Tabs look like the blanks that YAML reads, and its parser does not say that one is in the way.
std::string_view tab_hint(std::string_view source, Mark mark) {
  const auto lines = lines_of(source);
  const auto index = static_cast<std::size_t>(mark.line - 1);
  const bool has_tab = index < lines.size() && lines[index].find('\t') != std::string_view::npos;
  return has_tab ? "; this line has a tab: write blanks" : "";
}

bool is_text(const std::string& text, int override_index, Problems& problems) {
  if (const auto bad = first_bad_byte(text)) {
    problems.add(mark_of_byte(text, *bad, override_index), "",
                 fmt::format("byte 0x{:02X} is not UTF-8 text; save the deck as UTF-8",
                             static_cast<unsigned char>(text[*bad])));
    return false;
  }
  if (const auto tab = first_tab_indent(text)) {
    problems.add(mark_of_byte(text, *tab, override_index), "",
                 "a tab indents this line; YAML wants blanks");
    return false;
  }
  if (const auto directive = first_directive(text)) {
    problems.add(mark_of_byte(text, *directive, override_index), "",
                 "YAML directives (%...) are not supported; delete the line");
    return false;
  }
  return true;
}

}  // namespace

Entry* find_entry(Node& map, std::string_view key) {
  const auto found = std::ranges::find(map.entries, key, &Entry::key);
  return found == map.entries.end() ? nullptr : &*found;
}

std::optional<Node> parse_yaml(const std::string& text, int override_index, Problems& problems) {
  if (!is_text(text, override_index, problems)) return std::nullopt;
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  const auto source = text.substr(text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0);
  const auto problems_before = problems.size();
  try {
    std::istringstream stream(source);
    YAML::Parser parser(stream);
    TreeBuilder builder(source, override_index, problems);
    Node root = parser.HandleNextDocument(builder) ? builder.take_root() : Node{};
    if (root.kind == Node::Kind::null) root.mark = {override_index, 1, 1};
    Problems of_second;
    TreeBuilder second(source, override_index, of_second);
    if (parser.HandleNextDocument(second)) {
      problems.add(second.take_root().mark, "", "a second YAML document; a deck is only one");
    }
    if (problems.size() > problems_before) return std::nullopt;
    return root;
  } catch (const YAML::DeepRecursion& error) {
    problems.add(deck_mark(error.mark, override_index), "",
                 "nested too deeply; a deck is a map of sections, which are maps of keys");
  } catch (const YAML::Exception& error) {
    const Mark mark = deck_mark(error.mark, override_index);
    problems.add(mark, "", fmt::format("not valid YAML: {}{}", error.msg, tab_hint(source, mark)));
  }
  return std::nullopt;
}

}  // namespace hyperslab::deck
