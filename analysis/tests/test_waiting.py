# SPDX-License-Identifier: Apache-2.0
"""Waiting for slower ranks stands apart from reductions of gradients, and the parts of a step add up."""
from __future__ import annotations

import json
import unittest
from pathlib import Path

import h5py
import numpy as np

from analysis.runs import find_runs
from analysis.step_time import draw, rank_time
from analysis.style import plt
from analysis.tests.commands import CommandTest, cells, run_command
from analysis.tests.fake_runs import write_deck, write_scaled
from analysis.timings import BUSY, CONTEXT, EXPERT, PARTS, TRAFFIC, WAIT, read_layouts

SHOWN = [name for name in PARTS if name not in (CONTEXT, EXPERT)]  # columns of layouts without such ranks
REDUCED = {"forward": 10.0, "backward": 20.0, "reduce_exposed": 4.0, "reduce": 25.0}


class Waiting(CommandTest):
    def write(self, sizes: tuple[int, int, int, int], parts: dict[str, float], busy_ms: float,
              device: str = "NVIDIA H200", has_wait: bool = True) -> list[Path]:
        """The rank files of a start, with `busy_ms` of reductions in a step that lasts 1.0 times
        `parts`."""
        write_deck(self.folder / "a")
        start = write_scaled(self.folder / "a", sizes, parts, device=device)
        paths = sorted(start.glob("*.h5"))
        for path in paths:
            with h5py.File(path, "r+") as file:
                unit = file["steps/step_seconds"][()] / (1e-3 * (sum(parts.values()) + 1.0
                                                                 - parts.get("reduce", 0.0)))
                file[f"steps/{BUSY}"] = 1e-3 * busy_ms * unit
                if not has_wait:
                    del file[f"steps/{WAIT}"]
        return paths

    def shift(self, path: Path, source: str, target: str, milliseconds: float) -> None:
        """From one part of every step to another."""
        with h5py.File(path, "r+") as file:
            unit = file["steps/step_seconds"][()] / np.median(file["steps/step_seconds"][5:])
            file[f"steps/{source}_seconds"][...] -= 1e-3 * milliseconds * unit
            file[f"steps/{target}_seconds"][...] += 1e-3 * milliseconds * unit

    def late_rank(self, device: str, has_wait: bool = True) -> None:
        """Rank 1 has 3 ms more backward, for which rank 0 waits in the reductions."""
        paths = self.write((2, 1, 1, 1), REDUCED, 20.0, device, has_wait)
        self.shift(paths[1], "reduce_exposed", "backward", 3.0)

    def parts(self) -> list[dict[str, float]]:
        layouts, _ = read_layouts(find_runs([str(self.folder / "a")])[0], 5)
        return [{name: 1e3 * seconds for name, seconds in rank_time(rank).parts.items()}
                for rank in layouts[0].ranks]

    def test_on_gpus_a_late_rank_shows_as_the_others_waiting(self) -> None:
        self.late_rank("NVIDIA H200")

        first, late = self.parts()

        self.assertAlmostEqual(first["wait"], 3.0, places=9)
        self.assertAlmostEqual(late["wait"], 0.0, places=9)
        for part in (first, late):
            self.assertAlmostEqual(part["reduce exposed"], 1.0, places=9)
        _, out, err = run_command("check", "overlap", self.folder / "a")
        self.assertIn("exposed 0.0500 of the time with a gradient reduction in progress", out)
        self.assertIn(f"ranks wait for slower ones {1.5 / 35:.4f} of the step", out)
        self.assertEqual((err, out.count("note:")), ("", 1))

    def test_ranks_of_other_data_groups_have_a_least_of_their_own(self) -> None:
        paths = self.write((2, 2, 1, 1), REDUCED, 20.0)
        self.shift(paths[0], "reduce_exposed", "backward", 3.0)  # of the first stage, as paths[2]

        self.assertEqual([round(part["wait"], 9) for part in self.parts()], [0.0, 0.0, 3.0, 0.0])

    def tie(self, paths: list[Path]) -> None:
        for path in paths:
            with h5py.File(path, "r+") as file:
                for name in TRAFFIC:
                    file[f"groups/tied/{name}"] = np.ones_like(file["steps/step_seconds"][()])
                file["groups/tied"].attrs["size"] = 2

    def test_the_ends_of_a_tied_table_wait_for_each_other(self) -> None:
        paths = self.write((1, 3, 1, 2), REDUCED, 20.0)  # rank 2 * stage + tensor rank
        self.tie([*paths[:2], *paths[4:]])
        self.shift(paths[0], "reduce_exposed", "backward", 3.0)
        self.shift(paths[5], "reduce_exposed", "backward", 2.0)
        self.shift(paths[2], "reduce_exposed", "backward", 3.5)  # has no table, and no peer

        waits = [round(part["wait"], 9) for part in self.parts()]

        self.assertEqual(waits, [0.0, 2.0, 0.0, 0.0, 3.0, 0.0])

    def test_stages_without_a_tied_table_do_not_wait_for_each_other(self) -> None:
        paths = self.write((1, 2, 1, 1), REDUCED, 20.0)
        self.shift(paths[0], "reduce_exposed", "backward", 3.0)

        self.assertEqual([round(part["wait"], 9) for part in self.parts()], [0.0, 0.0])

    def test_what_cpu_ranks_report_stands(self) -> None:
        self.late_rank("cpu")

        self.assertEqual([round(part["reduce exposed"], 9) for part in self.parts()], [4.0, 1.0])

    def test_older_files_load_with_a_note(self) -> None:
        self.late_rank("cpu", has_wait=False)

        code, out, _ = run_command("check", "overlap", self.folder / "a")

        self.assertEqual(code, 0)
        self.assertIn("its files have no wait_seconds; waiting for slower ranks is taken", out)
        self.assertEqual([round(part["wait"], 9) for part in self.parts()], [3.0, 0.0])

    def test_without_reductions_older_files_only_wait(self) -> None:
        self.write((1, 2, 1, 1), REDUCED | {"reduce": 0.0}, 0.0, "cpu", has_wait=False)

        for part in self.parts():
            self.assertEqual((part["reduce exposed"], round(part["wait"], 9)), (0.0, 4.0))

    def test_no_share_is_above_1(self) -> None:
        for has_wait in (True, False):
            with self.subTest(has_wait=has_wait):
                self.folder /= "deeper"
                self.write((2, 1, 1, 1), REDUCED | {"reduce_exposed": 30.0}, 20.0,
                           has_wait=has_wait)

                code, out, _ = run_command("check", "overlap", self.folder / "a")

                self.assertEqual(code, 1)
                self.assertIn("exposed 1.0000 of the time", out)
                self.assertIn("most on rank 0 (d0 t0 p0) of n0: 1.0000", out)

    def test_tables_reports_and_data_have_the_column(self) -> None:
        self.late_rank("NVIDIA H200")

        run_command("time", self.folder / "a", "--output", self.output)
        run_command("report", self.folder / "a", "--output", self.output)

        text = (self.output / "time_per_rank.txt").read_text()
        column = 2 + SHOWN.index(WAIT)  # after host and step
        self.assertEqual(cells(text, "0 (d0 t0 p0)")[column], "3.00")
        row = json.loads((self.output / "scaling.json").read_text())["groups"][0]["rows"][0]
        self.assertAlmostEqual(row["wait_seconds"], 0.0015, places=12)
        self.assertAlmostEqual(row["reduce_exposed_seconds"], 0.001, places=12)
        self.assertIn("wait_seconds", (self.output / "scaling.csv").read_text().splitlines()[0])
        self.assertIn("wait (ms, %)", (self.output / "report.html").read_text())

    def test_waiting_beyond_the_step_is_refused(self) -> None:
        paths = self.write((2, 1, 1, 1), REDUCED, 20.0)
        with h5py.File(paths[1], "r+") as file:
            file[f"steps/{WAIT}"][12] = file["steps/step_seconds"][12]

        self.expect_error("time", self.folder / "a", "--output", self.output,
                          says="the parts of step 13 add up to")


