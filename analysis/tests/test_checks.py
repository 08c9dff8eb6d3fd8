# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest
from pathlib import Path

import h5py
import numpy as np

from analysis.checks import union_seconds
from analysis.tests.commands import CommandTest, run_command
from analysis.tests.fake_runs import write_deck, write_scaled

REDUCED = {"forward": 10.0, "backward": 20.0, "reduce_exposed": 5.0, "reduce": 25.0}
PIPELINED = {"forward": 9.0, "backward": 18.0, "pipeline_idle": 12.0}


class Overlap(CommandTest):
    def test_the_limit_parts_0_from_1(self) -> None:
        write_scaled(self.folder / "a", (2, 1, 1, 1), REDUCED)

        for limit, code, word in ((0.2001, 0, "within"), (0.1999, 1, "ABOVE")):
            found, out, err = run_command("check", "overlap", self.folder / "a", "--limit", limit)
            self.assertEqual((found, err), (code, ""))
            self.assertRegex(out, rf"\A{word} .* 20 steps, exposed 0\.2000 of the gradient")

    def test_the_default_limit_is_a_fifth(self) -> None:
        write_scaled(self.folder / "a", (2, 1, 1, 1), REDUCED | {"reduce_exposed": 4.9})
        write_scaled(self.folder / "b", (2, 1, 1, 1), REDUCED | {"reduce_exposed": 5.1})

        self.assertEqual(run_command("check", "overlap", self.folder / "a")[0], 0)
        self.assertEqual(run_command("check", "overlap", self.folder / "b")[0], 1)

    def test_warm_up_does_not_count(self) -> None:
        start = write_scaled(self.folder / "a", (2, 1, 1, 1), REDUCED | {"reduce_exposed": 1.0})
        for rank in range(2):
            with h5py.File(start / f"rank_{rank:05d}.h5", "r+") as file:
                file["steps/reduce_exposed_seconds"][:5] = file["steps/reduce_seconds"][:5]
                file["steps/step_seconds"][:5] *= 2

        self.assertEqual(run_command("check", "overlap", self.folder / "a")[0], 0)
        self.assertEqual(run_command("check", "overlap", self.folder / "a", "--skip", 0)[0], 1)

    def test_the_rank_with_the_most_is_named(self) -> None:
        start = write_scaled(self.folder / "a", (2, 1, 1, 1), REDUCED, device="cpu")
        with h5py.File(start / "rank_00001.h5", "r+") as file:
            file["steps/reduce_exposed_seconds"][...] *= 0.5

        _, out, _ = run_command("check", "overlap", self.folder / "a")

        self.assertIn("exposed 0.1500", out)
        self.assertIn("most on rank 0 (d0 t0 p0) of n0: 0.2000", out)

    def test_many_reductions_at_once_hide_nothing(self) -> None:
        """Their sum is 400 ms, but the step has only 36: 5 of 36 are exposed, not 5 of 400."""
        write_scaled(self.folder / "a", (2, 1, 1, 1), REDUCED | {"reduce": 400.0})

        code, out, _ = run_command("check", "overlap", self.folder / "a", "--limit", 0.1)

        self.assertEqual(code, 1)
        self.assertIn(f"exposed {5 / 36:.4f}", out)

    def test_traced_steps_report_how_long_any_was_under_way(self) -> None:
        start = write_scaled(self.folder / "a", (2, 1, 1, 1), REDUCED)
        for rank in range(2):
            with h5py.File(start / f"rank_{rank:05d}.h5", "r+") as file:
                file["events/step"] = np.array([3, 10, 10, 10])
                file["events/name"] = np.array([b"reduce", b"reduce", b"reduce", b"forward"])
                file["events/start_seconds"] = np.array([0.0, 0.010, 0.015, 0.0])
                file["events/end_seconds"] = np.array([1.0, 0.020, 0.030, 1.0])

        _, out, _ = run_command("check", "overlap", self.folder / "a")

        self.assertIn("0.2500 of the time with a reduction in progress on 2 traced", out)

    def test_the_time_with_any_under_way_is_the_whole_if_files_have_it(self) -> None:
        start = write_scaled(self.folder / "a", (2, 1, 1, 1), REDUCED | {"reduce": 400.0})
        for rank, times in enumerate((2, 3)):
            with h5py.File(start / f"rank_{rank:05d}.h5", "r+") as file:
                exposed = file["steps/reduce_exposed_seconds"][()]
                file["steps/reduce_busy_seconds"] = times * exposed

        for limit, code in ((0.41, 0), (0.39, 1)):
            found, out, _ = run_command("check", "overlap", self.folder / "a", "--limit", limit)
            self.assertEqual(found, code)
        self.assertIn("exposed 0.4000 of the time with a gradient reduction in progress", out)
        self.assertIn("most on rank 0 (d0 t0 p0) of n0: 0.5000", out)

    def test_one_rank_without_the_column_is_as_before(self) -> None:
        start = write_scaled(self.folder / "a", (2, 1, 1, 1), REDUCED)
        with h5py.File(start / "rank_00001.h5", "r+") as file:
            file["steps/reduce_busy_seconds"] = np.full(file["steps/step"].size, 10e-3)

        _, out, _ = run_command("check", "overlap", self.folder / "a")

        self.assertIn("exposed 0.2000 of the gradient reductions", out)

    def test_intervals_are_counted_once(self) -> None:
        starts, ends = np.array([5.0, 0.0, 1.0, 1.5]), np.array([6.0, 3.0, 2.0, 4.0])
        self.assertEqual(union_seconds(starts, ends), 5.0)
        self.assertEqual(union_seconds(starts[:0], ends[:0]), 0.0)

    def test_bad_input_is_2(self) -> None:
        self.expect_error("check", "overlap", self.folder / "none", says="no run directory")
        start = write_scaled(self.folder / "a", (1, 1, 1, 1), REDUCED | {"reduce": 0.0})
        self.expect_error("check", "overlap", self.folder / "a", says="no gradient was reduced")
        self.expect_error("check", "overlap", self.folder / "a", "--skip", 25,
                          says="no more than 25 steps")
        (start / "rank_00000.h5").write_bytes(b"torn")
        self.expect_error("check", "overlap", self.folder / "a", says="cannot read")

    def test_a_damaged_start_is_2_and_a_short_one_a_note(self) -> None:
        run = self.folder / "a"
        write_scaled(run, (2, 1, 1, 1), REDUCED)
        short = write_scaled(run, (2, 1, 1, 1), REDUCED, steps=4, start="start_0002")

        code, out, _ = run_command("check", "overlap", run, "--limit", 0.3)

        self.assertEqual(code, 0)
        self.assertIn("note: left out:", out)
        (short / "rank_00001.h5").unlink()
        self.expect_error("check", "overlap", run, "--limit", 0.3, says="rank_00001.h5")

    def test_a_limit_is_a_share(self) -> None:
        for limit in ("1.5", "-0.1", "nan", "x"):
            with self.assertRaises(SystemExit) as ended:
                run_command("check", "overlap", "a", "--limit", limit)
            self.assertEqual(ended.exception.code, 2)


