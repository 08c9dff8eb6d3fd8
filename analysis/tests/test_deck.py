# SPDX-License-Identifier: Apache-2.0
"""What the program and the tables hold to be the same training."""
from __future__ import annotations

import re
import tempfile
import unittest
from pathlib import Path

from analysis.deck import RENAMED, RENAMED_VALUES, SAME_TRAINING_KEYS, SAME_TRAINING_SECTIONS, bound, matters, read_deck_file

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/run/deck_changes.cpp"
HEADER = ROOT / "include/hyperslab/train/renamed_keys.hpp"


class SameTraining(unittest.TestCase):
    def test_the_program_tells_the_same_changes_apart(self) -> None:
        body = re.search(r"\nbool changes_training\(.*?\n}\n", SOURCE.read_text(encoding="utf-8"), re.DOTALL)
        assert body is not None, f"{SOURCE} has no changes_training"
        named = set(re.findall(r'"([a-z_]+\.[a-z_]*)"', body[0])) - {"run.seed"}

        self.assertEqual({name for name in named if not name.endswith(".")}, set(SAME_TRAINING_KEYS))
        self.assertEqual({name[:-1] for name in named if name.endswith(".")}, set(SAME_TRAINING_SECTIONS))
        self.assertTrue(matters("run.seed"))


class Renamed(unittest.TestCase):
    def rows(self, name: str) -> list[tuple[str, ...]]:
        """The texts of each row of an array of the program's header."""
        text = re.sub(r"//[^\n]*", "", HEADER.read_text(encoding="utf-8"))
        array = re.search(rf"constexpr std::array {name}\b(.*?);\n", text, re.DOTALL)
        assert array is not None, f"{HEADER} has no {name}"
        rows = [re.findall(r'"([^"]*)"', row) for row in re.findall(r"\{([^{}]*)\}", array[1])]
        self.assertEqual(sum(map(len, rows)), array[1].count('"') // 2, array[1])  # no text stands outside of a row
        return [tuple(row) for row in rows]

    def test_the_program_has_the_same_former_names(self) -> None:
        keys, values = self.rows("kRenamedKeys"), self.rows("kRenamedValues")

        self.assertEqual({was: current for was, current in keys}, RENAMED)
        self.assertEqual({(key, was): current for key, was, current in values}, RENAMED_VALUES)
        self.assertEqual((len(keys), len(values)), (len(RENAMED), len(RENAMED_VALUES)))
        self.assertGreater(min(len(keys), len(values)), 0)

    def test_decks_of_earlier_programs_are_equal_to_those_of_today(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            earlier, today = Path(folder, "earlier.yaml"), Path(folder, "today.yaml")
            earlier.write_text("spikes:\n  policy: walk_back\n  max_walk_backs: 3\n", encoding="utf-8")
            today.write_text("spikes:\n  policy: roll_back\n  max_roll_backs: 3\n", encoding="utf-8")

            self.assertEqual(read_deck_file(earlier), read_deck_file(today))
            self.assertEqual(read_deck_file(today)["spikes.policy"], "roll_back")


class Bound(unittest.TestCase):
    def test_runs_that_train_other_parameters_are_not_compared(self) -> None:
        earlier = {"model.width": "64", "train.steps": "10"}
        everything = {**earlier, "train.trainable": "[]", "optimizer.momentum": "0.9"}
        norms = {**everything, "train.trainable": "[norm, bias]"}

        self.assertEqual(bound(earlier), bound(everything))
        self.assertNotEqual(bound(everything), bound(norms))


if __name__ == "__main__":
    unittest.main()
