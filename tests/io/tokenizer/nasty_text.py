# SPDX-License-Identifier: Apache-2.0
"""Random text that tokenizers trip over."""

# What it is made of, one kind a word.
KINDS = ["abcdefgh", "ABC", "0123456789", " ", "  ", "\n", "\r\n", "\t", "'", "'s't're've'm'll'd'S'RE",
         ".,;:!?-_()[]{}<>|/\\\"#", "\u00a0\u2003\u3000\u1680\u202f\u205f\u2028\u2029\u0085\u000b\u000c",
         "\u180e\u200b\u200d\ufeff\u2060", "\x00\x01\x1c\x1f\x7f", "\u0301\u0308\u20dd\u0902",
         "e\u0301q\u0323\u0307\u1112\u1161\u11ab\u212b\u0958", "äöüßéñçΑΩжЯ", "שלום مرحبا",
         "中文字符。，", "かなカナ", "한국어", "👨‍👩‍👧👍🏽🇩🇪😀", "½²٣४Ⅷ①", "\U00031350\U0002ebf0\ua7cb\U00010d40\U0001fae8\U00038000", "ſKÅǅʰ", "\U0001d4d0\U0001f1e6\U000e0041", "\ue000\uffff\ufffd"]


def nasty_text(rng, words):
    """Random text of all kinds, with runs."""
    out = []
    for _ in range(words):
        kind = rng.choice(KINDS)
        if rng.random() < 0.02:
            out.append(rng.choice(kind) * rng.randrange(1, 400))
        else:
            out.append("".join(rng.choice(kind) for _ in range(rng.randrange(1, 6))))
    return "".join(out)


# Words that added tokens of character_tokenizers.py have to do with, and frequent ones.
WORDS = ["<s>", "</s>", "<unk>", "<|user|>", "<|end|>", "<|x|>", "a b", "x y", "the", "\n\n", "\n\n\n", "<table>", "<b>",
         "<start_of_turn>", "|><", "r|>", "[multimodal]", "<0x0A>", "<eos>", "\u2581", "\u2581\u2581 ", " the", " dog", " fox", " jumps", " and the"]


def mixed_text(rng, words):
    """Random text with such words; not empty."""
    return "".join(rng.choice(WORDS) if rng.random() < 0.5 else nasty_text(rng, 1) for _ in range(words))
