// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace hyperslab::io {

/// A split pattern of a tokenizer.json, which the package tokenizers compiles with Oniguruma in
/// Ruby's syntax, in the syntax of PCRE2 with the same matches: x{1,3}+ becomes (?:x{1,3})+, $ the
/// end of a line, \w letters, marks, digits and connectors. Throws Error(data) that begins with
/// `where` and names a construct without a counterpart.
[[nodiscard]] std::string pcre2_syntax(std::string_view pattern, const std::string& where);

}  // namespace hyperslab::io
