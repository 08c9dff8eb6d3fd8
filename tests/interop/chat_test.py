#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Conversations against transformers: ids of apply_chat_template, and its mask of the assistant's tokens. Needs the packages
transformers, tokenizers and jinja2, but no torch. With the package trl (its files alone) published templates are compared, too.

chat_test.py --binary FILE
"""

import importlib.util
import json
import os
import pathlib
import random
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(path) for path in (HERE.parent / "e2e", HERE.parent / "io" / "tokenizer", HERE.parent / "io" / "chat", ROOT / "jobs" / "data")]
os.environ.update(TRANSFORMERS_OFFLINE="1", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")

import serve_test
import support

try:
    import jinja2  # noqa: F401, pylint: disable=unused-import
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    import character_tokenizers
    import drawn_chats
    import render_chats
    from golden_text import TEXT
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

IM = ["<|im_start|>", "<|im_end|>"]
HEADERS = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
PHI = ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
TURNS = ["<start_of_turn>", "<end_of_turn>"]


def turns(begin, end, rest="", trim="", default="", name="m.role"):
    """A small template that marks the words of the assistant, of roles with a header each."""
    return ("{{ start }}" + default + "{% for m in messages %}" + begin.replace("ROLE", "{{ " + name + " }}") +
            "{% if m.role == 'assistant' %}{% generation %}{{ m.content" + trim + " + '" + end + "' }}{% endgeneration %}"
            "{% else %}{{ m.content" + trim + " + '" + end + "' }}{% endif %}{{ '" + rest + "' }}{% endfor %}{{ finish }}")


def instructions(user, lead, end, trim="", system="", strip="", answer=""):
    """A small template of users and assistants in turn, with the system's text within the first turn."""
    return ("{% set ns = namespace(system='') %}{{ start }}{% for m in messages %}{% if m.role == 'system' %}{% set ns.system = " + system +
            " %}{% elif m.role == 'user' %}{{ '" + user[0] + "' + (ns.system + m.content" + trim + ")" + strip + " + '" + user[1] +
            "' }}{% set ns.system = '' %}{% else %}" + answer + "{% generation %}{{ '" + lead + "' + m.content" + (trim or strip) + " + '" + end +
            "' }}{% endgeneration %}{{ rest }}{% endif %}{% endfor %}")


IM_TURNS = ("{{ '<|im_start|>' }}ROLE{{ '\\n' }}", "<|im_end|>", "\\n")
FIRST = "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\nTEXT<|im_end|>\\n' }}{% endif %}"
HEADER = "{{ '<|start_header_id|>' }}ROLE{{ '<|end_header_id|>\\n\\n' }}"
MODEL = "('model' if m.role == 'assistant' else m.role)"
# name -> (special tokens, kind of tokenizer, a template with marks)
MARKED = {
    "chatml": (IM, "bytes", turns(*IM_TURNS)),
    "qwen2": (IM, "nfc", turns(*IM_TURNS, default=FIRST.replace("TEXT", "You are a helpful assistant."))),
    "llama3": (HEADERS, "bytes", "{{ bos_token }}" + turns(HEADER, "<|eot_id|>", trim=" | trim")),
    "gemma": (TURNS, "gemma", "{{ bos_token }}" + turns("{{ '<start_of_turn>' }}ROLE{{ '\\n' }}", "<end_of_turn>", "\\n", " | trim", name=MODEL)),
    "phi3": (PHI, "phi3", turns("{{ '<|' }}ROLE{{ '|>\\n' }}", "<|end|>", "\\n") + "{{ eos_token }}"),
    "llama2": ([], "llama2", instructions(("<s>[INST] ", " [/INST]"), " ", " </s>", system="'<<SYS>>\\n' + m.content + '\\n<</SYS>>\\n\\n'", strip=".strip()")),
    "mistral-v1": ([], "llama2", "{{ bos_token }}" + instructions((" [INST] ", " [/INST]"), " ", "</s>", system="m.content + '\\n\\n'")),
    "mistral-v3": (["[INST]", "[/INST]"], "mistral3", "{{ bos_token }}" + "{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + '[/INST]' }}"
                   "{% else %}{% generation %}{{ ' ' + m.content | trim + '</s>' }}{% endgeneration %}{% endif %}{% endfor %}"),
    "mistral-nemo": (["[INST]", "[/INST]"], "bytes", "{{ bos_token }}" + "{% for m in messages %}{% if m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}"
                     "{% else %}{% generation %}{{ m.content + eos_token }}{% endgeneration %}{% endif %}{% endfor %}"),
}
# name -> (special tokens, kind of tokenizer, file of trl)
PUBLISHED = {"llama3": (HEADERS, "bytes", "llama3"), "llama3.1": (HEADERS, "bytes", "llama3_1"), "phi3": (PHI, "phi3", "phi3"),
             "phi3.5": (PHI, "phi3", "phi3_5"), "gemma": (TURNS, "gemma", "gemma"), "gemma3": (TURNS, "gemma3", "gemma3"),
             "qwen2.5": (IM, "nfc", "qwen2_5"), "qwen3": (IM, "nfc", "qwen3"), "qwen3-2507": (IM, "nfc", "qwen3_instruct_2507")}
ROUNDS = 60