class Idle(CommandTest):
    def write(self) -> Path:
        run = self.folder / "a"
        write_deck(run, train__microbatch=4, parallel__pipeline=4)
        write_scaled(run, (1, 4, 1, 1), PIPELINED)
        return run

    def test_the_limit_parts_0_from_1(self) -> None:
        run = self.write()

        for limit, code in ((0.31, 0), (0.29, 1)):
            found, out, _ = run_command("check", "idle", run, "--limit", limit)
            self.assertEqual(found, code)
            self.assertIn("pipeline idle 0.3000 of the step", out)
            self.assertIn(f"the schedule's own is {3 / (8 + 3):.4f}", out)

    def test_without_a_deck_there_is_no_schedule(self) -> None:
        run = self.write()
        (run / "deck.yaml").unlink()

        code, out, _ = run_command("check", "idle", run, "--limit", 0.31)

        self.assertEqual(code, 0)
        self.assertNotIn("schedule", out)

    def test_bad_input_is_2(self) -> None:
        write_scaled(self.folder / "b", (2, 1, 1, 1), REDUCED)
        self.expect_error("check", "idle", self.folder / "b", "--limit", 0.5,
                          says="one pipeline stage")
        with self.assertRaises(SystemExit) as ended:
            run_command("check", "idle", self.folder / "b")
        self.assertEqual(ended.exception.code, 2)


if __name__ == "__main__":
    unittest.main()
