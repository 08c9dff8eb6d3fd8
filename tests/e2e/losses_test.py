#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Losses of weighted tokens, of policies, of pairs and of teachers: whole runs on layouts."""

import array
import itertools
import math
import random
import struct

import support

TOKENS = 3000
LAYOUTS = {"data": (2, "parallel.data=2", "parallel.zero=1"),
           "zero_3_in_parts": (2, "parallel.data=2", "parallel.zero=3", "train.microbatch=3"),
           "tensor": (2, "parallel.data=1", "parallel.tensor=2"),
           "sequence": (2, "parallel.data=1", "parallel.tensor=2", "parallel.sequence=true"),
           "pipeline": (2, "parallel.data=1", "parallel.pipeline=2", "train.microbatch=2"),
           "context": (2, "parallel.data=1", "parallel.context=2")}


def write_npy(path, descr, shape, values):
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    head += b" " * (-(len(head) + 11) % 64) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + values.tobytes())


def floats(values):
    return array.array("f", values)


class Losses(support.Case):
    """The tiny deck on tokens with values."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        chance = random.Random(1)
        tokens = [97 + index % 7 if chance.random() < 0.8 else 110 for index in range(TOKENS)]
        ends = set(itertools.accumulate(chance.randrange(5, 14) for _ in range(400)))
        tokens = [256 if index in ends else token for index, token in enumerate(tokens)]
        if tokens.count(256) % 2 == 0:  # the last document ends with the file
            tokens[-3:] = [256, 97, 98]
        cls.tokens = tokens
        cls.weights = [chance.choice([0, 0.5, 1, 2]) for _ in tokens]
        write_npy(cls.folder / "t.npy", "<u2", f"({len(tokens)},)", array.array("H", tokens))
        cls.write("weights", cls.weights)
        cls.write("advantages", [chance.gauss(0, 1) for _ in tokens])
        cls.write("old_log_probabilities", [-5 - chance.random() for _ in tokens])
        cls.write("reference_log_probabilities", [-5 - chance.random() for _ in tokens])
        taught = [(token, (token + 1) % 257, (token + 5) % 257) for token in tokens]
        write_npy(cls.folder / "t.teacher_ids.npy", "<i4", f"({len(tokens)}, 3)",
                  array.array("i", itertools.chain(*taught)))
        write_npy(cls.folder / "t.teacher_log_probabilities.npy", "<f4", f"({len(tokens)}, 3)",
                  floats([-0.2, -2.5, -3] * len(tokens)))

    @classmethod
    def write(cls, column, values):
        write_npy(cls.folder / f"t.{column}.npy", "<f4", f"({len(values)},)", floats(values))

    def run_loss(self, name, *settings, ranks=1, options=()):
        plain = ("data.train=[t.npy]", "data.validation=[]", "train.validate_every=0", "train.steps=6",
                 "data.end_token=256", "data.predict_starts=false", "checkpoint.every=3")
        return self.train(name, *plain, *settings, ranks=ranks, options=options)

    def losses(self, run):
        return support.column(self.folder / run, "loss")

    def assert_layouts_agree(self, name, *settings, without=()):
        self.run_loss(name, *settings)
        for layout, (ranks, *keys) in LAYOUTS.items():
            if layout in without:
                continue
            with self.subTest(layout):
                self.run_loss(f"{name}_{layout}", *settings, *keys, ranks=ranks)
                self.assert_close(self.losses(f"{name}_{layout}"), self.losses(name), 2e-5)

    def test_weights_are_those_of_a_mean_on_every_layout(self):
        self.assert_layouts_agree("weighted", "data.token_weights=true")
        self.run_loss("plain")
        self.assertNotEqual(self.losses("weighted"), self.losses("plain"))

    def test_equal_weights_change_nothing(self):
        self.run_loss("without")
        self.write("weights", [2] * TOKENS)
        self.run_loss("equal", "data.token_weights=true")
        self.write("weights", self.weights)
        self.assert_close(self.losses("equal"), self.losses("without"), 1e-6)

    def test_a_clipped_loss_on_every_layout(self):
        self.assert_layouts_agree("clipped", "train.loss=clipped", "train.kl_weight=0.1")
        line = support.metrics(self.folder / "clipped")[0]
        self.assertGreater(line["clipped"], 0)
        self.assertLess(line["clipped"], 1)
        self.assertGreater(line["kl"], 0)
        self.assertNotIn("perplexity", line)

    def test_distillation_on_every_layout(self):
        distil = ("train.loss=distillation", "train.teacher_tokens=3", "train.teacher_weight=0.75")
        self.assert_layouts_agree("taught", *distil)
        losses = self.losses("taught")
        self.assertLess(losses[-1], losses[0])

    def test_preference_on_every_layout(self):
        """The model itself is the reference at first: every margin is 0, and the loss log 2."""
        pairs = ("data.packing=best_fit", "data.documents=masked")
        self.run_loss("base", *pairs, "train.steps=1", "optimizer.lr=1.0e-9")
        scores = self.folder / "t.reference_log_probabilities.npy"
        kept = scores.read_bytes()
        for ranks in (1, 2):
            result = self.run_program("eval", "--checkpoint", "base", "--data", "t.npy", "--log-probabilities",
                                      scores.name, ranks=ranks)
            self.assertEqual(result.code, 0, result.err)
        values = array.array("f", scores.read_bytes()[-4 * TOKENS:])
        self.assertEqual(values[0], 0)
        self.assertLess(max(values[index] for index in range(1, TOKENS) if self.tokens[index - 1] != 256), 0)
        first = "checkpoint.initial=base/checkpoints/step_00000001"
        self.assert_layouts_agree("preference", *pairs, "train.loss=preference", first, without=("context",))
        scores.write_bytes(kept)
        planned = self.run_program("plan", "preference/deck.yaml")
        self.assertEqual(planned.code, 0, planned.err)
        line = support.metrics(self.folder / "preference")
        self.assertAlmostEqual(line[0]["loss"], math.log(2), places=4)
        self.assertLess(line[-1]["loss"], math.log(2) - 0.01)
        self.assertGreater(line[-1]["preferred"], 0.5)

    def test_a_resumed_run_has_the_same_bits(self):
        clipped = ("train.loss=clipped", "data.token_weights=true")
        self.run_loss("whole", *clipped)
        self.run_loss("parts", *clipped, options=("--stop-after", "2"))
        self.run_loss("parts", *clipped)
        self.assertEqual(self.losses("parts"), self.losses("whole"))

    def test_steps_without_weight_are_told_and_do_not_keep_a_run_from_going_on(self):
        self.write("weights", [1] * (TOKENS // 2) + [0] * (TOKENS - TOKENS // 2))
        settings = ("data.token_weights=true", "train.global_batch=1", "train.microbatch=1", "train.steps=12")
        told = self.run_loss("weightless", *settings, options=("--stop-after", "9"))
        self.run_loss("weightless", *settings)
        self.write("weights", self.weights)
        self.assertIn("data.token_weights", told.err)
        self.assertEqual(len(self.losses("weightless")), 12)
        self.assertIn(None, self.losses("weightless"))

    def test_missing_values_are_named(self):
        result = self.train("missing", "train.loss=clipped", "data.train=[text.bin]", code=3)
        self.assertIn("text.old_log_probabilities.npy", result.err)


if __name__ == "__main__":
    support.main()
