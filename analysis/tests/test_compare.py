# SPDX-License-Identifier: Apache-2.0
"""What stands beside PyTorch and needs only NumPy: the order of samples, recipes, weights."""
from __future__ import annotations

import csv
import json
import struct
import tempfile
import unittest
from pathlib import Path

import numpy as np

from analysis.compare.recipe import Recipe, read_recipe, read_weights, step_folder, words
from analysis.compare.samples import Order, Tokens, philox
from analysis.errors import UserError
from analysis.tests.fake_runs import write_deck, write_start_deck

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden" / "sample_order.csv"

DECK = {
    "model__norm_place": "pre", "model__dropout": 0, "model__position": "rope",
    "model__norm": "rmsnorm", "model__activation": "swiglu", "data__validation": "[v.bin]",
    "data__sampling": "blocks", "data__ignore_token": -1, "data__loss_mask": "false",
    "data__validation_fraction": 0, "train__epochs": 0, "train__overfit_one_batch": "false",
    "train__steps": 100, "train__validate_every": 30, "train__validate_batches": 2,
    "optimizer__lr": 0.01, "schedule__name": "cosine", "schedule__warmup_steps": 10,
    "schedule__final_fraction": 0.1, "schedule__decay_fraction": 0.2,
}


class FolderTest(unittest.TestCase):
    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def write_llmc(self, name: str, magic: int, version: int, tokens: np.ndarray) -> str:
        header = struct.pack("<256i", magic, version, tokens.size, *([0] * 253))
        (self.folder / name).write_bytes(header + tokens.tobytes())
        return str(self.folder / name)


class Samples(FolderTest):
    def test_philox_gives_the_words_of_its_authors(self) -> None:
        """Known answers of Random123 (kat_vectors, philox4x32 10)."""
        zero = philox(np.zeros(1, np.uint64), 0, 0)
        self.assertEqual([int(word[0]) for word in zero],
                         [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8])
        ones = philox(np.full(1, 2**64 - 1, np.uint64), 2**64 - 1, 2**64 - 1)
        self.assertEqual([int(word[0]) for word in ones],
                         [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD])

    def test_the_order_is_that_of_the_golden_file(self) -> None:
        with GOLDEN.open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))

        self.assertGreater(len(rows), 50)
        for row in rows:
            order = Order(row["sampling"], int(row["tokens"]), int(row["length"]), int(row["seed"]))
            self.assertEqual(order.starts(int(row["sample"]), 1)[0], int(row["start"]), row)

    def test_samples_at_once_are_those_one_by_one(self) -> None:
        for sampling in ("blocks", "windows"):
            order = Order(sampling, 1003, 10, 42)
            singles = [int(order.starts(index, 1)[0]) for index in range(90, 215)]

            self.assertEqual(order.starts(90, 125).tolist(), singles)
        epoch = Order("blocks", 1003, 10, 42).starts(100, 100)
        self.assertEqual(sorted(epoch.tolist()), list(range(0, 1000, 10)))

    def test_tokens_of_every_kind_of_file_follow_each_other(self) -> None:
        narrow = self.write_llmc("a.bin", 20240520, 1, np.arange(5, dtype="<u2"))
        self.write_llmc("b1.bin", 20240801, 7, np.arange(5, 8, dtype="<u4"))
        np.arange(8, 10, dtype="<u2").tofile(self.folder / "b2.bin")
        np.save(self.folder / "c.npy", np.arange(10, 20, dtype=np.int32))
        tokens = Tokens([narrow, str(self.folder / "b*.bin"), str(self.folder / "c.npy")])

        self.assertEqual(len(tokens), 20)
        batch = tokens.batch(np.array([3, 0, 11]), 8)
        self.assertEqual(batch.tolist(), [list(range(first, first + 9)) for first in (3, 0, 11)])

    def test_wrong_files_are_refused(self) -> None:
        cut = self.write_llmc("cut.bin", 20240520, 1, np.arange(5, dtype="<u2"))
        Path(cut).write_bytes(Path(cut).read_bytes()[:-2])
        for patterns in ([cut], [str(self.folder / "none*.bin")], ["tokens.h5"]):
            with self.assertRaises(UserError):
                Tokens(patterns)
        with self.assertRaises(UserError):
            Order("blocks", 10, 10, 1)


