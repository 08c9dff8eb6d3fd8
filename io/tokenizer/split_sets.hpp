// SPDX-License-Identifier: Apache-2.0
// Sets of characters of split patterns as Oniguruma has them, as items of a class of PCRE2.
#pragma once

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <string_view>

namespace hyperslab::io {

/// White_Space of the Unicode Character Database; PCRE2's own \s has U+180E as well.
inline constexpr std::string_view kSpaces =
    R"(\t-\r\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
inline constexpr std::string_view kNoSpaces =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";
/// Oniguruma's \w in a class: Alphabetic, marks, decimal digits and connectors.
inline constexpr std::string_view kWord =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";
/// Characters that \w, \W and \b count besides outside of classes: superscripts and fractions of
/// Latin-1.
inline constexpr std::string_view kMoreWord = R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";
inline constexpr std::string_view kHex = "0-9a-fA-F";
inline constexpr std::string_view kNoHex = R"(\x{0}-\x{2f}:-@G-`g-\x{10ffff})";
inline constexpr std::string_view kLineBreak = R"((?>\r\n|[\n-\r\x{85}\x{2028}\x{2029}]))";
inline constexpr std::string_view kLineBegin = R"((?:\A|(?<=\n)(?!\z)))";
inline constexpr std::string_view kLineEnd = R"((?:(?=\n)|\z))";

/// Since 10.40 \p{Han} of PCRE2 means Script_Extensions, and \p{sc:Han} the script.
inline constexpr bool kNamesScripts = PCRE2_MAJOR > 10 || PCRE2_MINOR >= 40;
/// Names of properties that both engines read alike: the general categories.
inline constexpr std::array<std::string_view, 36> kCategories = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd",
    "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm",
    "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Co", "Cn"};

}  // namespace hyperslab::io
