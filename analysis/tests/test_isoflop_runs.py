# SPDX-License-Identifier: Apache-2.0
"""Runs that `isoflop` reads: their parameters, tokens and losses, what it refuses, and the study that makes them."""
from __future__ import annotations

import math
import os
import unittest
from pathlib import Path
from typing import Any

import numpy as np

from analysis.isoflop.experiments import counted_parameters, make_budgets, read_source
from analysis.study.points import expand
from analysis.study.spec import read_study
from analysis.tests.commands import CommandTest, run_command
from analysis.tests.fake_runs import write_deck, write_metrics, write_start_deck, write_steps
from analysis.tests.study_case import ROOT, StudyTest

# The form that a tiny Llama of the program has; width 8, one layer: 10,008 parameters beside the table, as it prints.
MODEL = {"model__layers": 1, "model__width": 8, "model__heads": 2, "model__kv_heads": 2, "model__ffn_width": 64, "model__vocabulary": 1024,
         "model__context": 64, "model__position": "rope", "model__norm": "rmsnorm", "model__norm_place": "pre", "model__activation": "swiglu",
         "model__bias": "false", "model__tie_embeddings": "false"}


def deck_of(**changes: Any) -> dict[str, str]:
    return {key.replace("__", "."): str(value) for key, value in (MODEL | changes).items()}


class Counting(unittest.TestCase):
    def test_parameters_are_those_without_the_table_at_the_input(self) -> None:
        blocks = 4 * 8 * 8 + 3 * 8 * 64 + 2 * 8 + 8

        self.assertEqual(counted_parameters(deck_of()), blocks + 1024 * 8)
        self.assertEqual(counted_parameters(deck_of(model__tie_embeddings="true")), blocks + 1024 * 8)
        self.assertEqual(counted_parameters(deck_of(model__position="learned")), blocks + 1024 * 8)
        self.assertEqual(counted_parameters(deck_of(experts__in_turn="false")), blocks + 1024 * 8)
        self.assertIsNone(counted_parameters({"model.width": "8"}))