class Recipes(FolderTest):
    def recipe(self, *overrides: str) -> Recipe:
        write_deck(self.folder, **DECK)
        return read_recipe(self.folder, overrides)

    def test_a_run_of_two_decks_is_refused(self) -> None:
        write_start_deck(self.folder, 1, **DECK)
        write_start_deck(self.folder, 2, **DECK | {"optimizer__lr": 0.5})

        with self.assertRaisesRegex(UserError, "mixed: optimizer.lr .* in start_0002; compare a run that one deck"):
            read_recipe(self.folder)

    def test_schedules(self) -> None:
        """By hand: warm-up to 0.01 at step 10, 0.001 at step 100."""
        expected = {"cosine": (0.005, 0.01, 0.0055, 0.001), "linear": (0.005, 0.01, 0.0055, 0.001),
                  "wsd": (0.005, 0.01, 0.01, 0.001), "constant": (0.005, 0.01, 0.01, 0.01)}
        for name, rates in expected.items():
            recipe = self.recipe(f"schedule.name={name}")
            for step, rate in zip((5, 10, 55, 100), rates):
                self.assertAlmostEqual(recipe.learning_rate(step, 100), rate, msg=f"{name} {step}")
        self.assertAlmostEqual(self.recipe("schedule.name=wsd").learning_rate(90, 100), 0.0055)
        self.assertAlmostEqual(self.recipe().learning_rate(32, 100),
                               0.001 + 0.0045 * (1 + np.cos(np.pi * 22 / 90)))

    def test_validations_fall_on_the_run_s_steps(self) -> None:
        recipe = self.recipe()

        self.assertEqual([step for step in range(1, 101) if recipe.validates(step, 100)],
                         [30, 60, 90, 100])
        for microbatch in (1, 3):
            recipe = self.recipe("train.global_batch=3", f"train.microbatch={microbatch}")
            self.assertEqual(recipe.validation_samples(Order("blocks", 1281, 128, 0)), 6)
            self.assertEqual(recipe.validation_samples(Order("blocks", 300, 128, 0)), 2)
        every = self.recipe("train.validate_batches=0")
        self.assertEqual(every.validation_samples(Order("blocks", 1281, 128, 0)), 10)

    def test_lists_of_paths(self) -> None:
        self.assertEqual(words('["a b.bin", c.bin, "d\\"[0-9].bin"]'),
                         ["a b.bin", "c.bin", 'd"[0-9].bin'])
        self.assertEqual(words("[]"), [])
        self.assertEqual(self.recipe("data.train=[x.bin]").files("train"), ["x.bin"])

    def test_epochs(self) -> None:
        recipe = self.recipe("train.steps=0", "train.epochs=3")

        self.assertEqual(recipe.steps(Order("blocks", 128 * 100 + 1, 128, 0)), 300 // 32)

    def test_what_pytorch_would_do_otherwise_is_refused(self) -> None:
        for override in ("model.dropout=0.1", "model.norm_place=post", "data.train=[synthetic]",
                         "precision.compute=fp16", "no.key=1", "train.steps"):
            with self.assertRaises(UserError, msg=override):
                self.recipe(override)


class Weights(FolderTest):
    def write(self, pieces: list[tuple[list[int], np.ndarray]], shape: list[int]) -> None:
        folder = self.folder / "checkpoints" / "step_00000001"
        folder.mkdir(parents=True)
        entries = []
        for rank, (offset, data) in enumerate(pieces):
            name = f"rank_{rank:05d}.h5"
            (folder / name).write_bytes(b"head" + data.astype("<f4").tobytes())
            entries.append({"file": name, "file_offset": 4, "offset": offset,
                            "count": list(data.shape)})
        tensors = {"model/a.weight": {"dtype": "f32", "global_shape": shape, "pieces": entries},
                   "optimizer/exp_avg/a.weight": {"dtype": "f32", "global_shape": shape,
                                                  "pieces": entries}}
        (folder / "manifest.json").write_text(json.dumps({"tensors": tensors}), encoding="utf-8")

    def test_pieces_of_several_ranks_make_a_tensor(self) -> None:
        whole = np.arange(24, dtype=np.float32).reshape(4, 6)
        self.write([([0, 0], whole[:, :2]), ([0, 2], whole[:3, 2:]), ([3, 2], whole[3:, 2:])], [4, 6])

        weights = read_weights(self.folder)

        self.assertEqual(list(weights), ["a.weight"])
        np.testing.assert_array_equal(weights["a.weight"], whole)
        self.assertEqual(step_folder(self.folder).name, "step_00000001")

    def test_a_missing_piece_is_refused(self) -> None:
        self.write([([0, 0], np.ones((4, 5), np.float32))], [4, 6])
        with self.assertRaises(UserError):
            read_weights(self.folder)
        with self.assertRaises(UserError):
            step_folder(self.folder / "nowhere")


if __name__ == "__main__":
    unittest.main()
