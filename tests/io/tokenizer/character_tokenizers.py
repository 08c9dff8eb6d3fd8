# SPDX-License-Identifier: Apache-2.0
"""Small tokenizers in the forms of those that came from SentencePiece, made by the package tokenizers."""

import json

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LOWER = "\u2581"
SPECIALS = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def trained(text, size, alphabet):
    """Vocabulary and merges; the ids in SentencePiece's order: special tokens, bytes, the rest. Merges stay in words,
    but words may begin with several spaces and hold line breaks."""
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=SPECIALS + BYTES, show_progress=False,
                                  limit_alphabet=alphabet)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", LOWER)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(LOWER, "merged_with_next")
    tokenizer.train_from_iterator([text], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocab, merges = model["vocab"], [tuple(merge) for merge in model["merges"]]
    for left in (LOWER, 2 * LOWER):  # runs of spaces, which stay apart in training
        for right in (LOWER, 2 * LOWER):
            if left + right not in vocab or (left, right) not in merges:
                vocab.setdefault(left + right, len(vocab))
                merges.append((left, right))
    return vocab, merges


def resplit(vocab, merges):
    """Merges as transformers makes them of a SentencePiece model: every split of a token into two others."""
    made = {left + right for left, right in merges}
    out = []
    for token in sorted(made, key=vocab.get):
        splits = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in vocab and token[i:] in vocab]
        out += sorted(splits, key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
    return out


def bpe(vocab, merges, **settings):
    """A tokenizer of a BPE with a fallback to bytes, and its special tokens."""
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges,
                                     **({"fuse_unk": True, "byte_fallback": True, "unk_token": "<unk>"} | settings)))
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in SPECIALS])
    begin = [("<s>", vocab["<s>"])]
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s>:1 $B:1", begin)
    return tokenizer


def decoder(strips):
    """What Llama 2's files have, and without the Strip Gemma's."""
    parts = [decoders.Replace(LOWER, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(parts + ([decoders.Strip(" ", 1, 0)] if strips else []))


def llama2(vocab, merges, **settings):
    """Llama 2, Mistral v0.1: a space is put before every piece."""
    tokenizer = bpe(vocab, merges, **settings)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(LOWER), normalizers.Replace(" ", LOWER)])
    tokenizer.decoder = decoder(True)
    return tokenizer


def mistral3(vocab, merges, scheme="first", split=False, **settings):
    """Mistral v0.3: Metaspace puts it before the text alone."""
    tokenizer = bpe(vocab, merges, **settings)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=LOWER, prepend_scheme=scheme, split=split)
    tokenizer.decoder = decoder(scheme != "never")
    return tokenizer


def gemma(vocab, merges, split=True):
    """Gemma: no space is put anywhere, and runs of line breaks and spaces are added tokens; Gemma 3 splits as well."""
    tokenizer = bpe(vocab, merges)
    tokenizer.normalizer = normalizers.Replace(" ", LOWER)
    if split:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoder(False)
    runs = ["\n" * n for n in range(2, 6)] + [LOWER * n for n in range(2, 6)] + ["<table>", "<b>", "[multimodal]"]
    tokenizer.add_tokens([AddedToken(run, normalized=False) for run in runs])
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in ("<start_of_turn>", "<eos>")])
    return tokenizer


def phi3(vocab, merges):
    """Phi-3: the end of text is found in text, with the white space after it."""
    tokenizer = llama2(vocab, merges)
    tokenizer.add_tokens([AddedToken("<|user|>", rstrip=True, normalized=False),
                          AddedToken("<|end|>", lstrip=True, rstrip=True, normalized=False),
                          AddedToken("\n\n", normalized=False), AddedToken("x y", normalized=True),
                          AddedToken("the", lstrip=True, normalized=True)])
    tokenizer.add_special_tokens([AddedToken("r|>", normalized=False), AddedToken("|><", normalized=False)])
    return tokenizer


def without(vocab, merges, names):
    """Vocabulary and merges without tokens, with new ids."""
    kept = [token for token in sorted(vocab, key=vocab.get) if token not in names]
    vocab = {token: i for i, token in enumerate(kept)}
    return vocab, [(a, b) for a, b in merges if a in vocab and b in vocab and a + b in vocab]


def kinds(vocab, merges):
    """name -> tokenizer."""
    all_splits = resplit(vocab, merges)
    few_bytes = without(vocab, merges, {f"<0x{byte:02X}>" for byte in range(0x80, 0xE3)})
    no_bytes = without(vocab, merges, set(BYTES))
    always = mistral3(vocab, merges, scheme="always")
    always.add_tokens([AddedToken("<|x|>", normalized=False), AddedToken("a b", normalized=True)])
    metaspace = mistral3(vocab, merges, scheme="always", split=True)
    metaspace.decoder = decoders.Metaspace(replacement=LOWER, prepend_scheme="always")
    first_metaspace = mistral3(vocab, merges, split=True, ignore_merges=True)
    first_metaspace.add_tokens([AddedToken("<|x|>", normalized=False)])
    spaces = bpe(vocab, merges)
    spaces.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    spaces.decoder = decoder(False)
    return {
        "llama2": llama2(vocab, merges),
        "llama2_all_splits": llama2(vocab, all_splits),
        "llama2_ignore_merges": llama2(vocab, merges, ignore_merges=True),
        "mistral3": mistral3(vocab, all_splits),
        "llama_v5": mistral3(vocab, merges, unk_token=None),
        "metaspace_always": always,
        "metaspace_split": metaspace,
        "metaspace_first_split": first_metaspace,
        "metaspace_never": mistral3(vocab, merges, scheme="never"),
        "gemma": gemma(vocab, all_splits, split=False),
        "gemma3": gemma(vocab, merges),
        "phi3": phi3(vocab, all_splits),
        "split_spaces": spaces,
        "few_bytes": llama2(*few_bytes),
        "few_bytes_apart": llama2(*few_bytes, fuse_unk=False),
        "few_bytes_dropped": llama2(*few_bytes, unk_token=None),
        "no_bytes": llama2(*no_bytes, byte_fallback=False),
        "no_bytes_dropped": mistral3(*no_bytes, byte_fallback=False, unk_token=None),
    }


def encode_plain(tokenizer, text):
    """Ids of a text without those of the template; special tokens in it are text, as here."""
    tokenizer.encode_special_tokens = True
    return tokenizer.encode(text, add_special_tokens=False).ids
