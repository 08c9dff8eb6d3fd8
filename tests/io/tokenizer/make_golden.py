#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes golden.json: make_golden.py > golden.json. Merges by the plain trainer, ids by the package tokenizers."""

import json
import random
import sys

import tokenizers

import compare_reference as reference
from golden_text import TEXT
from nasty_text import nasty_text

SPECIALS = [reference.END, "<|pad|>"]

CASES = ["", " ", "a", "The quick brown fox", "it's they'd we've you're I'm he'll don't IT'S 'tis ''s", "100 1001 12345678901234",
         "x" + " " * 70 + "y", " " * 33, "a" * 23, "a" * 24, "a" * 99, "a" * 100, "a" * 333, "7" * 130, "!" * 130,
         "\n\n\n  \n\tx\r\n\r\ny\r", "\x00\x00a\x00 \x00\x7f", "😀 👨‍👩‍👧‍👦👍🏽🇩🇪😀😀", "שלום עולם مرحبا بالعالم ١٢٣", "e\u0301 n\u0303o a\u0301\u0301 \u0301",
         "a\u00a0b\u2003\u3000c\u1680\u202fd\u2028e\u0085f\u180eg\u200bh\ufeff", "\u3000\u3000x  \u3000 y", "狐狸跳过懒狗，速い。",
         "Größe über ÄÖÜ ſ 's'S'ſ", "½²٣४Ⅷ①1²3", "<|endoftext|> <|pad|><|x|>", "\ufffd\uffff\U0010ffff", "per-dessus\tle\n    chien"]


def main():
    """Prints the file."""
    text = TEXT
    parts = [text]
    for special in SPECIALS:
        parts = [piece for part in parts for piece in part.split(special)]
    merges = reference.plain_merges(reference.END.join(parts), 500 - 256 - len(SPECIALS))
    table = {b: c for c, b in reference.byte_characters().items()}
    shown = [tuple("".join(table[b] for b in token) for token in pair) for pair in merges]
    vocab = {c: i for i, c in enumerate(reference.byte_characters())}
    for left, right in shown:
        vocab[left + right] = len(vocab)
    gpt2 = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, shown))
    gpt2.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    llama3 = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, shown))
    llama3.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Split(tokenizers.Regex(reference.LLAMA3), "isolated"),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    rng = random.Random(7)
    cases = CASES + [nasty_text(rng, 30) for _ in range(20)]
    json.dump({"text": text, "specials": SPECIALS, "merges": [" ".join(pair) for pair in shown], "llama3": reference.LLAMA3,
               "cases": [{"text": case, "gpt2": gpt2.encode(case).ids, "llama3": llama3.encode(case).ids}
                         for case in cases]}, sys.stdout, separators=(",", ":"))
    print()


if __name__ == "__main__":
    main()
