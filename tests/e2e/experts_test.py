#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts: whole runs on layouts, resumed on others, evaluated, sampled and continued."""

import json

import support

EXPERTS = ("experts.count=4", "experts.width=32", "experts.shared=1", "experts.bias_rate=0.01",
           "experts.z_weight=0.001", "model.kv_heads=2")
LAST = "checkpoints/step_00000020"
LAYOUTS = {"experts on two ranks": (2, "parallel.expert=2"),
           "and zero 3": (2, "parallel.expert=2", "parallel.zero=3"),
           "experts on two of four ranks": (4, "parallel.expert=2", "parallel.zero=2"),
           "experts on two of four ranks, with copies": (4, "parallel.expert=2", "parallel.zero=1", "parallel.shard=2"),
           "experts on four ranks": (4, "parallel.expert=4", "parallel.zero=1"),
           "experts beside tensor ranks": (4, "parallel.data=2", "parallel.expert=2", "parallel.tensor=2"),
           "experts beside context ranks": (4, "parallel.data=2", "parallel.expert=2", "parallel.context=2"),
           "experts in a pipeline": (4, "parallel.data=2", "parallel.expert=2", "parallel.pipeline=2")}


class Experts(support.Case):
    """Twenty steps of the tiny deck with experts on one rank, beside which others are held."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train("whole", *EXPERTS)

    def column(self, run, key):
        return support.column(self.folder / run, key)

    def assert_same_curve(self, run):
        self.assert_close(self.column(run, "loss"), self.column("whole", "loss"), 1e-3)

    def test_it_learns_and_tells_loads(self):
        losses = self.column("whole", "loss")
        self.assertLess(losses[-1], 0.7 * losses[0])
        for line in support.metrics(self.folder / "whole"):
            self.assertGreaterEqual(line["load_max"], 1)
            self.assertLessEqual(line["load_max"], 2)  # two of four experts for a token
            self.assertGreater(line["router_entropy"], 0)
            self.assertLess(abs(line["balance"] - 1), 0.5)
            self.assertGreater(line["router_z"], 0)

    def test_memory_for_few_rows_gives_the_same_curve_and_counts_those_beyond(self):
        """Ranks with more rows than memory holds take them in parts, and no other does."""
        layout = ("parallel.expert=2", "parallel.expert_exchange=all_gather", "parallel.expert_rows=1")
        self.train("beyond", *EXPERTS, *layout, ranks=2)
        self.assert_same_curve("beyond")
        self.assertGreater(max(self.column("beyond", "rows_beyond")), 0)
        self.train("at_once", *EXPERTS, *layout, "parallel.expert_rows=2", ranks=2)
        self.assert_same_curve("at_once")
        self.assertEqual(max(self.column("at_once", "rows_beyond")), 0)

    def test_experts_in_turn_have_equal_loads_and_say_so(self):
        result = self.train("in_turn", *EXPERTS, "experts.in_turn=true")
        self.assertIn("experts.in_turn: tokens take experts in turn", result.err)
        self.assertEqual(set(self.column("in_turn", "load_max")), {1})

    def test_layouts_give_the_same_curve_and_checkpoints(self):
        names = set(support.tensors(self.folder / "whole" / LAST))
        for run, (ranks, *layout) in LAYOUTS.items():
            with self.subTest(run):
                self.train(run.replace(" ", "_"), *EXPERTS, *layout, ranks=ranks)
                self.assert_same_curve(run.replace(" ", "_"))
                self.assertEqual(set(support.tensors(self.folder / run.replace(" ", "_") / LAST)), names)

    def test_a_resumed_run_has_the_same_bits(self):
        layout = ("parallel.expert=2", "parallel.zero=1")
        self.train("two", *EXPERTS, *layout, ranks=2)
        self.train("parts", *EXPERTS, *layout, ranks=2, options=("--stop-after", "7"))
        self.train("parts", *EXPERTS, *layout, ranks=2)

        self.assertEqual(self.column("parts", "loss"), self.column("two", "loss"))
        self.assertEqual(support.tensors(self.folder / "parts" / LAST), support.tensors(self.folder / "two" / LAST))

    def test_every_start_keeps_the_loads_of_its_steps(self):
        """Twelve samples of 32 tokens, each of which takes two experts, in two layers; every third step."""
        layout = ("parallel.expert=2", "timing.every=3")
        self.train("loads", *EXPERTS, *layout, ranks=2, options=("--stop-after", "7"))
        self.train("loads", *EXPERTS, *layout, ranks=2)
        largest = dict(zip(self.column("loads", "step"), self.column("loads", "load_max")))
        for start, steps in (("start_0001", [3, 6]), ("start_0002", [9, 12, 15, 18])):
            found = support.h5(self.folder / "loads/timing" / start / "rank_00000.h5")
            if found is None:
                self.skipTest("no h5py")
            self.assertEqual(found["experts/step"]["values"], steps)
            self.assertEqual([found["experts/loads"]["attributes"][key] for key in ("layers", "experts")], [2, 4])
            for step, loads in zip(steps, found["experts/loads"]["values"]):
                self.assertEqual((sum(loads[:4]), sum(loads[4:])), (768, 768))
                self.assertAlmostEqual(max(loads) / 192, largest[step], places=6)
            self.assertNotIn("experts", support.h5(self.folder / "loads/timing" / start / "rank_00001.h5"))

    def test_a_run_goes_on_with_other_expert_ranks(self):
        for number, (first, second) in enumerate(((1, 2), (2, 1), (2, 4), (4, 2))):
            with self.subTest(f"{first} to {second}"):
                run = f"moved{number}"
                self.train(run, *EXPERTS, f"parallel.expert={first}", ranks=first, options=("--stop-after", "10"))
                self.train(run, *EXPERTS, f"parallel.expert={second}", ranks=second)
                self.assert_same_curve(run)

    def test_evaluation_does_not_depend_on_the_layout(self):
        """In the last round some ranks have no sample, and take part in the passes of others."""
        found = []
        for ranks, *layout in ((1,), (4, "parallel.expert=4"), (4, "parallel.expert=2", "parallel.zero=1")):
            result = self.run_program("eval", "--checkpoint", "whole", "--json", "eval.json", *support.overrides(
                f"parallel.data={ranks}", *layout, "train.microbatch=3", "train.validate_batches=0"),
                ranks=0 if ranks == 1 else ranks)
            self.assertEqual(result.code, 0, result.err)
            found.append(json.loads((self.folder / "eval.json").read_text(encoding="utf-8")))

        samples = found[0]["tokens"] // 32
        self.assertNotEqual(-(-samples // 3) % 4, 0)
        for other in found[1:]:
            self.assertEqual(other["tokens"], found[0]["tokens"])
            self.assertAlmostEqual(other["loss"], found[0]["loss"], delta=2e-6)

    def test_samples_during_training_are_those_of_generate(self):
        samples = ("train.sample_every=20", 'train.sample_prompts=["The red", "A"]', "train.sample_tokens=16",
                   "train.sample_temperature=0")
        texts = []
        for run, ranks, *layout in (("sampled", 1), ("sampled_by_four", 4, "parallel.expert=2"),
                                    ("by_shards", 2, "parallel.expert=2", "parallel.zero=3")):
            self.train(run, *EXPERTS, *samples, *layout, ranks=ranks)
            lines = (self.folder / run / "samples.jsonl").read_text(encoding="utf-8").splitlines()
            texts.append([json.loads(line)["text"] for line in lines])
        result = self.run_program("generate", "--checkpoint", "sampled", "--prompt", "The red", "--prompt", "A",
                                  "--max-tokens", "16", "--temperature", "0", "--json", "texts.json")

        self.assertEqual(result.code, 0, result.err)
        report = json.loads((self.folder / "texts.json").read_text(encoding="utf-8"))
        self.assertEqual(texts[0], [completion["text"] for completion in report["completions"]])
        self.assertEqual(texts[1], texts[0])
        self.assertEqual(texts[2], texts[0])

    def test_tensor_ranks_generate_the_same_text(self):
        texts = []
        for ranks in (0, 2):
            result = self.run_program("generate", "--checkpoint", "whole", "--prompt", "The red", "--max-tokens", "24",
                                      "--temperature", "0", ranks=ranks)
            self.assertEqual(result.code, 0, result.err)
            texts.append(result.out)
        self.assertEqual(texts[0], texts[1])

    def test_a_wrong_number_of_expert_ranks_is_refused(self):
        result = self.run_program("train", "deck.yaml", *support.overrides(*EXPERTS, "parallel.data=3", "parallel.expert=3"),
                                  ranks=3)
        self.assert_refused(result, 2, "parallel.expert=3: 3 ranks cannot share 4 experts equally; nearest: 1")


if __name__ == "__main__":
    support.main()
