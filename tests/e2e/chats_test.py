#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tokenize --chat, and training on what it makes."""

import json
import pathlib
import subprocess
import sys

import support

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "jobs/data/render_chats.py"
TEMPLATE = ("{% for m in messages %}{{ '<' + m.role + '>' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|endoftext|>' }}"
            "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}")


def chat(*contents):
    """A row of user and assistant in turn."""
    return {"messages": [{"role": role, "content": content} for role, content in zip(("user", "assistant") * 9, contents)]}


class Chats(support.Case):
    """Conversations of bytes in the plain form."""

    def write(self, rows, name="chats.jsonl"):
        (self.folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def tokenize(self, *options, vocabulary="bytes", template="plain"):
        return self.run_program("tokenize", "--chat", "chats.jsonl", "--vocab", vocabulary, "--chat-template", template,
                                "--output", "chats.h5", *options)

    def test_says_what_it_wrote_and_left_out(self):
        self.write([chat("a", "b", "c", "d"), chat("e" * 99, "f"), chat("g"), chat("h", "i")])

        result = self.tokenize("--context", "30", "--train-on", "last")

        self.assertEqual(result.code, 0, result.err)
        self.assertRegex(result.out, r"chats.h5: 2 conversations of 4 messages as plain writes them, 48 tokens of a vocabulary of 257, "
                                     r"12.5 % trained, in [\d.]+ s")
        self.assertIn("conversations left out without an answer of the assistant: 1\n", result.err)
        self.assertIn("conversations left out without an answer that ends within 30 tokens (--context): 1\n", result.err)
        self.assertIn("conversations cut after their last answer that ends within 30 tokens (--context): 1, with 2 messages left out", result.err)

    def test_refuses_options_and_rows_by_name(self):
        self.write([chat("a", "b"), {"messages": "x"}])
        for options, code, part in ((["--input", "text.txt"], 2, "--input does not go with --chat"),
                                    (["--context", "0"], 2, "--context 0"),
                                    (["--train-on", "user"], 2, "expected last, assistant or all"),
                                    (["--jsonl"], 2, "--jsonl does not go with --chat"),
                                    ([], 3, "chats.jsonl:2: the key 'messages' must hold a list, found string")):
            result = self.tokenize(*options)
            self.assertEqual(result.code, code, result.err)
            self.assertIn(part, result.err)
        self.assertIn("--chat-template 'x': expected one of chatml, ", self.tokenize(template="x").err)
        result = self.run_program("tokenize", "--vocab", "bytes", "--input", "text.txt", "--output", "x.bin", "--context", "3")
        self.assertIn("--context does not go with --input", result.err)
        result = self.run_program("tokenize", "--vocab", "bytes", "--input", "text.txt", "--output", "x.bin", "--train-on", "all")
        self.assertIn("--train-on does not go with --input", result.err)
        self.assertIn("the option '--input' is required", self.run_program("tokenize", "--vocab", "bytes", "--output", "x.bin").err)

    def test_a_model_learns_the_answers_alone(self):
        words = support.text().split()
        self.write([chat(words[i], words[-i], words[i + 1], "yes") for i in range(1, 60)])
        result = self.tokenize("--context", "64")
        self.assertEqual(result.code, 0, result.err)

        run = self.train("tuned", "data.train=[chats.h5]", "data.validation=[chats.h5]", "data.vocabulary=bytes", "data.loss_mask=true",
                         "data.packing=best_fit", "data.documents=masked", "data.end_token=256", "data.predict_starts=false",
                         "model.context=64", "train.steps=8")

        self.assertEqual(run.code, 0, run.err)
        self.assertIn("packing best_fit: 59 documents", run.err)
        losses = support.column(self.folder / "tuned", "loss")
        self.assertLess(losses[-1], losses[0])

    def test_renderings_of_the_script_are_tokenized(self):
        if subprocess.run([sys.executable, "-c", "import jinja2"], check=False, capture_output=True).returncode != 0:
            self.skipTest("no package jinja2")
        self.write([chat("a", "b"), chat("c", "d", "e", "")])
        (self.folder / "vocabulary").mkdir(exist_ok=True)
        (self.folder / "vocabulary/chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
        script = subprocess.run([sys.executable, SCRIPT, "--vocab", "vocabulary", "chats.jsonl"], cwd=self.folder, check=True,
                                capture_output=True, text=True)
        (self.folder / "chats.jsonl").write_text(script.stdout, encoding="utf-8")

        result = self.tokenize(template="rendered")

        self.assertEqual(result.code, 0, result.err)
        self.assertIn("chats.h5: 2 conversations as they were rendered, 59 tokens", result.out)
        found = support.h5(self.folder / "chats.h5")
        if found is None:
            self.skipTest("no h5py")
        expected = [("<user>a<assistant>", 0), ("b|", 1), ("<user>c<assistant>", 0), ("d|", 1), ("<user>e<assistant>", 0), ("|", 1)]
        self.assertEqual("".join(chr(i) if i < 256 else "|" for i in found["tokens"]["values"]), "".join(part for part, _ in expected))
        self.assertEqual(list(found["loss_mask"]["values"]), [trained for part, trained in expected for _ in part])
        self.assertEqual(list(found["documents"]["values"]), [0, 20])

        number = subprocess.run([sys.executable, SCRIPT, "--vocab", "vocabulary", "--fingerprint"], cwd=self.folder, check=True,
                                capture_output=True, text=True).stdout.strip()
        self.assertRegex(number, "^[0-9a-f]{16}$")


if __name__ == "__main__":
    support.main()
