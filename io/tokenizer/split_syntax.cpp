// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/split_syntax.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>
#include <vector>

#include "hyperslab/core/error.hpp"
#include "tokenizer/split_sets.hpp"
#include "tokenizer/utf8.hpp"

namespace hyperslab::io {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool is_ascii(char c) { return static_cast<signed char>(c) >= 0; }
bool is_ascii_word(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

/// Reads a pattern from left to right and writes it again.
class SplitSyntax {
 public:
  SplitSyntax(std::string_view pattern, const std::string& where)
      : pattern_(pattern), where_(where) {}

  std::string read() {
    while (at_ < pattern_.size()) read_next();
    return std::move(out_);
  }

 private:
  static constexpr std::size_t kNone = std::string::npos;
  struct Group {
    std::size_t begin;  ///< in out_
    bool ignored_case;  ///< before it
  };

  /// The beginning of a text that may be as long as a file, for a message.
  static std::string cut(std::string_view text) {
    constexpr std::size_t kMost = 160;
    if (text.size() <= kMost) return std::string(text);
    return std::string(text.substr(0, valid_utf8_prefix(text.substr(0, kMost)))) + "...";
  }
  [[noreturn]] void refuse(std::string_view construct, const std::string& why) const {
    throw Error(
        ExitCode::data,
        fmt::format("{}: expected a pattern that PCRE2 and Oniguruma, with which the package "
                    "tokenizers reads it, match alike, found '{}' in '{}', {}; give the "
                    "tokenizer.json of another model",
                    where_, cut(construct), cut(pattern_), why));
  }
  [[nodiscard]] bool follows(std::string_view text) const {
    return pattern_.substr(at_).starts_with(text);
  }
  [[nodiscard]] char peek(std::size_t ahead = 0) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }

  void read_next() {
    const char c = peek();
    if (c == '*' || c == '+' || c == '?') return read_repeat();
    if (c == '{' && interval_bytes() > 0) return read_interval();
    const bool was_literal = std::exchange(is_literal_, false);
    switch (c) {
      case '\\': add_atom([&] { read_escape(); }); break;
      case '[': add_atom([&] { read_class(); }); break;
      case '(': open_group(); break;
      case ')': close_group(); break;
      case '|': add_branch(); break;
      case '^': add_atom([&] { add(kLineBegin, 1); }); break;
      case '$': add_atom([&] { add(kLineEnd, 1); }); break;
      case '.': add_atom([&] { add(".", 1); }); break;
      case '{': add_atom([&] { add("\\{", 1); }); break;
      default: add_atom([&] { read_literal(was_literal); });
    }
  }

  template <class Read>
  void add_atom(Read&& read) {
    atom_ = out_.size();
    is_repeated_ = begins_group_ = false;
    read();
  }
  void add(std::string_view text, std::size_t bytes) {
    out_ += text;
    at_ += bytes;
  }

  /// Without regard to case a letter may stand for two in Oniguruma alone, as one for ss does.
  void read_literal(bool after_literal) {
    const std::size_t bytes = is_ascii(peek()) ? 1 : character_at(pattern_, at_).bytes;
    const std::string_view literal = pattern_.substr(at_, bytes);
    if (ignores_case_) {
      if (bytes > 1) refuse(literal, "whose case is ignored");
      constexpr std::array<std::string_view, 5> kOfOne = {"ss", "st", "ff", "fi", "fl"};
      const std::string pair = {lower(after_literal ? pattern_[at_ - 1] : '\0'), lower(literal[0])};
      if (std::ranges::find(kOfOne, pair) != kOfOne.end()) {
        refuse(pair, "for which one letter stands where case is ignored");
      }
    }
    is_literal_ = true;
    add(literal, bytes);
  }

  // Repeats.

  /// Bytes of {n}, {n,}, {,m} or {n,m} that follow, else 0: such a brace is literal.
  [[nodiscard]] std::size_t interval_bytes() const {
    std::size_t bytes = 1;
    while (is_digit(peek(bytes))) ++bytes;
    const bool has_least = bytes > 1;
    bool has_most = false;
    if (peek(bytes) == ',') {
      for (++bytes; is_digit(peek(bytes)); ++bytes) has_most = true;
    }
    return peek(bytes) == '}' && (has_least || has_most) ? bytes + 1 : 0;
  }

  /// A repeat of a repeated part repeats both, so x{1,3}+ is (?:x{1,3})+.
  void begin_repeat() {
    if (is_repeated_ && atom_ != kNone) {
      out_.insert(atom_, "(?:");
      out_ += ')';
    }
    is_repeated_ = true;
    is_literal_ = false;
  }
  void read_repeat() {
    begin_repeat();
    add(pattern_.substr(at_, 1), 1);
    if (peek() == '?' || peek() == '+') add(pattern_.substr(at_, 1), 1);
  }
  void read_interval() {
    const std::size_t bytes = interval_bytes();
    const std::string_view interval = pattern_.substr(at_, bytes);
    begin_repeat();
    const std::size_t comma = interval.find(',');
    if (comma == interval.npos) return add(interval, bytes);  // a ? after it is a repeat
    const std::string least(interval.substr(1, comma - 1));
    const std::string most(interval.substr(comma + 1, bytes - comma - 2));
    if (!least.empty() && !most.empty() && to_number(least) > to_number(most)) {
      refuse(interval, "which is possessive there");
    }
    add(fmt::format("{{{},{}}}", least.empty() ? "0" : least, most), bytes);
    if (peek() == '?') add("?", 1);
  }
  static long to_number(const std::string& digits) {
    return std::strtol(digits.substr(0, 9).c_str(), nullptr, 10);
  }

  // Groups.

  void add_branch() {
    atom_ = kNone;
    begins_group_ = false;
    add("|", 1);
  }
  void open_group() {
    if (follows("(*")) refuse("(*", "which is a verb of PCRE2");
    if (follows("(?#")) return pass_comment();
    if (peek(1) == '?' && read_options()) return;
    for (const std::string_view open : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"}) {
      if (follows(open)) return begin_group(open, open.size());
    }
    if (follows("(?<")) {
      const std::size_t end = pattern_.find('>', at_);
      if (end != pattern_.npos) return begin_group("(", end + 1 - at_);
    }
    if (peek(1) == '?') refuse(pattern_.substr(at_, 3), "a kind of group");
    begin_group("(", 1);
  }
  void begin_group(std::string_view text, std::size_t bytes) {
    groups_.push_back({out_.size(), ignores_case_});
    add(text, bytes);
    atom_ = kNone;
    begins_group_ = true;
  }
  void close_group() {
    add(")", 1);
    begins_group_ = is_repeated_ = false;
    if (groups_.empty()) return;  // PCRE2 refuses it
    atom_ = groups_.back().begin;
    ignores_case_ = groups_.back().ignored_case;
    groups_.pop_back();
  }
  void pass_comment() {
    const std::size_t end = pattern_.find(')', at_);
    at_ = end == pattern_.npos ? pattern_.size() : end + 1;
  }

  /// (?i:...), (?m-i:...) or (?i): m is PCRE2's s. False if something else follows.
  bool read_options() {
    std::size_t bytes = 2;
    while (peek(bytes) == '-' || (peek(bytes) >= 'a' && peek(bytes) <= 'z')) ++bytes;
    const char end = peek(bytes);
    const std::string options(pattern_.substr(at_ + 2, bytes - 2));
    if (options.empty() || (end != ':' && end != ')')) return false;
    const std::string_view whole = pattern_.substr(at_, bytes + 1);
    if (options.find_first_not_of("im-") != options.npos) refuse(whole, "an option");
    if (end == ')' && !begins_group_) refuse(whole, "options in the middle of a group");
    std::string ours = options;
    std::ranges::replace(ours, 'm', 's');
    const std::size_t off = options.find('-');
    const std::size_t of_case = options.find('i');
    if (end == ':') {
      begin_group(fmt::format("(?{}:", ours), bytes + 1);
    } else {
      add(fmt::format("(?{})", ours), bytes + 1);
    }
    if (of_case != options.npos) ignores_case_ = of_case < off;
    return true;
  }

  // Escapes.

  /// The set that an escape stands for inside a class and outside of one; empty: nothing that is a
  /// set.
  struct Set {
    std::string_view inside;
    std::string outside;
  };
  [[nodiscard]] Set set_of(char c) const {
    const auto both = [](std::string_view set) { return Set{set, fmt::format("[{}]", set)}; };
    switch (c) {
      case 'd': return {R"(\d)", R"(\d)"};
      case 'D': return {R"(\D)", R"(\D)"};
      case 's': return both(kSpaces);
      case 'S': return {kNoSpaces, fmt::format("[^{}]", kSpaces)};
      case 'h': return both(kHex);
      case 'H': return {kNoHex, fmt::format("[^{}]", kHex)};
      case 'w': return {kWord, fmt::format("[{}{}]", kWord, kMoreWord)};
      case 'W': return {"", fmt::format("[^{}{}]", kWord, kMoreWord)};
      default: return {};
    }
  }
  void read_escape() {
    const char c = peek(1);
    const std::string_view both = pattern_.substr(at_, 2);
    if (ignores_case_ && (c == 'w' || c == 'W' || c == 'b' || c == 'B')) {
      refuse(both, "where case is ignored");
    }
    if (const Set set = set_of(c); !set.outside.empty()) return add(set.outside, 2);
    switch (c) {
      case 'b': return add(word_border("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))"), 2);
      case 'B': return add(word_border("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))"), 2);
      case 'R': return add(kLineBreak, 2);
      case 'A':
      case 'z':
      case 'Z': return add(both, 2);
      default: read_character_escape();
    }
  }
  static std::string word_border(fmt::string_view form) {
    return fmt::vformat(form, fmt::make_format_args(fmt::format("[{}{}]", kWord, kMoreWord)));
  }
  /// One that stands for a character, or \p.
  void read_character_escape() {
    const char c = peek(1);
    const std::string_view both = pattern_.substr(at_, 2);
    constexpr std::string_view kSame = "nrtfea";
    if (c == 'p' || c == 'P') return read_property();
    if (c == 'x' || c == 'u') return read_code();
    if (c == 'v') return add(R"(\x{b})", 2);
    if (!is_ascii(c)) {
      ++at_;
      return read_literal(false);
    }
    if (is_ascii_word(c) && kSame.find(c) == kSame.npos) refuse(both, "an escape");
    add(both, 2);
  }
  void read_property() {
    const std::size_t end = pattern_.find('}', at_);
    if (peek(2) != '{' || end == pattern_.npos) refuse(pattern_.substr(at_, 3), "a property");
    const std::string_view whole = pattern_.substr(at_, end + 1 - at_);
    std::string_view name = whole.substr(3, whole.size() - 4);
    if (name.starts_with('^')) name.remove_prefix(1);
    if (name != "Han" && std::ranges::find(kCategories, name) == kCategories.end()) {
      refuse(whole, "a property that is neither a general category nor Han");
    }
    if (ignores_case_) refuse(whole, "where case is ignored");
    if (name != "Han" || !kNamesScripts) return add(whole, whole.size());
    const std::size_t prefix = whole.size() - name.size() - 1;
    add(fmt::format("{}sc:Han}}", whole.substr(0, prefix)), whole.size());
  }
  /// \xHH of ASCII, \x{H...} and \uHHHH.
  void read_code() {
    std::size_t bytes = 2;
    const bool has_brace = peek(1) == 'x' && peek(2) == '{';
    const std::size_t most = has_brace ? 9 : peek(1) == 'x' ? 4 : 6;
    if (has_brace) ++bytes;
    const std::size_t begin = at_ + bytes;
    while (bytes < most + (has_brace ? 2 : 0) && is_hex(peek(bytes))) ++bytes;
    const std::string digits(pattern_.substr(begin, at_ + bytes - begin));
    if (has_brace && peek(bytes) == '}') ++bytes;
    const std::string_view whole = pattern_.substr(at_, bytes);
    const bool is_whole = has_brace ? whole.ends_with('}') && digits.size() <= 6
                                    : bytes == most && whole.size() == most;
    const long code = std::strtol(digits.c_str(), nullptr, 16);
    if (digits.empty() || !is_whole) refuse(whole, "an escape");
    if (pattern_[at_ + 1] == 'x' && !has_brace && code > 0x7F) refuse(whole, "a byte");
    if (ignores_case_ && code > 0x7F) refuse(whole, "whose case is ignored");
    add(fmt::format("\\x{{{:x}}}", code), bytes);
  }

  // Classes.

  void read_class() {
    const std::size_t begin = at_;
    add("[", 1);
    if (peek() == '^') {
      if (ignores_case_) refuse("[^", "where case is ignored");
      add("^", 1);
    }
    if (peek() == ']') refuse("[]", "a class that begins with ]");
    while (peek() != ']') {
      if (at_ >= pattern_.size()) refuse(pattern_.substr(begin), "a class without an end");
      read_class_item();
    }
    add("]", 1);
  }
  void read_class_item() {
    const char c = peek();
    if (follows("&&")) refuse("&&", "an intersection of classes");
    if (follows("[:")) return read_posix_class();
    if (c == '[') refuse("[", "a class within a class");
    if (c == '-' && peek(1) == '\\' && !out_.ends_with('[') && is_set(peek(2))) {
      refuse(pattern_.substr(at_, 3), "a range that ends with a set");
    }
    if (c == '\\') return read_class_escape();
    const std::size_t bytes = is_ascii(c) ? 1 : character_at(pattern_, at_).bytes;
    if (bytes > 1 && ignores_case_) refuse(pattern_.substr(at_, bytes), "whose case is ignored");
    add(pattern_.substr(at_, bytes), bytes);
  }
  [[nodiscard]] bool is_set(char c) const {
    return c == 'p' || c == 'P' || !set_of(c).outside.empty();
  }
  void read_class_escape() {
    const char c = peek(1);
    const bool is_a_set = is_set(c);
    const std::string_view both = pattern_.substr(at_, 2);
    if (c == 'W' || (c == 'w' && ignores_case_)) refuse(both, "in a class");
    if (const Set set = set_of(c); !set.inside.empty()) {
      add(set.inside, 2);
    } else if (c == 'b') {
      add(R"(\x{8})", 2);
    } else {
      read_character_escape();
    }
    end_set(is_a_set);
  }
  void end_set(bool is_a_set) const {
    if (is_a_set && peek() == '-' && peek(1) != ']') {
      refuse(pattern_.substr(at_, 2), "a range that begins with a set");
    }
  }
  void read_posix_class() {
    const std::size_t end = pattern_.find(":]", at_);
    const std::string_view whole =
        end == pattern_.npos ? pattern_.substr(at_, 2) : pattern_.substr(at_, end + 2 - at_);
    std::string_view set;
    if (whole == "[:digit:]") set = R"(\d)";
    if (whole == "[:space:]") set = kSpaces;
    if (whole == "[:xdigit:]") set = kHex;
    if (whole == "[:word:]" && !ignores_case_) set = kWord;
    if (set.empty()) refuse(whole, "which has other characters there");
    add(set, whole.size());
    end_set(true);
  }

  std::string_view pattern_;
  const std::string& where_;
  std::string out_;
  std::size_t at_ = 0;
  std::size_t atom_ = kNone;  ///< begin in out_ of the atom to repeat
  bool is_repeated_ = false;  ///< the atom has a repeat
  bool is_literal_ = false;   ///< the atom is a literal without a repeat
  bool begins_group_ = true;  ///< nothing of the group has come
  bool ignores_case_ = false;
  std::vector<Group> groups_;
};

}  // namespace

std::string pcre2_syntax(std::string_view pattern, const std::string& where) {
  return SplitSyntax(pattern, where).read();
}

}  // namespace hyperslab::io