class PartsOfTheMedianStep(CommandTest):
    def write_uneven(self) -> None:
        """Steps of which each has the most of its time elsewhere, so that medians of parts do not
        add up to the median step."""
        start = write_scaled(self.folder / "a", (2, 1, 1, 1), dict.fromkeys(REDUCED, 1.0))
        draws = np.random.default_rng(5)
        for path in start.glob("*.h5"):
            with h5py.File(path, "r+") as file:
                count = file["steps/step"].size
                total = np.zeros(count)
                for name in SHOWN:
                    file[f"steps/{name}"][...] = 1e-3 * draws.lognormal(1.0, 1.0, count)
                    total += file[f"steps/{name}"][()]
                file["steps/step_seconds"][...] = total

    def test_parts_add_up_in_table_and_plot(self) -> None:
        self.write_uneven()
        layouts, _ = read_layouts(find_runs([str(self.folder / "a")])[0], 5)

        figure = draw(layouts)
        run_command("time", self.folder / "a", "--output", self.output, "--skip", 5)

        self.addCleanup(plt.close, figure)
        axes = figure.axes[0]
        tops = [max(bar.get_y() + bar.get_height() for bar in axes.patches
                    if abs(bar.get_x() + bar.get_width() / 2 - (rank - 0.08)) < 0.01)
                for rank in range(2)]
        text = (self.output / "time_per_rank.txt").read_text()
        for rank, steps in enumerate(layouts[0].ranks):
            median = 1e3 * float(np.median(steps.columns["step_seconds"]))
            medians = [1e3 * float(np.median(steps.columns[name])) for name in SHOWN]
            self.assertGreater(abs(sum(medians) / median - 1.0), 0.05)  # what these steps are for
            row = [float(cell) for cell in cells(text, f"{rank} (d{rank} t0 p0)")[1:]]
            self.assertAlmostEqual(row[0], median, delta=0.006)
            self.assertAlmostEqual(sum(row[1:len(SHOWN) + 2]), median, delta=0.06)  # and "other"
            self.assertAlmostEqual(tops[rank], median, places=6)
            self.assertGreater(axes.get_ylim()[1], 1.03 * tops[rank])


if __name__ == "__main__":
    unittest.main()
