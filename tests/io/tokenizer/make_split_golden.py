#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes split_golden.json: pieces of texts under split patterns, by the package tokenizers (0.23), which reads them
with Oniguruma. Run it in an environment that has the package."""
import json
import pathlib

from tokenizers import Regex, pre_tokenizers

PATTERNS = [
    # GPT-2, Llama 3 (cl100k as transformers has it), Qwen, o200k, and the literal cl100k of tiktoken
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    # repeats
    r"\p{N}{1,3}+|[^\p{N}]+", r"\p{N}{2}+", r"\p{N}{1,3}+?", r"\p{N}{2}?", r"\p{N}{2}??", r"\p{N}{1,3}?", r"a{,3}", r"a{,}",
    r"a{2,}+b", r"(?:ab){1,2}+", r"x?+", r"x*", r"x?", r"\d*", r"(?=b)", r"\b", r"\B", r"a++b", r"a*+", r"[ab]{1,2}+c", r"a{1",
    r"a+{2}", r"(a|b){1,2}+", r"(?:x{0,2})+", r"x{2}{2}", r"a{0,1}*",
    # words and their borders
    r"\w+", r"\W+", r"\b\w+\b", r"[\w']+", r"[^\w]+", r"\w+(?=\W)", r"[[:word:]]+", r"\B\w",
    # ends of lines
    r"\s+$", r"^\s*", r"$", r"^", r"\n$", r"^a", r"a$", r"\A\w+", r"\w+\z", r"\w+\n\Z", r".+", r"(?m:.)+", r"(?m:.+)", r"(?m-i:a.)",
    r"(?m)a.+", r"[^a]+$", r"\R", r"(?-m:.+)",
    # sets and escapes
    r"\h+", r"\H+", r"[\h\-]+", r"[^\h]+", r"[\H]+", r"\d+", r"\D+", r"[\D]+", r"[\d.,]+", r"\s+", r"[\S]+", r"[^\S\n]+", r"\S+", r"\v",
    r"[\v\t]+", r"[[:digit:]]+", r"[[:space:]]+", r"[^[:space:]]+", r"[[:xdigit:]]+", r"\u00e9", r"\x{e9}|\x41", r"[\u4e00-\u9fa5]+",
    r"[\x41-\x{5a}]+", r"\{|\}", r"\p{^L}+", r"\P{L}+", r"[\p{^N}a]+", r"[a\]b]+", r"[-a]+", r"[a-]+", r"\p{Han}+", r"[^\p{Han}]+", r"\p{^Han}+", r"[\w]+\W", r"\b[\w]+\b", r"\.|\-|\/", r"\é", r"[^\n]+\n",
    # groups and case
    r"(?i:k|s)+", r"(?i)abc|the", r"(?i:[a-c]+)", r"(?>a|ab)c", r"(?<!a)b", r"(?<=a)b", r"(?<name>a)b", r"a(?#note)b", r"(?i:sa|ts)",
]
TEXTS = [
    "1924", "In 1924 and 12345678, 3 x 22.", "re\u0301al is re\u0301al1", "na\u00efve a\u0300 b", "\u0928\u092e\u0938\u094d\u0924\u0947 \u0939\u093f\u0928\u094d\u0926\u0940", "line one  \nline two\t\n\nthree   ",
    "a\nb\n", "\n", "a", "xxaxxxb xx", "aaa aaaa ab abab aab", "deadBEEF xyz 0x1F-9a", "a.b!c$d+e<f=g^h`i|j~k", "\u00b2\u00b3\u00b9 \u00bc\u00bd\u00be x\u00b2", "\u24b6\u24d0 \u2160\u2161 \u216b x_y__z",
    "a\u200db \ufe0f\U0001f469\u200d\U0001f680 ok", "tab\tvt\x0bff\x0cnel\x85ls\u2028ps\u2029cr\r\nend\r", "\u4e2d\u6587\u548c123\u65e5\u672c\u8a9e", "The THE the \u212aelvin long\u017f s", "it's IT'S we'll WE'LL don\u2019t 'S '\u017f", "a]b-c{d}e{,3}f a{1 [x]",
    "\u4e00\u3005\u3001\u3007\u30fb\u9ff0\U0002ebf0 \u303b\u3036", "  lead and trail  ", "\u0661\u0662\u0663\u0664 \u0967\u0968", "abc ABC Abc aBC", "\u180e\u00a0\u3000 wide", "ac abc aac bc", "\u00e9A\u00e9 \u0301x",
]


def pieces(pattern: str, text: str) -> list[str]:
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return [piece for piece, _ in split.pre_tokenize_str(text)]


def main() -> None:
    rows = [{"pattern": pattern, "pieces": [pieces(pattern, text) for text in TEXTS]} for pattern in PATTERNS]
    path = pathlib.Path(__file__).parent / "split_golden.json"
    path.write_text(json.dumps({"texts": TEXTS, "patterns": rows}, ensure_ascii=True, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
