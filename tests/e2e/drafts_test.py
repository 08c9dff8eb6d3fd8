#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""generate, serve and bench with drafts: the texts are those without, in fewer passes."""

import json
import re

import serve_test
import support

PROMPTS = ("The red cat sat on line 1.\nThe red cat sat on", "The old ", "A")


class Drafts(support.Case):
    """A model that has seen a little English, and a smaller one."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train("run", "train.steps=30", "model.context=64")
        cls.train("small", "train.steps=30", "model.layers=1", "model.width=16", "train.validate_every=0", "data.validation=[]")

    def several(self, *arguments, prompts=PROMPTS, tokens=90, ranks=0):
        """The JSON report of several prompts, and the closing line."""
        words = [word for prompt in prompts for word in ("--prompt", prompt)]
        result = self.run_program("generate", "--checkpoint", "run", *words, "--stop-token", "-1", "--max-tokens", tokens,
                                  "--json", "report.json", *arguments, ranks=ranks)
        self.assertEqual(result.code, 0, result.err)
        return json.loads((self.folder / "report.json").read_text(encoding="utf-8")), result.err

    def assert_drafted(self, report, err):
        """The counts of the file are those of the closing line."""
        found = re.search(r"(\d+) passes; drafts: (\d+) tokens, (\d+) accepted \([\d.]+ %\)\n", err)
        self.assertIsNotNone(found, err)
        self.assertEqual(tuple(map(int, found.groups())), (report["passes"], report["drafted"], report["accepted"]))
        self.assertGreater(report["accepted"], 20)

    def test_texts_are_those_without(self):
        for options in (("--temperature", 0), ("--temperature", 0.5, "--top-p", 0.9), ("--temperature", 0, "--stop", "at on l"),
                        ("--temperature", 0, "--logprobs", 2)):
            with self.subTest(options=options):
                plain, err = self.several(*options)
                self.assertNotIn("drafts", err)
                self.assertEqual((plain["drafted"], plain["accepted"]), (0, 0))

                drafted, err = self.several(*options, "--draft", 8)

                self.assert_drafted(drafted, err)
                self.assertIn("drafts: up to 8 tokens a pass, looked up in each text", err)
                self.assertLess(drafted["passes"], 0.8 * plain["passes"])
                for one, two in zip(plain["completions"], drafted["completions"]):
                    for found, expected in zip(two.pop("logprobs", []), one.pop("logprobs", [])):
                        self.assertAlmostEqual(found, expected, places=4)
                    one.pop("top_logprobs", None), two.pop("top_logprobs", None)
                    self.assertEqual(two, one)

    def test_a_smaller_model_guesses(self):
        plain, _ = self.several("--temperature", 0)
        for ranks in (0, 2):
            drafted, err = self.several("--temperature", 0, "--draft", 4, "--draft-checkpoint", "small", ranks=ranks)

            self.assert_drafted(drafted, err)
            self.assertRegex(err, r"drafts: up to 4 tokens a pass, by small: [\d.]+ MiB, of them [\d.]+ MiB of cache")
            self.assertEqual([one["ids"] for one in drafted["completions"]], [one["ids"] for one in plain["completions"]])
        drawn, err = self.several("--draft", 4, "--draft-checkpoint", "small", "--seed", 3)
        self.assert_drafted(drawn, err)

    def test_a_model_guesses_for_itself(self):
        drafted, err = self.several("--draft", 4, "--draft-checkpoint", "run", tokens=31, prompts=["The red "])

        self.assertEqual((drafted["passes"], drafted["drafted"], drafted["accepted"]), (6, 24, 24), err)

    def test_refusals(self):
        support.write_vocabulary(self.folder / "pairs", 300)
        for name, vocabulary, size in (("larger", "pairs", 300), ("other", "letters", 257)):
            if name == "other":
                support.write_vocabulary(self.folder / "letters", 257)
            self.assertEqual(self.run_program("tokenize", "--vocab", vocabulary, "--input", "text.txt", "--output",
                                              f"{name}.bin").code, 0)
            self.train(name, "train.steps=1", f"data.train=[{name}.bin]", f"data.vocabulary={vocabulary}",
                       f"model.vocabulary={size}", "train.validate_every=0", "data.validation=[]", "schedule.warmup_steps=0")
        for words, options in (
                (("--draft must be 1 to 30",), ("--draft", 0)), (("--draft must be 1 to 30",), ("--draft", 31)),
                (("--draft-checkpoint", "--draft N"), ("--draft-checkpoint", "small")),
                (("--draft-checkpoint 'larger'", "300 ids", "257"), ("--draft", 4, "--draft-checkpoint", "larger")),
                (("--draft-checkpoint 'other'", "id 0 is '!'"), ("--draft", 4, "--draft-checkpoint", "other"))):
            for command in (("generate", "--prompt", "a"), ("serve",)):
                result = self.run_program(*command, "--checkpoint", "run", *options)
                self.assert_refused(result, 2, *words)

    def test_a_server_counts_drafts(self):
        plain, _ = self.several("--temperature", 0, tokens=20, prompts=PROMPTS[:1])
        for options in ((), ("--draft-checkpoint", "small")):
            server = serve_test.Server(self, "--draft", 6, *options)
            self.addCleanup(server.kill)
            fields = {"prompt": PROMPTS[0], "max_tokens": 20, "temperature": 0, "ignore_eos": True}
            found = server.complete(**fields)

            self.assertEqual(found["choices"][0]["text"], plain["completions"][0]["text"])
            details = found["usage"]["completion_tokens_details"]
            self.assertEqual(set(details), {"accepted_prediction_tokens", "rejected_prediction_tokens"})
            self.assertGreater(details["accepted_prediction_tokens"], 5)
            pieces = server.pieces(**fields, logprobs=1, stream_options={"include_usage": True})
            self.assertEqual("".join(piece["choices"][0]["text"] for piece in pieces[:-1]), plain["completions"][0]["text"])
            self.assertEqual(pieces[-1]["usage"], found["usage"])
            code, log = server.end()
            self.assertEqual(code, 0, log)
            self.assertRegex(log, r"served: 40 tokens in \d+ passes; drafts: \d+ tokens, \d+ accepted \([\d.]+ %\)")

    def test_bench_compares_the_same_texts(self):
        repeats = support.overrides("model.tie_embeddings=true", "model.embedding_scale=1000")
        result = self.run_program("bench", "deck.yaml", "--mode", "decode", "--draft", 8, "--steps", 31, "--json", "bench.json",
                                  *repeats)

        self.assertEqual(result.code, 0, result.err)
        self.assertIn("1 of 1 texts are equal", result.out)
        found = json.loads((self.folder / "bench.json").read_text(encoding="utf-8"))["drafts"]
        self.assertEqual((found["tokens"], found["equal_texts"]), (8, 1))
        self.assertGreater(found["accepted"], 20)
        self.assertGreater(found["ratio"], 0)
        table = self.run_program("bench", "deck.yaml", "--kernel-table", "--mode", "decode", "--draft", 8,
                                 *support.overrides("precision.compute=bf16"))
        self.assertRegex(table.out, r"linear_forward +2 +cuBLASLt +9 x 32 by ")
        refused = self.run_program("bench", "deck.yaml", "--draft", 4)
        self.assert_refused(refused, 2, "--draft goes with --mode decode")


if __name__ == "__main__":
    support.main()
