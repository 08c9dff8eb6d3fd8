# SPDX-License-Identifier: Apache-2.0
"""Loads of experts: reading, joining starts, the figure; parameters of models with experts."""
from __future__ import annotations

import csv
import unittest
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from analysis.deck import EARLIER, bound
from analysis.experts import read_loads, thinned
from analysis.runs import FloatArray, Run
from analysis.scaling import read_cases
from analysis.subject import parameter_count
from analysis.tests.commands import CommandTest, run_command
from analysis.tests.fake_runs import write_scaled, write_start_deck, write_steps
from analysis.tests.test_figures import deck_of

LAYERS, EXPERTS = 2, 4
DECK = {"model__layers": 5, "experts__count": EXPERTS, "experts__first_dense": 1, "experts__every": 2}
DENSE = 2 * 4096 * 192 + 4 * (4 * 192 ** 2 + 3 * 192 * 512 + 2 * 192) + 192


def with_experts(**changes: str) -> dict[str, str]:
    keys = {"experts.count": "8", "experts.active": "2", "experts.width": "64"}
    return deck_of() | keys | {f"experts.{key}": value for key, value in changes.items()}


def loads_of(steps: range, most: float) -> FloatArray:
    """Each row has 400 tokens a layer: in the first layer equal loads, in the second one expert with `most`."""
    even, uneven = np.full(EXPERTS, 100.0), np.full(EXPERTS, (400.0 - most) / (EXPERTS - 1))
    uneven[2] = most
    return np.tile(np.concatenate([even, uneven]), (len(steps), 1))


class Loads(CommandTest):
    def write(self, number: int, steps: range, most: float, **deck: Any) -> Path:
        run = self.folder / "run"
        write_start_deck(run, number, **(DECK | deck))
        path = write_steps(run, number, steps[0], steps[-1])
        with h5py.File(path, "r+") as file:
            file["experts/step"] = np.array(steps)
            file["experts/loads"] = loads_of(steps, most).astype(np.float32)
            file["experts/loads"].attrs.update(layers=LAYERS, experts=EXPERTS)
        return path

    def test_of_a_step_the_newest_start_counts(self) -> None:
        self.write(1, range(1, 9), 100.0)
        self.write(2, range(6, 11), 250.0)

        loads = read_loads(Run(self.folder / "run", "run"))

        self.assertEqual(list(loads.steps), list(range(1, 11)))
        self.assertEqual(loads.layers, [1, 3])
        np.testing.assert_allclose(loads.shares[:, 0], 1.0)
        np.testing.assert_allclose(loads.shares[:, 1, 2], [1.0] * 5 + [2.5] * 5)

    def test_the_command_writes_figure_and_rows(self) -> None:
        self.write(1, range(10, 31, 10), 391.0)

        code, out, err = run_command("experts", self.folder / "run", "--output", self.output)

        self.assertEqual((code, err), (0, ""))
        self.expect_png(self.output / "experts.png")
        with (self.output / "experts.csv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([(row["step"], row["layer"]) for row in rows],
                         [(step, layer) for step in ("10", "20", "30") for layer in ("1", "3")])
        self.assertEqual((float(rows[1]["largest"]), rows[1]["largest_expert"], rows[1]["few"]), (3.91, "2", "3"))
        self.assertEqual((float(rows[0]["smallest"]), rows[0]["few"]), (1.0, "0"))
        self.assertRegex(out, r"layer, step 30 .*\n.*\n1 +1\.00 +0 +1\.00 +0\n3 +3\.91 +2 +0\.03 +3\n")

    def test_a_column_of_a_long_run_is_a_mean_of_steps(self) -> None:
        self.write(1, range(1, 501), 100.0)
        self.write(2, range(501, 1001), 200.0)

        steps, shares = thinned(read_loads(Run(self.folder / "run", "run")))

        self.assertEqual(list(steps), list(range(1, 1001, 3)))
        np.testing.assert_allclose(shares[[0, 166, 333], 1, 2], [1.0, 4.0 / 3.0, 2.0])

    def test_a_layer_without_tokens_has_no_loads(self) -> None:
        path = self.write(1, range(1, 2), 100.0)
        with h5py.File(path, "r+") as file:
            file["experts/loads"][...] = 0.0

        self.assertEqual(float(read_loads(Run(self.folder / "run", "run")).shares.max()), 0.0)

    def test_runs_without_loads_and_damaged_files_are_named(self) -> None:
        run = self.folder / "run"
        write_start_deck(run, 1)
        self.expect_error("experts", run, "--output", self.output, says="there is no")
        path = write_steps(run, 1, 1, 5)
        self.expect_error("experts", run, "--output", self.output, says="has no loads of experts; give a run")
        path.write_bytes(b"no file of HDF5")
        self.expect_error("experts", run, "--output", self.output, says="cannot read")
        path = self.write(1, range(1, 9), 100.0)
        with h5py.File(path, "r+") as file:
            file["experts/loads"].attrs["experts"] = 3
        self.expect_error("experts", run, "--output", self.output, says="cannot read")
        with h5py.File(path, "r+") as file:
            file["experts/loads"].attrs["experts"] = EXPERTS
            file["experts/loads"][0, 0] = -1.0
        self.expect_error("experts", run, "--output", self.output, says="is no number of tokens")

    def test_starts_of_other_models_are_not_joined(self) -> None:
        self.write(1, range(1, 9), 100.0)
        path = self.write(2, range(9, 11), 100.0)
        with h5py.File(path, "r+") as file:
            file["experts/loads"].attrs.update(layers=4, experts=2)

        self.expect_error("experts", self.folder / "run", "--output", self.output, says="other layers or experts")