class Reading(CommandTest):
    def write(self, name: str, width: int, tokens: int, loss: float, validation: bool = True, **deck: Any) -> Path:
        run = self.folder / name
        write_deck(run, **MODEL | {"model__width": width, "train__steps": 3} | deck)
        rows: list[dict[str, Any]] = [{"step": step, "loss": loss + 3 - step, "tokens": tokens * step // 3} for step in (1, 2, 3)]
        write_metrics(run, rows[:2] + [rows[2] | ({"validation_loss": loss} if validation else {})])
        return run

    def study(self) -> list[Path]:
        """Two budgets of four sizes, losses on a parabola around width 16, then 32."""
        runs = []
        for compute, best in ((1e11, 16), (1e13, 32)):
            for width in (8, 16, 32, 64):
                size = counted_parameters(deck_of(model__width=width))
                assert size is not None
                runs.append(self.write(f"c{compute:g}_w{width}", width, round(compute / 6 / size), 3.0 + 0.1 * math.log2(width / best) ** 2))
        return runs

    def expect(self, says: str, *runs: Path, without: tuple[str, ...] = ()) -> None:
        words = ["--without", *without] if without else []
        self.expect_error("isoflop", *runs, *words, "--output", self.output, says=says)

    def test_runs_have_their_parameters_tokens_and_losses(self) -> None:
        runs = self.study()

        source = read_source([str(run) for run in runs], [])
        budgets = make_budgets(source.experiments)

        self.assertEqual([len(budget.experiments) for budget in budgets], [4, 4])
        np.testing.assert_allclose([budget.compute for budget in budgets], [1e11, 1e13], rtol=1e-3)
        self.assertEqual([budget.lowest.name for budget in budgets], ["c1e+11_w16", "c1e+13_w32"])
        self.assertEqual(budgets[0].lowest.loss, 3.0)
        code, out, err = run_command("isoflop", *runs, "--draws", 50, "--output", self.output)
        self.assertEqual((code, err), (0, ""))
        self.assertIn("N: parameters without the tables at the input", out)

    def test_runs_that_say_nothing_of_their_size_are_refused(self) -> None:
        runs = self.study()
        self.expect("diverged diverged, so its loss says nothing of its size; run it again at a lower optimizer.lr, name the other",
                    *runs, self.diverged())
        self.expect("short ended at step 3 of 5, before its learning rate fell", *runs, self.write("short", 24, 10 ** 6, 3.0, train__steps=5))
        self.expect("no run directory", *runs, self.folder / "nowhere")
        self.expect("has data.validation -", *runs, self.write("other", 24, 10 ** 6, 3.0, data__validation="[b.bin]"))
        self.expect("the loss of", *runs, self.write("untested", 24, 10 ** 6, 3.0, validation=False))
        self.expect("cannot be counted from deck.yaml as those of a dense", *runs, self.write("experts", 24, 10 ** 6, 3.0, experts__count=4))
        self.expect("its last tokens are -", *runs, self.without_tokens())
        mixed = self.write("mixed", 24, 10 ** 6, 3.0)
        for number, rate in ((1, 0.1), (2, 0.2)):
            write_start_deck(mixed, number, **MODEL | {"model__width": 24, "train__steps": 3, "optimizer__lr": rate})
            write_steps(mixed, number, 2 * number - 1, 2 * number - (number == 2))
        self.expect("mixed is no one training (mixed: optimizer.lr 0.1 -> 0.2", *runs, mixed)

    def diverged(self) -> Path:
        run = self.write("diverged", 24, 10 ** 6, 3.0)
        write_metrics(run, [{"step": step, "loss": 3.0 ** step, "tokens": 1, "validation_loss": 9.0} for step in (1, 2, 3)])
        return run

    def without_tokens(self) -> Path:
        run = self.write("tokens", 24, 10 ** 6, 3.0)
        write_metrics(run, [{"step": step, "loss": 3.0, "validation_loss": 3.0} for step in (1, 2, 3)])
        return run

    def test_runs_can_be_left_out_by_name(self) -> None:
        runs = self.study()
        short = self.write("short", 24, 10 ** 6, 3.0, train__steps=5)

        code, _, err = run_command("isoflop", *runs, short, "--without", "short", "--draws", 0, "--output", self.output)

        self.assertEqual((code, err), (0, ""))
        self.expect("--without shirt: there is no such run; there are", *runs, without=("shirt",))
        self.expect("the budget of 1e+11 FLOPs has 2 model sizes", *runs, without=("c1e+11_w8", "c1e+11_w64"))


class Study(StudyTest):
    def steps_of(self, **changes: Any) -> dict[str, Any]:
        points = self.points(command="train", base=None, tables=[{"columns": ["final_loss"]}], **changes)
        return {point.name: point.settings.get("train.steps") for point in points}

    def test_a_budget_sets_the_steps(self) -> None:
        """A step of the deck has 4 samples of 8 tokens."""
        sizes = {"small": {"parameters": 1000}, "large": {"parameters": 4e3, "train.global_batch": 8}}

        steps = self.steps_of(axes={"flops": [6e6, 6e7], "size": sizes})

        self.assertEqual(steps, {"flops_6e+06-small": 31, "flops_6e+06-large": 4, "flops_6e+07-small": 312, "flops_6e+07-large": 39})
        for point in self.points(command="train", base=None, tables=[{"columns": ["final_loss"]}], axes={"flops": [6e6], "size": sizes}):
            self.assertNotIn("flops", point.settings)
            self.assertNotIn("parameters", point.settings)

    def test_budgets_that_cannot_be_are_refused(self) -> None:
        for says, changes in {
            "parameters is `null`, expected a number above 0": {"axes": {"flops": [6e6]}},
            "leave train.steps and other commands out": {"axes": {"flops": [6e6]}, "set": {"parameters": 10, "train.steps": 3}},
            "1 FLOPs are less than a step of 10 parameters": {"axes": {"flops": [1]}, "set": {"parameters": 10}},
            "flops is `a lot`, expected a number": {"axes": {"flops": ["a lot"]}, "set": {"parameters": 10}},
        }.items():
            with self.subTest(says), self.assertRaisesRegex(Exception, says):
                self.steps_of(**changes)

    def test_the_repository_s_study_has_three_sizes_and_a_minimum_s_neighbours(self) -> None:
        os.chdir(ROOT)
        for small in (False, True):
            points = expand(read_study(Path("inputs/studies/isoflop.yaml"), small), "isoflop.yaml")
            by_budget: dict[str, list[int]] = {}
            for point in points:
                by_budget.setdefault(point.labels["flops"], []).append(int(point.settings["train.steps"]))
            self.assertGreaterEqual(len(by_budget), 3)
            self.assertTrue(all(len(steps) >= 4 and min(steps) >= 20 for steps in by_budget.values()), by_budget)


if __name__ == "__main__":
    unittest.main()
