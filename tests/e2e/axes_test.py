#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Layouts of every axis: one curve, checkpoints that all of them read, one evaluation."""

import itertools
import json
import re

import support

# The vocabulary of 257 divides by no number of ranks here.
SETTINGS = ("model.heads=4", "model.kv_heads=2", "model.dropout=0.1", "train.microbatch=3",
            "train.steps=8", "checkpoint.every=4", "checkpoint.keep=all", "train.validate_every=0",
            "train.validate_batches=0", "data.validation=[small.bin]")
FIRST, LAST = "checkpoints/step_00000004", "checkpoints/step_00000008"
LAYOUTS = {
    "one": (1, ()),
    "tensor4": (4, ("parallel.tensor=4", "parallel.sequence=true")),
    "pipeline4": (4, ("parallel.pipeline=4", "parallel.schedule=zero_bubble", "train.microbatch=2")),
    "data4": (4, ("parallel.data=4", "parallel.zero=2")),
    "sharded": (4, ("parallel.data=4", "parallel.zero=3")),
    "hybrid": (4, ("parallel.data=4", "parallel.zero=3", "parallel.shard=2")),
    "staged": (4, ("parallel.data=2", "parallel.pipeline=2", "parallel.zero=3", "train.microbatch=1")),
    "mixed": (4, ("parallel.data=2", "parallel.tensor=2", "parallel.sequence=true", "parallel.zero=1")),
    "cut": (4, ("parallel.data=2", "parallel.pipeline=2", "parallel.zero=1", "train.microbatch=1")),
    "chunks": (4, ("parallel.pipeline=2", "parallel.tensor=2", "parallel.schedule=interleaved",
                   "parallel.virtual_stages=2", "memory.recompute=full")),
    "shared": (4, ("parallel.data=2", "parallel.context=2", "parallel.zero=3")),
    "spread": (4, ("parallel.pipeline=2", "parallel.context=2", "parallel.zero=1", "train.microbatch=1",
                   "memory.recompute=full", "memory.activations=host")),
    "three": (3, ("parallel.pipeline=3", "parallel.stage_layers=[0,2,0]", "train.microbatch=4")),
    "eight": (8, ("parallel.data=2", "parallel.tensor=2", "parallel.pipeline=2", "parallel.zero=1")),
}
# Which layout goes on with whose checkpoint.
CHANGES = (("mixed", "cut"), ("mixed", "one"), ("cut", "tensor4"), ("cut", "three"),
           ("eight", "data4"), ("eight", "chunks"), ("one", "pipeline4"), ("eight", "sharded"), ("mixed", "hybrid"),
           ("hybrid", "one"), ("hybrid", "staged"), ("mixed", "shared"), ("shared", "cut"), ("shared", "spread"))
STARTS = ("one", "mixed", "cut", "eight", "hybrid", "shared")


class Axes(support.Case):
    """Eight steps under some layouts, with a checkpoint in the middle."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        support.write_tokens(cls.folder / "small.bin", [*support.text()[:2000].encode()])
        for name in STARTS:
            cls.train_on(name, name)
        cls.losses = {name: support.column(cls.folder / name, "loss") for name in STARTS}

    @classmethod
    def train_on(cls, layout, run, *more, options=()):
        """The deck under a layout, into the run directory `run`."""
        ranks, settings = LAYOUTS[layout]
        result = cls.run_program("train", "deck.yaml", *options, ranks=0 if ranks == 1 else ranks,
                                 *support.overrides(f"run.directory={run}", *SETTINGS, *settings, *more))
        if result.code != 0:
            raise AssertionError(f"{layout}: exit code {result.code}:\n{result.err}")
        return result

    def assert_placed(self, layout, text):
        """A row a rank with its coordinates: tensor varies fastest, then context, pipeline and data."""
        ranks, settings = LAYOUTS[layout]
        sizes = dict(setting.split("=") for setting in settings)
        axes = [range(int(sizes.get(f"parallel.{axis}", 1))) for axis in ("data", "pipeline", "context", "tensor")]
        shown = 4 if "parallel.context" in sizes else 3
        rows = re.findall(r"^ *(\d+)" + r" +(\d+)" * shown + r"  \S+  cpu$", text, re.MULTILINE)
        expected = [] if ranks == 1 else [
            tuple(map(str, (rank, data, tensor, pipeline, context)))[:1 + shown]
            for rank, (data, pipeline, context, tensor) in enumerate(itertools.product(*axes))]
        self.assertEqual(rows, expected)

    def test_every_layout_gives_the_same_curve(self):
        expected = support.metrics(self.folder / "one")
        for name in STARTS:
            with self.subTest(layout=name):
                lines = support.metrics(self.folder / name)
                self.assert_close(self.losses[name], self.losses["one"], 1e-5)
                self.assert_close([line["grad_norm"] for line in lines],
                                  [line["grad_norm"] for line in expected], 1e-4)
                for key in ("step", "tokens", "lr"):
                    self.assertEqual([line[key] for line in lines], [line[key] for line in expected])

    def test_every_layout_goes_on_with_the_checkpoint_of_another(self):
        for before, after in CHANGES:
            with self.subTest(before=before, after=after):
                run = self.copy_of(before, f"{before}_{after}")

                result = self.train_on(after, run.name, options=("--resume", "4"))

                self.assertIn("resumed from", result.err)
                self.assert_placed(after, result.err)
                found = support.column(run, "loss")
                self.assertEqual(found[:4], self.losses[before][:4])
                # The same samples from the same weights and moments.
                self.assertAlmostEqual(found[4] / self.losses[before][4], 1, delta=1e-6)
                self.assert_close(found, self.losses["one"], 1e-5)

    def test_a_tensor_keeps_its_bits_on_its_way_through_layouts(self):
        still = ("optimizer.lr=1.0e-30", "optimizer.weight_decay=0")
        for before, after in (("mixed", "cut"), ("eight", "chunks")):
            with self.subTest(before=before, after=after):
                run = self.copy_of(before, f"{before}_{after}_still")
                self.train_on(after, run.name, *still, options=("--resume", "4", "--stop-after", "5"))

                expected = support.tensors(run / FIRST)
                found = support.tensors(run / "checkpoints/step_00000005")
                self.assertEqual(expected.keys(), found.keys())
                for name, data in expected.items():
                    if name.startswith("model/"):
                        self.assertEqual(found[name], data, name)

    def test_every_layout_evaluates_to_the_same_number(self):
        found = {}
        for name, (ranks, settings) in LAYOUTS.items():
            result = self.run_program("eval", "deck.yaml", "--checkpoint", f"mixed/{LAST}",
                                      "--json", f"{name}.json", ranks=0 if ranks == 1 else ranks,
                                      *support.overrides(*SETTINGS, *settings))
            self.assertEqual(result.code, 0, f"{name}: {result.err}")
            found[name] = json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))

        one = found["one"]
        self.assertEqual(one["tokens"], 1999 // 32 * 32)  # 62 samples, a rest for every layout
        for name, numbers in found.items():
            with self.subTest(layout=name):
                self.assertEqual(numbers["tokens"], one["tokens"])
                self.assertAlmostEqual(numbers["loss"] / one["loss"], 1, delta=1e-6)
                self.assertAlmostEqual(numbers["token_accuracy"], one["token_accuracy"], delta=1 / 5000)
        last = support.metrics(self.folder / "mixed")[-1]
        self.assertAlmostEqual(last["validation_loss"] / one["loss"], 1, delta=1e-6)


if __name__ == "__main__":
    support.main()
