// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace hyperslab::io {

/// GPT-2's pattern of pieces within which merges happen (Radford et al. 2019, encoder.py).
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// A compiled split pattern; threads may share it.
class Pattern {
 public:
  /// `text`: as a tokenizer.json has it (pcre2_syntax()). Throws Error(data) that begins with
  /// `where` and names the offset in the pattern, or the syntax that has no counterpart in PCRE2.
  Pattern(const std::string& text, const std::string& where);
  [[nodiscard]] const pcre2_real_code_8* code() const { return code_.get(); }
  [[nodiscard]] bool has_jit() const { return has_jit_; }
  /// True if this is GPT-2's, whose pieces of ASCII text are found without the engine.
  [[nodiscard]] bool is_gpt2() const { return is_gpt2_; }

 private:
  std::shared_ptr<pcre2_real_code_8> code_;
  bool has_jit_ = false;
  bool is_gpt2_ = false;
};

/// Splits texts into pieces, one thread at a time: the matches of the pattern and the texts between
/// them. An empty match parts the text before it from the text after it, unless a match ends there.
/// A byte that is not part of valid UTF-8 is a piece of its own. Letters and digits are
/// unicode_version()'s, whatever the engine's version.
class Splitter {
 public:
  explicit Splitter(const Pattern& pattern);

  void start(std::string_view text);
  /// The next piece, empty at the end. Throws Error(data) if the pattern cannot be matched
  /// within the engine's limits.
  std::string_view next() {
    if (next_ == stretch_end_ && !begin_stretch()) return {};
    const std::size_t fast = is_gpt2_ ? ascii_piece() : 0;
    return fast > 0 ? take(fast) : match();
  }

 private:
  bool begin_stretch();
  [[nodiscard]] std::size_t ascii_piece() const;
  std::string_view match();
  /// The next match of the stretch; false if there is none.
  bool find_match();
  [[noreturn]] void fail(int result) const;
  std::string_view take(std::size_t bytes) {
    const std::string_view piece = text_.substr(next_, bytes);
    next_ += bytes;
    return piece;
  }

  const Pattern& pattern_;
  bool is_gpt2_;
  std::shared_ptr<pcre2_real_match_data_8> found_;
  std::shared_ptr<pcre2_real_match_context_8> context_;
  std::shared_ptr<pcre2_real_jit_stack_8> stack_;
  std::string_view text_;
  std::string_view subject_;  ///< the stretch as the engine sees it, of as many bytes
  std::string copy_;          ///< copy of the stretch, if it has stand-ins
  std::size_t next_ = 0;
  std::size_t stretch_begin_ = 0;  ///< begin of the valid UTF-8 that the engine looks at
  std::size_t stretch_end_ = 0;
  std::size_t match_begin_ = 0;  ///< a match found after text that no match covers
  std::size_t match_end_ = 0;
  std::size_t search_from_ = 0;
  bool has_match_ = false;  ///< one was found, which ends at match_end_
};

}  // namespace hyperslab::io
