// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <system_error>

#include "hyperslab/core/error.hpp"
#include "hyperslab/io/tokenizer.hpp"

namespace hyperslab::io {
namespace {

constexpr std::size_t kMostBytes = 4096;

[[noreturn]] void refuse(const std::string& option, const std::string& found) {
  throw Error(ExitCode::usage, "--document-separator '" + option +
                                   "': expected blank-lines, or a text of 1 to 4096 bytes in which "
                                   "\\n, \\r, \\t, \\\\ and \\xHH stand for bytes, found " +
                                   found);
}

/// The byte that the escape at the beginning of `text` (after the backslash) stands for; takes it
/// off.
char take_escape(std::string_view& text, const std::string& option) {
  const char kind = text.empty() ? '\0' : text.front();
  text.remove_prefix(std::min<std::size_t>(text.size(), 1));
  switch (kind) {
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    case '\\': return '\\';
    default: break;
  }
  std::uint8_t byte = 0;
  const std::string_view digits = text.substr(0, 2);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
  if (kind != 'x' || error != std::errc() || end != digits.data() + 2) {
    refuse(option, "another escape");
  }
  text.remove_prefix(2);
  return static_cast<char>(byte);
}

}  // namespace

DocumentSeparator parse_document_separator(const std::string& option) {
  DocumentSeparator out;
  if (option == "blank-lines") {
    out.kind = DocumentSeparator::Kind::blank_lines;
    return out;
  }
  out.kind = DocumentSeparator::Kind::text;
  for (std::string_view rest = option; !rest.empty();) {
    const char c = rest.front();
    rest.remove_prefix(1);
    out.text += c == '\\' ? take_escape(rest, option) : c;
  }
  if (out.text.empty()) refuse(option, "an empty text");
  if (out.text.size() > kMostBytes) refuse(option, std::to_string(out.text.size()) + " bytes");
  return out;
}

}  // namespace hyperslab::io
