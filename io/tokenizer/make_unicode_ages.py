#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes unicode_ages.cpp: code points that are no characters, or younger than the oldest supported PCRE2, and stand-ins.

make_unicode_ages.py, with the package unicodedataplus of VERSION (pip install unicodedataplus==16.0.0.post1), which
is the Unicode of tiktoken and of Hugging Face's tokenizers. The stand-in of a younger character is an old one of the
same general category (and Han or not) and of as many bytes in UTF-8; that of a code point that VERSION does not assign
is one that will never be a letter or a digit.
"""

import pathlib

import unicodedataplus

VERSION = "16.0.0"
OLDEST = 11.0  # Unicode of PCRE2 10.32; every engine knows older characters
SURROGATES = range(0xD800, 0xE000)


def is_noncharacter(code):
    """Reserved for ever."""
    return 0xFDD0 <= code < 0xFDF0 or code & 0xFFFE == 0xFFFE


def is_old(code):
    """Whether every engine knows it for what it is."""
    age = unicodedataplus.age(chr(code))
    return is_noncharacter(code) or (age != "Unassigned" and float(age) <= OLDEST)


def kinds(code):
    """What split patterns ask of a character, and the nearest kinds: not Han, another one of its major category."""
    char = chr(code)
    size, category = len(char.encode()), unicodedataplus.category(char)
    yield size, category, unicodedataplus.script(char) == "Han"
    yield size, category, False
    yield size, category[0], False


def stand_ins():
    """(code point, stand-in) of every one that the engine may not know."""
    codes = [code for code in range(0x80, 0x110000) if code not in SURROGATES]
    old = {}
    for code in filter(is_old, codes):
        for kind in kinds(code):
            old.setdefault(kind, code)
    for code in codes:
        if not is_old(code):
            yield code, next(old[kind] for kind in kinds(code) if kind in old)


def ranges(pairs):
    """[first, last, stand-in] of neighbours with the same stand-in."""
    out = []
    for code, stand_in in pairs:
        if out and out[-1][1] == code - 1 and out[-1][2] == stand_in:
            out[-1][1] = code
        else:
            out.append([code, code, stand_in])
    return out


def main():
    """Writes the file beside this one."""
    if unicodedataplus.unidata_version != VERSION:
        raise SystemExit(f"unicodedataplus has Unicode {unicodedataplus.unidata_version}, expected {VERSION}")
    table = ranges(stand_ins())
    rows = ["{" + ", ".join(f"0x{number:X}" for number in row) + "}," for row in table]
    lines = ["// SPDX-License-Identifier: Apache-2.0",
             "// Made by make_unicode_ages.py out of the Unicode Character Database.",
             '#include "tokenizer/unicode_ages.hpp"', "", "namespace hyperslab::io {", "namespace {", "",
             "// clang-format off",
             f"constexpr StandIn kStandIns[{len(table)}] = {{"]
    line = ""
    for row in rows:
        if len(line) + 1 + len(row) > 118:
            lines.append(line)
            line = ""
        line += " " + row
    lines += [line, "};", "// clang-format on", "", "}  // namespace", "",
              f'std::string_view unicode_version() {{ return "{VERSION[:-2]}"; }}', "",
              "std::span<const StandIn> stand_ins() { return kStandIns; }", "", "}  // namespace hyperslab::io", ""]
    pathlib.Path(__file__).with_name("unicode_ages.cpp").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
