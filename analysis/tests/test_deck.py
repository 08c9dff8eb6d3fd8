# SPDX-License-Identifier: Apache-2.0
"""What the program and the tables hold to be the same training."""
from __future__ import annotations

import re
import unittest
from pathlib import Path

from analysis.deck import SAME_TRAINING_KEYS, SAME_TRAINING_SECTIONS, bound, matters

SOURCE = Path(__file__).parents[2] / "src/run/deck_changes.cpp"


class SameTraining(unittest.TestCase):
    def test_the_program_tells_the_same_changes_apart(self) -> None:
        body = re.search(r"\nbool changes_training\(.*?\n}\n", SOURCE.read_text(encoding="utf-8"), re.DOTALL)
        assert body is not None, f"{SOURCE} has no changes_training"
        named = set(re.findall(r'"([a-z_]+\.[a-z_]*)"', body[0])) - {"run.seed"}

        self.assertEqual({name for name in named if not name.endswith(".")}, set(SAME_TRAINING_KEYS))
        self.assertEqual({name[:-1] for name in named if name.endswith(".")}, set(SAME_TRAINING_SECTIONS))
        self.assertTrue(matters("run.seed"))


class Bound(unittest.TestCase):
    def test_runs_that_train_other_parameters_are_not_compared(self) -> None:
        earlier = {"model.width": "64", "train.steps": "10"}
        everything = {**earlier, "train.trainable": "[]", "optimizer.momentum": "0.9"}
        norms = {**everything, "train.trainable": "[norm, bias]"}

        self.assertEqual(bound(earlier), bound(everything))
        self.assertNotEqual(bound(everything), bound(norms))


if __name__ == "__main__":
    unittest.main()
