#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ids and merges equal those of Hugging Face's tokenizers, of tiktoken and of a plain trainer.

compare_reference.py --binary HYPERSLAB. Needs the packages tokenizers and tiktoken, and HYPERSLAB_TOKENIZER_DATA: a
folder with gpt2/gpt2_vocab.json, gpt2/gpt2_merges.txt and text files in any subfolders. Ends with 77 (skipped) if
one of these is missing.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

try:
    import regex
    import tiktoken
    import tokenizers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import character_tokenizers
from golden_text import TEXT
from nasty_text import mixed_text, nasty_text

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
END = "<|endoftext|>"
SLOW_BYTES = 4 << 20  # the largest file that the slower reference reads as well
SLOWEST_BYTES = 1 << 20  # and those of which a document is one word


def documents(text):
    """As tokenize cuts a file: a line that is only END ends a document."""
    parts, document = [], []
    for line in text.splitlines(keepends=True) if "\r" not in text else regex.findall(r"[^\n]*\n|[^\n]+", text):
        if line.rstrip("\n").removesuffix("\r") == END:
            parts.append("".join(document))
            document = []
        else:
            document.append(line)
    parts.append("".join(document))
    return [part for part in parts if part] or [""]


def lines_only(text):
    """Whether only \n separates lines for str.splitlines."""
    return not regex.search(r"[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]", text)


class Comparison:
    """One folder of data, one binary."""

    def __init__(self, binary, data, folder):
        self.binary, self.data, self.folder = binary, pathlib.Path(data), pathlib.Path(folder)
        self.failures = 0

    def run(self, *arguments):
        """Runs `hyperslab tokenize`."""
        # A folder of its own for MPI's session: another program's end may remove a shared one.
        subprocess.run([self.binary, "tokenize", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL,
                       env=os.environ | {"TMPDIR": str(self.folder)})

    def ours(self, vocabulary, path):
        """Ids of a file."""
        output = self.folder / "ids.bin"
        self.run("--vocab", vocabulary, "--input", path, "--output", output)
        with open(output, "rb") as file:
            file.seek(1024)
            return memoryview(file.read()).cast("H")

    def compare(self, what, ours, expected):
        """Counts and prints a difference."""
        ours = list(ours)
        if ours == expected:
            print(f"equal   {what}: {len(expected)}", flush=True)
            return
        self.failures += 1
        at = next((i for i, (a, b) in enumerate(zip(ours, expected)) if a != b), min(len(ours), len(expected)))
        print(f"DIFFERS {what}: at {at} of {len(expected)}: found {ours[at:at + 8]}, expected {expected[at:at + 8]}")

    def compare_file(self, name, path, references):
        """One text file under every reference."""
        text = pathlib.Path(path).read_bytes().decode()
        parts = documents(text) if lines_only(text) else [text]
        for what, (vocabulary, encode, end, most) in references.items():
            if len(text) > most:
                continue
            expected = [i for ids in encode(parts) for i in (*ids, end)]
            self.compare(f"{name} by {what}", self.ours(vocabulary, path), expected)


def plain_merges(text, count):
    """The plain trainer: recounts nothing but changed words, ties to the greater pair of bytes."""
    words = collections.Counter(tuple(bytes([b]) for b in piece.encode())
                                for part in text.split(END) for piece in regex.findall(GPT2, part))
    merges = []
    while len(merges) < count:
        pairs = collections.Counter()
        for word, times in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += times
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        changed = collections.Counter()
        for word, times in words.items():
            new, i = [], 0
            while i < len(word):
                if word[i:i + 2] == best:
                    new.append(best[0] + best[1])
                    i += 2
                else:
                    new.append(word[i])
                    i += 1
            changed[tuple(new)] += times
        words = changed
    return merges


def byte_characters():
    """The byte that each character of GPT-2's table stands for, in the order of its ids."""
    order = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in order]
    return {chr(b): b for b in order} | {chr(256 + i): b for i, b in enumerate(rest)}


