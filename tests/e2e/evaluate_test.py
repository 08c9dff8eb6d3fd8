#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""eval: the numbers of a checkpoint, whatever the number of ranks."""

import json
import math

import support


class Evaluate(support.Case):
    """Checkpoints of steps 10 and 20 of one run."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.settings = ("train.microbatch=2", "model.dropout=0.1")
        cls.train("run", *cls.settings)
        cls.lines = support.metrics(cls.folder / "run")

    def evaluate(self, *arguments, ranks=1, settings=()):
        """Figures from --json."""
        result = self.run_program("eval", "deck.yaml", *arguments, "--json", "out.json",
                                  *support.overrides(f"parallel.data={ranks}", *self.settings, *settings),
                                  ranks=ranks)
        self.assertEqual(result.code, 0, result.err)
        return result, json.loads((self.folder / "out.json").read_text(encoding="utf-8"))

    def test_every_number_of_ranks_gives_the_logged_loss(self):
        last = self.lines[-1]
        for ranks in (1, 2, 3):
            with self.subTest(ranks=ranks):
                _, found = self.evaluate("--checkpoint", "run/checkpoints", ranks=ranks)
                self.assertEqual((found["step"], found["tokens"]), (20, 10 * 32))
                self.assertAlmostEqual(found["loss"] / last["validation_loss"], 1, delta=1e-6)
                self.assertEqual(found["token_accuracy"], last["validation_token_accuracy"])
                self.assertAlmostEqual(found["perplexity"], math.exp(found["loss"]), places=6)

    def test_whole_file_counts_every_sample_once(self):
        _, one = self.evaluate("--checkpoint", "run/checkpoints", settings=("train.validate_batches=0",))
        _, three = self.evaluate("--checkpoint", "run/checkpoints", settings=("train.validate_batches=0",),
                                 ranks=3)

        self.assertEqual(one["tokens"], len(support.text()) // 32 * 32)
        self.assertEqual(three["tokens"], one["tokens"])
        self.assertAlmostEqual(three["loss"] / one["loss"], 1, delta=1e-6)

    def test_several_checkpoints_make_a_table(self):
        result, found = self.evaluate("--checkpoint", "run/checkpoints/step_00000010",
                                      "--checkpoint", "run/checkpoints/step_00000020", ranks=2)

        rows = [line.split() for line in result.out.splitlines()]
        self.assertEqual(len(rows), 3)
        self.assertEqual([row[0] for row in rows], ["step", "10", "20"])
        self.assertEqual([entry["step"] for entry in found], [10, 20])
        self.assert_close([entry["loss"] for entry in found],
                          [self.lines[9]["validation_loss"], self.lines[19]["validation_loss"]], 1e-6)
        self.assert_close([float(row[1]) for row in rows[1:]], [entry["loss"] for entry in found], 1e-5)

    def test_checkpoint_of_four_ranks_is_read(self):
        self.train("four", *self.settings, "train.microbatch=1", ranks=4)

        _, found = self.evaluate("--checkpoint", "four/checkpoints")

        self.assertAlmostEqual(found["loss"] / self.lines[-1]["validation_loss"], 1, delta=1e-5)

    def test_refusals(self):
        deck = ("eval", "deck.yaml")
        two = support.overrides("parallel.data=2")
        before = support.snapshot(self.folder / "run")
        cases = [
            (2, ["--checkpoint"], deck, ()),
            (4, ["nowhere", "no such folder"], deck, ("--checkpoint", "nowhere")),
            (4, ["no checkpoint in it"], deck, ("--checkpoint", "run/timing")),
            (4, ["blocks.2.", "missing"], deck,
             ("--checkpoint", "run/checkpoints", "--set", "model.layers=3")),
            (5, ["text.txt/out.json", "cannot write"], deck,
             ("--checkpoint", "run/checkpoints", "--json", "text.txt/out.json")),
            (3, ["none.bin"], deck,
             ("--checkpoint", "run/checkpoints", "--set", "data.validation=[none.bin]")),
        ]
        for code, words, start, arguments in cases:
            with self.subTest(arguments=arguments):
                self.assert_refused(self.run_program(*start, *two, *arguments, ranks=2), code, *words)
        self.assertEqual(support.snapshot(self.folder / "run"), before)


if __name__ == "__main__":
    support.main()