def byte_level(nfc):
    """A byte-level tokenizer with a split pattern of GPT-2's kind, and Qwen's normalizer."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    if nfc:
        tokenizer.normalizer = tokenizers.normalizers.NFC()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=420, show_progress=False, special_tokens=["<s>", "</s>"],
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([TEXT + "\n\n\nassistant\nuser\n" * 5], trainer)
    return tokenizer


class Chats(support.Case):
    """Drawn conversations in folders of vocabularies, tokenized by both programs."""

    def vocabulary(self, name, specials, kind, source):
        """A folder with a tokenizer and a template; transformers' tokenizer of it."""
        if kind in ("bytes", "nfc"):
            tokenizer = byte_level(kind == "nfc")
        else:
            kinds = character_tokenizers.kinds(*character_tokenizers.trained(TEXT, 420, 70))
            tokenizer = kinds["llama2" if kind == "phi3" else kind]
        phi = kind == "phi3"  # whose tokens take the white space after them
        tokenizer.add_special_tokens([tokenizers.AddedToken(each, normalized=False, special=True, rstrip=phi) for each in specials])
        folder = self.folder / name
        folder.mkdir()
        tokenizer.save(str(folder / "tokenizer.json"))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "clean_up_tokenization_spaces": False}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
        (folder / "chat_template.jinja").write_text(source, encoding="utf-8")
        return PreTrainedTokenizerFast.from_pretrained(folder)

    def ours(self, name, rows, *options):
        """[(ids, mask)] of the documents of `tokenize --chat`."""
        (self.folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        result = self.run_program("tokenize", "--chat", "rows.jsonl", "--vocab", name, "--output", "rows.h5", "--train-on", "assistant", *options)
        self.assertEqual(result.code, 0, result.err)
        found = support.h5(self.folder / "rows.h5")
        ids, mask, starts = (list(found[key]["values"]) for key in ("tokens", "loss_mask", "documents"))
        return [(ids[begin:end], mask[begin:end]) for begin, end in zip(starts, [*starts[1:], len(ids)])]

    def drawn(self, name):
        """Conversations with an answer, without names of special tokens, which transformers would take as tokens."""
        rng = random.Random(f"transformers {name}")
        chats = [drawn_chats.KINDS[name](rng, special=False) for _ in range(ROUNDS)]
        return [chat for chat in chats if any(message["role"] == "assistant" for message in chat)]

    def test_ids_and_mask_are_those_of_small_templates(self):
        for name, (specials, kind, source) in MARKED.items():
            with self.subTest(name):
                theirs = self.vocabulary(name, specials, kind, source)
                chats = self.drawn(name)
                found = self.ours(name, [{"messages": chat} for chat in chats], "--chat-template", name)
                self.assertEqual(len(found), len(chats))
                for chat, (ids, mask) in zip(chats, found):
                    expected = theirs.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
                    self.assertEqual(ids, expected["input_ids"], chat)
                    header = theirs.convert_tokens_to_ids("<|assistant|>")  # transformers marks it where it takes an answer's first spaces
                    marks = [0 if i == header and name == "phi3" else mark for i, mark in zip(ids, expected["assistant_masks"])]
                    self.assertEqual(mask, marks, chat)

    def test_ids_are_those_of_published_templates(self):
        package = importlib.util.find_spec("trl")
        if package is None:
            self.skipTest("no package trl")
        for name, (specials, kind, file) in PUBLISHED.items():
            with self.subTest(name):
                folder = pathlib.Path(package.submodule_search_locations[0]) / "chat_templates"
                theirs = self.vocabulary(f"{name}_published", specials, kind, (folder / f"{file}.jinja").read_text(encoding="utf-8"))
                chats = self.drawn(name)
                found = self.ours(f"{name}_published", [{"messages": chat} for chat in chats])
                for chat, (ids, _) in zip(chats, found):
                    self.assertEqual(ids, theirs.apply_chat_template(chat, return_dict=True)["input_ids"], chat)

    def test_prompts_are_those_of_published_templates(self):
        """With the header of an answer, as a server gives them to the model."""
        package = importlib.util.find_spec("trl")
        if package is None:
            self.skipTest("no package trl")
        for name, (specials, kind, file) in PUBLISHED.items():
            with self.subTest(name):
                folder = pathlib.Path(package.submodule_search_locations[0]) / "chat_templates"
                self.check_prompts(f"{name}_prompts", name, self.vocabulary(
                    f"{name}_prompts", specials, kind, (folder / f"{file}.jinja").read_text(encoding="utf-8")))

    def check_prompts(self, folder, name, theirs):
        """Trains nothing worth a step, and serves it."""
        self.train(f"{folder}_run", "train.steps=1", f"data.vocabulary={folder}", f"model.vocabulary={len(theirs)}", "model.context=4096",
                   "train.global_batch=1", "data.train=[synthetic]", "data.validation=[]", "train.validate_every=0", "schedule.warmup_steps=0")
        server = serve_test.Server(self, run=f"{folder}_run")
        self.addCleanup(server.kill)
        for chat in self.drawn(name):
            status, found = server.post("/tokenize", messages=chat)
            self.assertEqual(status, 200, found)
            self.assertEqual(found["tokens"], theirs.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"], chat)
        server.end()

    def test_renderings_by_jinja_give_the_same(self):
        """The script for templates that are not known, with marks and without."""
        plain = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}" \
                "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
        self.vocabulary("rendered", IM, "bytes", plain)
        chats = self.drawn("chatml")
        expected = self.ours("rendered", [{"messages": chat} for chat in chats], "--chat-template", "chatml")
        for source in (plain, MARKED["chatml"][2]):
            template = render_chats.compiled(source)
            rows = [render_chats.rendered(template, {"messages": chat}, {}, IM) for chat in chats]
            self.assertEqual(self.ours("rendered", rows, "--chat-template", "rendered"), expected)


if __name__ == "__main__":
    support.main()
