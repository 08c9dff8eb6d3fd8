// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/pattern.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "hyperslab/core/error.hpp"
#include "tokenizer/split_syntax.hpp"
#include "tokenizer/unicode_ages.hpp"
#include "tokenizer/utf8.hpp"

namespace hyperslab::io {
namespace {

std::string message_of(int error) {
  std::array<unsigned char, 256> buffer{};
  pcre2_get_error_message(error, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

enum Kind : std::uint8_t { foreign, letter, digit, space, other };

constexpr std::array<Kind, 256> make_kinds() {
  std::array<Kind, 256> kinds{};
  for (int c = 0; c < 128; ++c) {
    Kind kind = other;
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) kind = letter;
    if (c >= '0' && c <= '9') kind = digit;
    if (c == ' ' || (c >= '\t' && c <= '\r')) kind = space;
    kinds[static_cast<std::size_t>(c)] = kind;
  }
  return kinds;
}

constexpr std::array<Kind, 256> kKinds = make_kinds();

Kind kind_of(char c) { return kKinds[static_cast<unsigned char>(c)]; }

/// Bytes of a contraction ('s, 're, ...) that `text` begins with, else 0.
std::size_t contraction(std::string_view text) {
  if (text.size() < 2) return 0;
  const char c = text[1];
  if (c == 's' || c == 't' || c == 'm' || c == 'd') return 2;
  if (text.size() < 3) return 0;
  const bool two =
      (c == 'r' && text[2] == 'e') || (c == 'v' && text[2] == 'e') || (c == 'l' && text[2] == 'l');
  return two ? 3 : 0;
}

}  // namespace

Pattern::Pattern(const std::string& text, const std::string& where)
    : is_gpt2_(text == kGpt2Pattern) {
  const std::string source = pcre2_syntax(text, where);
  const std::shared_ptr<pcre2_compile_context> context(pcre2_compile_context_create(nullptr),
                                                       pcre2_compile_context_free);
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(),
                            PCRE2_UTF | PCRE2_UCP, &error, &offset, context.get()),
              pcre2_code_free);
  if (!code_) {
    throw Error(
        ExitCode::data,
        fmt::format("{}: expected a regular expression of PCRE2, found '{}': {} after '{}'; "
                    "give the tokenizer.json of another model",
                    where, text, message_of(error), source.substr(0, offset)));
  }
  has_jit_ = pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE) == 0;
}

Splitter::Splitter(const Pattern& pattern)
    : pattern_(pattern),
      is_gpt2_(pattern.is_gpt2()),
      found_(pcre2_match_data_create(1, nullptr), pcre2_match_data_free),
      context_(pcre2_match_context_create(nullptr), pcre2_match_context_free) {
  if (!found_ || !context_) throw std::bad_alloc();
  if (!pattern.has_jit()) return;
  stack_.reset(pcre2_jit_stack_create(32 << 10, 16 << 20, nullptr), pcre2_jit_stack_free);
  pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
}

void Splitter::start(std::string_view text) {
  text_ = text;
  next_ = stretch_begin_ = stretch_end_ = match_begin_ = match_end_ = search_from_ = 0;
  has_match_ = false;
}

bool Splitter::begin_stretch() {
  if (next_ == text_.size()) return false;
  stretch_begin_ = next_;
  const std::size_t valid = valid_utf8_prefix(text_.substr(next_));
  stretch_end_ = next_ + (valid > 0 ? valid : 1);
  match_begin_ = match_end_ = search_from_ = next_;
  has_match_ = false;
  if (valid == 0) match_end_ = stretch_end_;
  subject_ = with_stand_ins(text_.substr(next_, valid), copy_);
  return true;
}

/// Bytes of the piece at next_ if ASCII alone decides about it, else 0.
std::size_t Splitter::ascii_piece() const {
  const char* const begin = text_.data() + next_;
  const char* const end = text_.data() + stretch_end_;
  const char* at = begin;
  Kind kind = kind_of(*at);
  if (*at == ' ' && at + 1 < end) {
    const Kind second = kind_of(at[1]);
    if (second != space) {
      kind = second;
      ++at;
    }
  }
  if (kind == foreign) return 0;
  if (*begin == '\'') {
    const std::size_t bytes = contraction({begin, static_cast<std::size_t>(end - begin)});
    if (bytes > 0) return bytes;
  }
  do {
    ++at;
  } while (at < end && kind_of(*at) == kind);
  if (at < end && kind_of(*at) == foreign) return 0;
  const auto bytes = static_cast<std::size_t>(at - begin);
  return kind == space && at < end && bytes > 1 ? bytes - 1 : bytes;
}

std::string_view Splitter::match() {
  if (next_ < match_begin_) return take(match_begin_ - next_);
  if (next_ < match_end_) return take(match_end_ - next_);
  while (find_match()) {
    if (next_ < match_begin_) return take(match_begin_ - next_);
    if (next_ < match_end_) return take(match_end_ - next_);
  }
  return take(stretch_end_ - next_);
}

bool Splitter::find_match() {
  const auto run = pattern_.has_jit() ? pcre2_jit_match : pcre2_match;
  const auto* const subject = reinterpret_cast<PCRE2_SPTR>(subject_.data());
  search_from_ = std::max(search_from_, next_);
  while (search_from_ <= stretch_end_) {
    const int result = run(pattern_.code(), subject, subject_.size(), search_from_ - stretch_begin_,
                           PCRE2_NO_UTF_CHECK, found_.get(), context_.get());
    if (result == PCRE2_ERROR_NOMATCH) return false;
    if (result < 0) fail(result);
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(found_.get());
    const std::size_t begin = stretch_begin_ + bounds[0];
    const std::size_t end = stretch_begin_ + bounds[1];
    if (begin < end || !has_match_ || match_end_ != end) {
      match_begin_ = begin;
      match_end_ = search_from_ = end;
      has_match_ = true;
      return true;
    }
    if (search_from_ == stretch_end_) return false;
    search_from_ += character_at(text_, search_from_).bytes;
  }
  return false;
}

void Splitter::fail(int result) const {
  throw Error(ExitCode::data,
              fmt::format("text of {} bytes: the split pattern cannot be matched at byte {}: {}; "
                          "break its longest line",
                          text_.size(), next_, message_of(result)));
}

}  // namespace hyperslab::io
