#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""train.sample_every: texts while a model trains, which change nothing of the training."""

import json

import support

PROMPTS = ["The red ", "The old cow", "A"]
SAMPLES = ("train.sample_every=8", f"train.sample_prompts={json.dumps(PROMPTS)}", "train.sample_tokens=50")


class Samples(support.Case):
    """Runs of 20 steps with and without samples."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train("plain")
        cls.train("sampled", *SAMPLES)

    def samples(self, run):
        text = (self.folder / run / "samples.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    def generated(self, run, *options, prompts=PROMPTS, tokens=50):
        """What generate says of a checkpoint with the same prompts."""
        words = [word for prompt in prompts for word in ("--prompt", prompt)]
        result = self.run_program("generate", "--checkpoint", run, *words, "--max-tokens", tokens,
                                  "--json", "generated.json", *options)
        self.assertEqual(result.code, 0, result.err)
        report = json.loads((self.folder / "generated.json").read_text(encoding="utf-8"))
        return [completion["text"] for completion in report["completions"]]

    def assert_same_training(self, run, other):
        """Losses, gradient norms and every tensor of the last checkpoint, bit for bit."""
        for key in ("loss", "grad_norm"):
            self.assertEqual(support.column(self.folder / run, key), support.column(self.folder / other, key))
        last = "checkpoints/step_00000020"
        self.assertEqual(support.tensors(self.folder / run / last), support.tensors(self.folder / other / last))

    def test_training_is_the_same_and_texts_are_those_of_generate(self):
        found = self.samples("sampled")

        self.assert_same_training("sampled", "plain")
        self.assertFalse((self.folder / "plain/samples.jsonl").exists())
        self.assertEqual([(line["step"], line["prompt"]) for line in found],
                         [(step, prompt) for step in (8, 16, 20) for prompt in PROMPTS])
        self.assertEqual([line["text"] for line in found[-3:]], self.generated("sampled", "--seed", 7))
        self.assertNotEqual([line["text"] for line in found[:3]], [line["text"] for line in found[3:6]])

    def test_on_other_layouts_and_kinds_of_training(self):
        greedy = (*SAMPLES, "train.sample_temperature=0", "train.microbatch=2")
        for name, ranks, settings in [("full", 1, ("memory.recompute=full",)),
                                      ("selective", 1, ("memory.recompute=selective",)),
                                      ("zero", 2, ("parallel.zero=2",)),
                                      ("virtual", 1, ("parallel.schedule=zero_bubble",)),
                                      ("adapter", 1, ("adapter.rank=2", "adapter.targets=[attention.query, mlp.up]")),
                                      ("sinks", 1, ("model.attention_sinks=true", "model.window=9")),
                                      ("rounded", 1, ("quantization.weights=int8",)),
                                      ("reference", 1, ("model.attention=reference", "model.dropout=0.1")),
                                      ("gpt2", 3, ("model.family=gpt2", "parallel.zero=1"))]:
            with self.subTest(name=name):
                without = [setting for setting in settings if "sample" not in setting]
                self.train(f"{name}_plain", "train.microbatch=2", *without, ranks=ranks)
                self.train(name, *greedy, *settings, ranks=ranks)
                self.assert_same_training(name, f"{name}_plain")
                texts = [line["text"] for line in self.samples(name)[-3:]]
                self.assertEqual(texts, self.generated(name, "--temperature", 0))

    def test_groups_share_the_prompts_and_their_ranks_each_text(self):
        for name, ranks, settings in (("tensor", 2, ("parallel.data=1", "parallel.tensor=2")),
                                      ("both", 4, ("parallel.data=2", "parallel.tensor=2", "parallel.zero=1",
                                                   "model.kv_heads=1")),
                                      ("gathers", 4, ("parallel.data=2", "parallel.tensor=2", "parallel.zero=3",
                                                      "parallel.bucket_mib=0.01")),
                                      ("exchanged", 2, ("parallel.data=1", "parallel.context=2", "parallel.zero=3")),
                                      ("recomputed", 4, ("parallel.data=2", "parallel.context=2", "memory.recompute=full",
                                                         "memory.activations=host")),
                                      ("copies", 4, ("parallel.data=4", "parallel.shard=2", "parallel.zero=3"))):
            with self.subTest(name=name):
                short = (*settings, "train.steps=6", "train.validate_every=0", "data.validation=[]")
                self.train(f"{name}_plain", *short, ranks=ranks)
                self.train(name, *SAMPLES, *short, "train.sample_every=6", "train.sample_tokens=10",
                           "train.sample_temperature=0", ranks=ranks)
                last = "checkpoints/step_00000006"
                self.assertEqual(support.tensors(self.folder / name / last),
                                 support.tensors(self.folder / f"{name}_plain" / last))
                self.assertEqual([line["text"] for line in self.samples(name)],
                                 self.generated(name, "--temperature", 0, tokens=10))

    def test_data_ranks_share_the_prompts(self):
        self.train("shared", *SAMPLES, ranks=2)

        self.assertEqual([line["prompt"] for line in self.samples("shared")], PROMPTS * 3)
        self.assertEqual([line["text"] for line in self.samples("shared")[-3:]], self.generated("shared", "--seed", 7))

    def test_a_run_that_resumes_records_every_step_once(self):
        self.train("parted", "train.sample_every=3", "train.sample_tokens=5", options=("--stop-after", 10))
        self.train("parted", "train.sample_every=5", "train.sample_tokens=6")

        found = self.samples("parted")
        self.assertEqual([line["step"] for line in found], [3, 6, 9, 15, 20])
        self.assertEqual({line["prompt"] for line in found}, {""})
        self.assert_same_training("parted", "plain")

    def test_one_text_and_the_log(self):
        result = self.train("one", "train.sample_every=20", "train.sample_prompts=[The old ]", "train.sample_tokens=4",
                            "train.sample_temperature=0")

        line, = self.samples("one")
        self.assertEqual(line["prompt"], "The old")
        self.assertIn(f"step 20  sample 1: The old|{line['text']}", result.err)

    def test_memory_is_planned(self):
        def planned(*settings):
            result = self.run_program("plan", "deck.yaml", "--ranks", 1, *support.overrides(*settings), "--json", "plan.json")
            self.assertEqual(result.code, 0, result.err)
            return json.loads((self.folder / "plan.json").read_text(encoding="utf-8"))["memory_bytes"]

        # Two layers, keys and values, 12 samples of 32 tokens of width 32 in fp32, and the last rows.
        cache = 2 * 2 * 12 * 32 * 32 * 4 + 12 * 32 * 4
        self.assertEqual(planned("train.sample_every=1") - planned(), cache)

    def test_refusals(self):
        for settings, words in [(("parallel.pipeline=2",), ("train.sample_every", "pipeline 2")),
                                (("parallel.tensor=2", "parallel.sequence=true"),
                                 ("train.sample_every", "parallel.sequence")),
                                (("data.vocabulary=",), ("train.sample_every", "data.vocabulary")),
                                (("train.sample_tokens=0",), ("train.sample_tokens",)),
                                (("train.sample_prompts=[The, " + "The old sea " * 40 + "]",),
                                 ("train.sample_prompts: text 2 has", "model.context is 32; shorten it")),
                                (("train.sample_temperature=-1",), ("train.sample_temperature",))]:
            with self.subTest(settings=settings):
                result = self.run_program("train", "deck.yaml", *support.overrides(*SAMPLES, "run.directory=no", *settings),
                                          ranks=2 if "parallel" in settings[0] else 1)
                self.assert_refused(result, 2, *words)
        self.train("cut", *SAMPLES, "train.steps=4")
        for command in (("eval", "deck.yaml", "--checkpoint", "cut"), ("bench", "deck.yaml", "--steps", 1)):
            result = self.run_program(*command, *support.overrides(*SAMPLES, "parallel.tensor=2"), ranks=2)
            self.assertEqual(result.code, 0, result.err)


if __name__ == "__main__":
    support.main()