class Exchange(CommandTest):
    PARTS = {"forward": 20.0, "backward": 40.0, "optimizer": 5.0}

    def write(self, name: str, exchange_ms: float) -> Run:
        run = Run(self.folder / name, name)
        write_start_deck(run.path, 1, train__global_batch=32, model__context=128)
        write_scaled(run.path, (2, 1, 1, 1), self.PARTS | {"expert_comm": exchange_ms})
        return run

    def test_it_is_communication_that_a_rank_waits_for(self) -> None:
        cases = [read_cases(self.write(name, exchange), 5)[0][-1] for name, exchange in (("apart", 0.0), ("shared", 8.0))]

        self.assertAlmostEqual(cases[1].exposed_seconds - cases[0].exposed_seconds, 8e-3)
        self.assertAlmostEqual(cases[1].communication_seconds - cases[0].communication_seconds, 8e-3)

    def test_the_table_of_time_has_it_where_there_is_any(self) -> None:
        for name, exchange, shown in (("apart", 0.0, False), ("shared", 8.0, True)):
            run = self.write(name, exchange)
            self.assertEqual(run_command("time", run.path, "--output", self.output)[0], 0)
            header = next(line for line in (self.output / "time_per_rank.txt").read_text().splitlines()
                          if line.startswith("rank"))
            self.assertEqual("expert" in header.split(), shown, header)


class Counts(unittest.TestCase):
    def test_parameters_are_counted_as_the_program_does(self) -> None:
        dense, one, router = 3 * 192 * 512, 3 * 192 * 64, 8 * 192

        self.assertEqual(parameter_count(with_experts(count="0")), DENSE)
        self.assertEqual(parameter_count(with_experts()), DENSE + 4 * (8 * one + router - dense))
        self.assertEqual(parameter_count(with_experts(width="0")), DENSE + 4 * (7 * dense + router))
        self.assertEqual(parameter_count(with_experts(shared="2", first_dense="1")),
                         DENSE + 3 * (10 * one + router - dense))
        self.assertEqual(parameter_count(with_experts(every="3", bias_rate="0.001")),
                         DENSE + 8 * one + router + 8 - dense)
        self.assertIsNone(parameter_count(with_experts(unknown="1")))

    def test_published_models(self) -> None:
        olmoe = deck_of(layers="16", width="2048", heads="16", kv_heads="16", ffn_width="1024", vocabulary="50304",
                        qk_norm="width") | {"experts.count": "64", "experts.width": "1024"}
        self.assertEqual(parameter_count(olmoe), 6_919_161_856)

    def test_a_deck_without_experts_is_that_of_an_earlier_program(self) -> None:
        keys = {key: value for key, value in EARLIER.items() if key.startswith("experts.")}
        self.assertEqual(len(keys), 17)
        self.assertEqual(bound(deck_of() | keys), bound(deck_of()))
        self.assertNotEqual(bound(with_experts()), bound(deck_of()))


if __name__ == "__main__":
    unittest.main()