def references(data, folder):
    """name -> (vocabulary for us, encoder of many texts, id that ends a document, longest text)."""
    vocab_file, merges_file = (str(data / "gpt2" / name) for name in ("gpt2_vocab.json", "gpt2_merges.txt"))
    table = byte_characters()
    vocab = json.loads(pathlib.Path(vocab_file).read_text(encoding="utf-8"))
    ranks = {bytes(table[c] for c in token): i for token, i in vocab.items() if token != END}
    end = vocab[END]

    plain = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(vocab_file, merges_file))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = tokenizers.decoders.ByteLevel()
    llama = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(vocab_file, merges_file, ignore_merges=True))
    llama.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Split(tokenizers.Regex(LLAMA3), "isolated"),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    llama.add_tokens([tokenizers.AddedToken("the cat", normalized=False), tokenizers.AddedToken("::::", normalized=False)])
    llama.save(str(folder / "llama.json"))

    framed = tokenizers.Tokenizer.from_file(str(folder / "llama.json"))
    framed.add_special_tokens(["<|begin_of_text|>"])
    begin = framed.token_to_id("<|begin_of_text|>")
    template = tokenizers.processors.TemplateProcessing("<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)])
    framed.post_processor = tokenizers.processors.Sequence([tokenizers.processors.ByteLevel(trim_offsets=False), template])
    framed.save(str(folder / "framed.json"))

    composing = tokenizers.Tokenizer.from_file(str(folder / "llama.json"))
    composing.normalizer = tokenizers.normalizers.NFC()
    composing.save(str(folder / "composing.json"))

    def hugging_face(tokenizer, special=False):
        return lambda texts: (e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=special))

    def tik(pattern):
        encoding = tiktoken.Encoding(name="gpt2_local", pat_str=pattern, mergeable_ranks=ranks, special_tokens={END: end})
        return encoding.encode_ordinary_batch

    return {"tiktoken": (data / "gpt2", tik(GPT2), end, sys.maxsize),
            "tokenizers": (data / "gpt2", hugging_face(plain), end, SLOW_BYTES),
            "tokenizers, Llama 3's pattern": (folder / "llama.json", hugging_face(llama), end, SLOW_BYTES),
            "tokenizers, in NFC": (folder / "composing.json", hugging_face(composing), end, SLOW_BYTES),
            "tokenizers, Llama 3's template": (folder / "framed.json", hugging_face(framed, special=True), end, SLOW_BYTES)}


def character_references(data, folder):
    """The same of tokenizers on characters, of every form; texts with their template."""
    text = (data / "gpt2" / "corpus.en").read_text(encoding="utf-8") + TEXT
    kinds = character_tokenizers.kinds(*character_tokenizers.trained(text, 2000, 150))
    out = {}
    for name, tokenizer in kinds.items():
        path = folder / f"{name}.json"
        tokenizer.save(str(path))
        tokenizer.encode_special_tokens = True  # special tokens in text are text here

        def encode(texts, tokenizer=tokenizer):
            return (encoding.ids for encoding in tokenizer.encode_batch(texts))

        out[f"tokenizers, {name}"] = (path, encode, tokenizer.token_to_id("</s>"), SLOWEST_BYTES)
    return out


def compare_characters(comparison):
    """Short texts full of added tokens, each a document; the text files follow with the others."""
    against = character_references(comparison.data, comparison.folder)
    rng = random.Random(21)
    lines = [mixed_text(rng, rng.randrange(1, 40)) for _ in range(2000)]
    path = comparison.folder / "lines.jsonl"
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines), encoding="utf-8")
    for what, (vocabulary, encode, end, _) in against.items():
        expected = [i for ids in encode(lines) for i in (*ids, end)]
        comparison.compare(f"{len(lines)} documents by {what}", comparison.ours(vocabulary, path), expected)
    return against


def compare_training(comparison):
    """The merges of a small text, and the files as Hugging Face reads them."""
    data, folder = comparison.data, comparison.folder
    text_file = data / "gpt2" / "corpus.en"
    text = text_file.read_bytes().decode()
    merges = plain_merges(text, 243)
    comparison.run("--train-vocab", 500, "--input", text_file, "--output-vocab", folder / "trained")
    lines = (folder / "trained" / "merges.txt").read_text(encoding="utf-8").splitlines()[1:]
    table = byte_characters()
    comparison.compare("merges of corpus.en",
                       [tuple(bytes(table[c] for c in token) for token in line.split(" ")) for line in lines], merges)
    trained = tokenizers.Tokenizer.from_file(str(folder / "trained" / "tokenizer.json"))
    expected = trained.encode(text, add_special_tokens=False).ids + [trained.token_to_id(END)]
    comparison.compare("tokenizer.json read by tokenizers", comparison.ours(folder / "trained", text_file), expected)
    comparison.compare("decoded by tokenizers", [trained.decode(expected[:-1], skip_special_tokens=False)], [text])
    for name in ("vocab.json", "tokenizer.json"):
        comparison.compare(name, comparison.ours(folder / "trained" / name, text_file), expected)


def main():
    """Exit code 0 if all is equal, 1 if not, 77 if nothing could be compared."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", required=True)
    arguments = parser.parse_args()
    data = os.environ.get("HYPERSLAB_TOKENIZER_DATA")
    if not data or not (pathlib.Path(data) / "gpt2" / "gpt2_vocab.json").exists():
        print("skipped: HYPERSLAB_TOKENIZER_DATA names no folder with gpt2/gpt2_vocab.json")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(arguments.binary, data, folder)
        against = references(comparison.data, comparison.folder)
        compare_training(comparison)
        against |= compare_characters(comparison)
        rng = random.Random(20)
        for words in (1, 100, 5000, 50000):
            path = comparison.folder / "nasty.txt"
            path.write_bytes(nasty_text(rng, words).encode())
            comparison.compare_file(f"{words} random words", path, against)
        for path in sorted(p for p in comparison.data.rglob("*") if p.suffix in (".txt", ".tokens", ".en")):
            if "merges" not in path.name:
                comparison.compare_file(path.name, path, against)
    print(f"{comparison.failures} differences")
    return 1 if comparison.failures else 0


if __name__ == "__main__":
    sys.exit(main())
