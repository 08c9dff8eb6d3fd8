# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest
from pathlib import Path
from typing import Any

from analysis.runs import Run
from analysis.starts import mixed_text
from analysis.tests.commands import CommandTest, run_command
from analysis.tests.fake_runs import metrics_row, write_deck, write_metrics, write_start_deck, write_steps


class Starts(CommandTest):
    def write(self, *starts: tuple[tuple[int, int] | None, dict[str, Any]]) -> Run:
        """A run of starts, each with its first and last step (None: no timing files) and deck."""
        path = self.folder / "run"
        for number, (steps, deck) in enumerate(starts, 1):
            write_start_deck(path, number, **deck)
            if steps:
                write_steps(path, number, *steps)
        return Run(path, "run")

    def test_the_key_and_step_are_named(self) -> None:
        run = self.write(((1, 100), {"optimizer__lr": 0.003}),
                         ((101, 103), {"optimizer__lr": 0.01, "train__global_batch": 64}))

        self.assertEqual(mixed_text(run), "mixed: optimizer.lr 0.003 -> 0.01 at step 101; "
                                          "train.global_batch 32 -> 64 at step 101")

    def test_names_layout_and_steps_do_not_mix(self) -> None:
        run = self.write(((1, 100), {"train__validate_batches": 2}), ((101, 200), {
            "run__name": "b", "run__device": "cuda", "parallel__data": 2, "parallel__zero": 1, "train__steps": 500,
            "train__microbatch": 4, "train__validate_batches": 3, "timing__every": 5, "memory__recompute": "full", "checkpoint__every": 10}))

        self.assertEqual(mixed_text(run), "")

    def test_another_seed_or_model_mixes(self) -> None:
        run = self.write(((1, 100), {}), ((101, 200), {"run__seed": 7, "model__dropout": 0.1}))

        self.assertEqual(mixed_text(run), "mixed: run.seed 1234 -> 7 at step 101")  # dropout: unknown before

    def test_steps_that_were_done_again_are_void(self) -> None:
        high, low = {"optimizer__lr": 0.1}, {"optimizer__lr": 0.001}
        self.assertEqual(mixed_text(self.write(((1, 100), high), ((1, 50), low))), "")
        self.assertEqual(mixed_text(self.write(((1, 100), low), ((101, 150), high), ((51, 200), low))), "")
        self.assertEqual(mixed_text(self.write(((1, 100), low), ((101, 150), high), ((121, 200), low))),
                         "mixed: optimizer.lr 0.001 -> 0.1 at step 101; optimizer.lr 0.1 -> 0.001 at step 121")

    def test_a_start_that_trained_nothing_mixes_nothing(self) -> None:
        run = self.write(((1, 100), {"optimizer__lr": 0.003}), ((101, 100), {"optimizer__lr": 1.0}))
        write_metrics(run.path, [metrics_row(step) for step in range(1, 101)])
        self.assertEqual(mixed_text(run), "")

        # It was killed before it wrote its first rows, but the metrics show its steps.
        write_metrics(run.path, [metrics_row(step) for step in range(1, 111)])
        self.assertEqual(mixed_text(run), "mixed: optimizer.lr 0.003 -> 1.0 in start_0002")

    def test_without_timing_files_the_start_is_named(self) -> None:
        run = self.write((None, {"optimizer__lr": 0.003}), (None, {"optimizer__lr": 1.0}))

        self.assertEqual(mixed_text(run), "mixed: optimizer.lr 0.003 -> 1.0 in start_0002")

    def test_steps_that_are_not_all_timed(self) -> None:
        run = self.write(((10, 100), {"timing__every": 10}), ((110, 200), {"timing__every": 10, "optimizer__lr": 1.0}))

        self.assertEqual(mixed_text(run), "mixed: optimizer.lr 0.002 -> 1.0 at step 110 or before")

    def test_runs_without_decks_of_starts_are_not_judged(self) -> None:
        write_deck(self.folder / "run")
        self.assertEqual(mixed_text(Run(self.folder / "run", "run")), "")

    def test_commands_mark_mixed_runs(self) -> None:
        run = self.write(((1, 100), {"optimizer__lr": 0.003}), ((101, 200), {"optimizer__lr": 0.01})).path
        write_metrics(run, [metrics_row(step) for step in range(1, 201)])
        reported = "run: mixed: optimizer.lr 0.003 -> 0.01 at step 101"

        self.assertIn(reported, run_command("summary", run)[1])
        for command in ("learning", "time", "report"):
            with self.subTest(command):
                code, out, err = run_command(command, run, "--output", self.output)
                self.assertEqual((code, err), (0, ""))
                self.assertIn(reported, out)
        self.assertIn(reported, (self.output / "learning.txt").read_text())

    def test_a_damaged_deck_of_a_start_is_named(self) -> None:
        run: Path = self.write(((1, 100), {}), ((101, 200), {})).path
        (run / "decks/start_0001.yaml").write_text("lr 3\n")
        write_metrics(run, [metrics_row(1)])
        self.expect_error("summary", run, says="decks/start_0001.yaml:1: expected")


if __name__ == "__main__":
    unittest.main()
