#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokenizers that came from SentencePiece against transformers: an exported folder is read by AutoTokenizer, with the
ids and texts of here. Needs the packages transformers and tokenizers, but no torch.

tokenizers_test.py --binary FILE
"""

import json
import os
import pathlib
import random
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "e2e"), str(HERE.parent / "io" / "tokenizer")]
os.environ.update(TRANSFORMERS_OFFLINE="1", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")

import support

try:
    import tokenizers  # noqa: F401, pylint: disable=unused-import
    from transformers import AutoTokenizer

    import character_tokenizers
    from golden_text import TEXT
    from nasty_text import mixed_text
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

# kind -> class of transformers; LlamaTokenizer of transformers 5 takes vocabulary and merges alone, in Mistral v0.3's form.
CLASSES = {"llama2": "PreTrainedTokenizerFast", "phi3": "PreTrainedTokenizerFast", "mistral3": "LlamaTokenizer",
           "gemma": "GemmaTokenizer", "gemma3": "GemmaTokenizerFast"}
SETTINGS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True,
            "clean_up_tokenization_spaces": False}


class Tokenizers(support.Case):
    """A model of each kind of tokenizer, trained, exported, imported and exported again."""

    def tokens_of(self, vocabulary, texts, *options):
        """What `tokenize` makes of documents."""
        (self.folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        result = self.run_program("tokenize", "--vocab", vocabulary, "--input", "texts.jsonl", "--output", "texts.h5", *options)
        self.assertEqual(result.code, 0, result.err)
        return support.h5(self.folder / "texts.h5")

    def ids_of(self, vocabulary, texts):
        """Ids of documents, without the end of text."""
        found = self.tokens_of(vocabulary, texts)
        tokens, starts = found["tokens"]["values"], found["documents"]["values"]
        return [tokens[begin:end - 1] for begin, end in zip(starts, [*starts[1:], len(tokens)])]

    def test_exported_folders_are_read(self):
        rng = random.Random(5)
        texts = ["The fox", " The fox", "a\n\n  b", "狐狸 😀é", *(mixed_text(rng, 8) for _ in range(40))]
        kinds = character_tokenizers.kinds(*character_tokenizers.trained(TEXT, 420, 70))
        for kind, name in CLASSES.items():
            with self.subTest(kind):
                vocabulary = self.folder / f"{kind}_vocabulary"
                vocabulary.mkdir()
                kinds[kind].save(str(vocabulary / "tokenizer.json"))
                (vocabulary / "tokenizer_config.json").write_text(json.dumps(SETTINGS | {"tokenizer_class": name}), encoding="utf-8")
                result = self.run_program("tokenize", "--vocab", vocabulary.name, "--input", "text.txt", "--output", "words.bin")
                self.assertEqual(result.code, 0, result.err)
                self.train(kind, "train.steps=2", "train.validate_every=0", "model.vocabulary=512",
                           "data.train=[words.bin]", "data.validation=[words.bin]", f"data.vocabulary={vocabulary.name}")
                for command in (("export", f"{kind}/checkpoints", "--output", f"{kind}_hf"),
                                ("import", f"{kind}_hf", "--output", f"{kind}_again"),
                                ("export", f"{kind}_again", "--output", f"{kind}_back")):
                    result = self.run_program("checkpoint", *command)
                    self.assertEqual(result.code, 0, result.err)

                theirs = AutoTokenizer.from_pretrained(self.folder / f"{kind}_back")
                for text, ids in zip(texts, self.ids_of(f"{kind}_hf", texts)):
                    self.assertEqual(ids, theirs.encode(text, split_special_tokens=True), text)
                self.assertEqual(theirs.eos_token_id, 2)

    def compare_parsed(self, name, theirs, texts):
        """Special tokens in texts are those of the package; `theirs`: its tokenizer."""
        vocabulary = self.folder / f"{name}_parsed"
        vocabulary.mkdir()
        theirs.save(str(vocabulary / "tokenizer.json"))
        for parsed in (True, False):
            theirs.encode_special_tokens = not parsed
            # One after the other, as an end of text in a text ends a document.
            ids = self.tokens_of(vocabulary.name, texts, *(("--parse-special",) if parsed else ()))["tokens"]["values"]
            for text in texts:
                expected = theirs.encode(text).ids
                self.assertEqual(ids[:len(expected)], expected, (name, parsed, text))
                ids = ids[len(expected) + 1:]
            self.assertEqual(ids, [])

    def test_special_tokens_in_texts_are_parsed_as_theirs(self):
        rng = random.Random(7)
        names = ["<s>", "</s>", "<unk>", "<|endoftext|>", "<|im_start|>", "<mask>", "<s", "|>", " ", "\n", "the", "Fox"]
        texts = ["<s>", "a<s>b", "</s> a", "x <mask> y", "".join(names),
                 *("".join(rng.choice(names) for _ in range(12)) + "." for _ in range(60)),
                 *(mixed_text(rng, 4) + rng.choice(names) + mixed_text(rng, 4) for _ in range(40))]
        kinds = character_tokenizers.kinds(*character_tokenizers.trained(TEXT, 420, 70))
        for kind, theirs in kinds.items():
            with self.subTest(kind):
                self.compare_parsed(kind, theirs, texts)
        result = self.run_program("tokenize", "--train-vocab", 300, "--input", "text.txt", "--special", "<|endoftext|>",
                                  "--output-vocab", "byte_level")
        self.assertEqual(result.code, 0, result.err)
        file = json.loads((self.folder / "byte_level/tokenizer.json").read_text(encoding="utf-8"))
        for content, flags in (("<|im_start|>", {}), ("<mask>", {"lstrip": True}), ("<unk>", {"rstrip": True})):
            file["added_tokens"].append({"id": len(file["model"]["vocab"]) + len(file["added_tokens"]) - 1, "content": content,
                                         "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                                         "special": True, **flags})
        self.compare_parsed("byte_level", tokenizers.Tokenizer.from_str(json.dumps(file)), texts)

    def test_generated_text_is_theirs(self):
        vocabulary = self.folder / "generate_vocabulary"
        vocabulary.mkdir()
        (vocabulary / "tokenizer.json").write_text(json.dumps(support.character_tokenizer()), encoding="utf-8")
        self.run_program("tokenize", "--vocab", vocabulary.name, "--input", "text.txt", "--output", "words.bin")
        self.train("generate", "train.steps=30", "data.train=[words.bin]", "data.validation=[words.bin]",
                   f"data.vocabulary={vocabulary.name}")
        theirs = tokenizers.Tokenizer.from_file(str(vocabulary / "tokenizer.json"))
        for prompt in ("The red", ""):
            result = self.run_program("generate", "--checkpoint", "generate/checkpoints", "--prompt", prompt, "--max-tokens", 12, "--temperature", 0,
                                      "--stop-token", -1, "--json", "generated.json")
            self.assertEqual(result.code, 0, result.err)
            one = json.loads((self.folder / "generated.json").read_text(encoding="utf-8"))["completions"][0]
            self.assertEqual(one["prompt_ids"], theirs.encode(prompt).ids)
            self.assertEqual(prompt + one["text"], theirs.decode(one["prompt_ids"] + one["ids"], skip_special_tokens=True))


if __name__ == "__main__":
    support.main()
