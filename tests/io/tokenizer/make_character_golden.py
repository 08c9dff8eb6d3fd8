#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes character_golden.json: make_character_golden.py > character_golden.json. Vocabulary, ids and texts by the
package tokenizers."""

import json
import random
import sys

import character_tokenizers as characters
from golden_text import TEXT
from nasty_text import nasty_text

SIZE, ALPHABET = 420, 70

CASES = ["", " ", "  ", "a", " a", "a ", "\u2581a", "The fox", " The  fox   jumps", "\nThe dog\n\n sleeps\n", "<s>The", "a</s> b", "x y x  y",
         "the dog<|user|> \n\n  the fox <|end|>  \n<|x|>a b", "\n\n\n\n\n\n\n<table> <b>\u2581\u2581\u2581<0x0A><start_of_turn>",
         "<|user|><|end|>r|><|x|><unk>", "<|x|> the<|x|>dog", "é ü 狐狸跳\u00a0\u3000 \u2003x", "😀 👨‍👩‍👧 مرحبا שלום", "e\u0301\x00\x01\t\r\n",
         "aaaaaaaaaaaaaaaaaaaaaaaaaaa", " " * 40, "thethethe dogs' tokens per second", "\ufffd\uffff\U0010ffff"]


def settings(tokenizer):
    """Its tokenizer.json without vocabulary and merges."""
    file = json.loads(tokenizer.to_str())
    del file["model"]["vocab"], file["model"]["merges"]
    return file


def main():
    """Prints the file."""
    vocab, merges = characters.trained(TEXT, SIZE, ALPHABET)
    all_splits = characters.resplit(vocab, merges)
    rng = random.Random(3)
    cases = CASES + [nasty_text(rng, 5) for _ in range(3)]
    kinds = {}
    for name, tokenizer in characters.kinds(vocab, merges).items():
        model = json.loads(tokenizer.to_str())["model"]
        ids = [characters.encode_plain(tokenizer, case) for case in cases]
        texts = [tokenizer.decode(found) for found in ids]
        kinds[name] = {
            "settings": settings(tokenizer),
            "without": sorted(set(vocab) - set(model["vocab"])),
            "merges": "merges" if len(model["merges"]) == len(merges) else "all_splits",
            "ids": ids,
            "texts": [None if text == case else text for text, case in zip(texts, cases)],
        }
        assert len(model["merges"]) in (len(merges), len(all_splits)), name
    json.dump({"tokens": sorted(vocab, key=vocab.get), "merges": merges, "all_splits": all_splits, "cases": cases, "kinds": kinds},
              sys.stdout, separators=(",", ":"))
    print()


if __name__ == "__main__":
    main()
