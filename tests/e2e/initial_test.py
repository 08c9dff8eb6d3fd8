#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""checkpoint.initial: a run that starts from the weights of another."""

import json

import support

LAYOUTS = {
    "data": (2, ("parallel.data=2",)),
    "tensor": (2, ("parallel.tensor=2",)),
    "pipeline": (2, ("parallel.pipeline=2",)),
    "zero": (2, ("parallel.data=2", "parallel.zero=2")),
}


class Initial(support.Case):
    """A finished run, whose 20 steps another run starts from."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train("base")

    def start_from(self, run, *settings, ranks=0, initial="base/checkpoints", options=()):
        """Three steps on other data order from the weights of `initial`."""
        return self.run_program("train", "deck.yaml", *support.overrides(
            f"run.directory={run}", f"checkpoint.initial={initial}", "train.steps=3", "train.validate_every=0",
            "run.seed=11", "checkpoint.every=0", *settings), *options, ranks=ranks)

    def losses(self, run):
        return support.column(self.folder / run, "loss")

    def test_the_first_loss_is_that_of_the_weights(self):
        # 12 blocks are an epoch: the first step sees what eval sees.
        ids = [*support.text().encode()][:12 * 32 + 1]
        support.write_tokens(self.folder / "twelve.bin", ids)
        result = self.run_program("eval", "deck.yaml", "--checkpoint", "base/checkpoints", "--json", "eval.json",
                                  *support.overrides("data.validation=[twelve.bin]", "train.validate_batches=0"))
        self.assertEqual(result.code, 0, result.err)
        expected = json.loads((self.folder / "eval.json").read_text())["loss"]

        result = self.start_from("twelve", "data.train=[twelve.bin]")

        self.assertEqual(result.code, 0, result.err)
        self.assertIn("starts from the weights of base/checkpoints/step_00000020", result.err)
        self.assertAlmostEqual(self.losses("twelve")[0], expected, delta=1e-6)
        self.assertEqual(support.column(self.folder / "twelve", "step"), [1, 2, 3])

    def test_only_weights_are_taken(self):
        result = self.start_from("fresh", "train.steps=1", "schedule.warmup_steps=1")

        self.assertEqual(result.code, 0, result.err)
        meta = support.manifest(self.folder / "fresh/checkpoints/step_00000001")
        self.assertEqual((meta["step"], meta["adam_step"]), (1, 1))
        # After one step from cleared moments the second moment is a multiple of the first's square.
        tensors = support.tensors(self.folder / "fresh/checkpoints/step_00000001")
        name = "blocks.0.mlp.up.weight"
        first = memoryview(tensors[f"optimizer/exp_avg/{name}"]).cast("f")
        second = memoryview(tensors[f"optimizer/exp_avg_sq/{name}"]).cast("f")
        self.assertGreater(max(abs(value) for value in first), 0)
        for a, b in zip(first, second):
            self.assertAlmostEqual(b, 0.05 * (a / 0.1) ** 2, delta=1e-4 * b + 1e-20)

    def test_every_layout_starts_alike(self):
        self.assertEqual(self.start_from("one").code, 0)
        for name, (ranks, settings) in LAYOUTS.items():
            with self.subTest(name):
                result = self.start_from(name, *settings, ranks=ranks)

                self.assertEqual(result.code, 0, result.err)
                self.assert_close(self.losses(name), self.losses("one"), 1e-5)

    def test_a_checkpoint_of_the_run_comes_first(self):
        self.assertEqual(self.start_from("again", "checkpoint.every=2").code, 0)
        base = (self.folder / "base").rename(self.folder / "gone")
        try:
            result = self.start_from("again", "train.steps=5")
        finally:
            base.rename(self.folder / "base")

        self.assertEqual(result.code, 0, result.err)
        self.assertIn("resumed from again/checkpoints/step_00000003", result.err)
        self.assertEqual(support.column(self.folder / "again", "step"), [1, 2, 3, 4, 5])
        self.assertEqual(self.start_from("again", options=("--resume", "never")).code, 0)
        self.assertEqual(self.start_from("one_more").code, 0)
        self.assertEqual(self.losses("again")[-3:], self.losses("one_more"))

    def test_parity_starts_from_it(self):
        lines = []
        for initial in ("null", "base/checkpoints"):
            result = self.run_program("parity", "deck.yaml", "deck.yaml", "--steps", 3, *support.overrides(
                f"checkpoint.initial={initial}", "parallel.tensor=2"), ranks=2)
            self.assertEqual(result.code, 0, result.err)
            lines.append(result.out)
        self.assertEqual([line.startswith("agrees") for line in lines], [True, True])
        self.assertNotIn("starts from the weights", result.out)
        self.assertIn("starts from the weights of base/checkpoints/step_00000020", result.err)

    def test_a_context_is_extended_with_other_positions(self):
        result = self.start_from("extended", "model.context=64", "model.rope_scaling=yarn", "model.rope_factor=2",
                                 "model.rope_original_context=32")

        self.assertEqual(result.code, 0, result.err)
        self.assertIn("with other positions: rope_scaling=default here rope_scaling=yarn, rope_factor=default here "
                      "rope_factor=2, rope_original_context=default here rope_original_context=32", result.err)
        again = self.start_from("extended", "model.context=64", options=("--resume", "auto"))
        self.assert_refused(again, 4, "another model", "rope_scaling=yarn here rope_scaling=default")

    def test_refusals(self):
        before = support.snapshot(self.folder)
        for initial, settings, words in (
                ("nowhere", (), ["checkpoint.initial", "nowhere"]),
                ("base/checkpoints", ("model.width=64",), ["(32, 32), expected (64, 64)"]),
                ("base/checkpoints", ("model.heads=8",), ["another model", "heads=2 here heads=8"]),
                ("base/checkpoints", ("model.embedding_scale=2",),
                 ["another model", "embedding_scale=default here embedding_scale=2"]),
                ("base/checkpoints", ("model.mup_base_width=16",),
                 ["another model", "mup_base_width=default here mup_base_width=16"])):
            with self.subTest(initial=initial, settings=settings):
                self.assert_refused(self.start_from("bad", *settings, initial=initial), 4, *words)
                self.assert_refused(self.start_from("bad", "parallel.data=2", *settings, initial=initial, ranks=2),
                                    4, *words)
        self.assertEqual(support.snapshot(self.folder), before)


if __name__ == "__main__":
    support.main()
