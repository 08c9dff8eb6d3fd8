# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
import unittest
from pathlib import Path

import h5py
import numpy as np

from analysis.first_steps import SKIPPED_STEPS
from analysis.learning import smooth
from analysis.runs import find_runs
from analysis.step_time import legend_patches, rank_time, seen_parts
from analysis.tests.commands import CommandTest, cells, run_command
from analysis.tests.fake_runs import metrics_row, write_metrics, write_rank
from analysis.timings import read_layouts, read_rank


class Learning(CommandTest):
    def test_tables_and_plots_of_two_runs(self) -> None:
        write_metrics(self.folder / "a", [metrics_row(step) for step in range(1, 201)])
        write_metrics(self.folder / "b", [metrics_row(step, 6.0) for step in range(1, 101)])

        code, out, _ = run_command("learning", self.folder / "a", self.folder / "b",
                                   "--output", self.output)

        self.assertEqual(code, 0)
        text = (self.output / "learning.txt").read_text()
        self.assertTrue(out.startswith(text), out)
        self.assertEqual([Path(line).name for line in out.removeprefix(text).split()],
                         ["learning_steps.png", "learning_steps.pdf", "learning_steps.svg",
                          "learning_wall.png", "learning_wall.pdf", "learning_wall.svg", "learning.txt"])
        self.expect_png(self.output / "learning_steps.png")
        self.expect_png(self.output / "learning_wall.png")
        self.assertEqual(cells(text, "last step"), ["200", "100"])
        last = [metrics_row(200)["loss"], metrics_row(100, 6.0)["loss"]]
        self.assertEqual(cells(text, "training loss, last"), [f"{loss:.4f}" for loss in last])
        self.assertEqual(cells(text, "validation loss, last")[0],
                         f"{metrics_row(200)['validation_loss']:.4f}")
        self.assertEqual(cells(text, "tokens"), ["102,400", "51,200"])
        self.assertEqual(cells(text, "wall time (s)"), ["22.0", "11.0"])
        self.assertEqual(cells(text, "150 ")[-1], "-")

    def test_spikes_are_counted(self) -> None:
        rows = [metrics_row(step) for step in range(1, 31)]
        rows[9]["spike"], rows[19]["spike"], rows[19]["left_out"] = 7.5, 8.5, 1
        write_metrics(self.folder / "spiky", rows)

        code, _, _ = run_command("learning", self.folder / "spiky", "--output", self.output)

        self.assertEqual(code, 0)
        text = (self.output / "learning.txt").read_text()
        self.assertEqual(cells(text, "spikes  "), ["2"])
        self.assertEqual(cells(text, "spikes left out"), ["1"])

    def test_a_resumed_run_counts_a_repeated_step_once(self) -> None:
        first = [metrics_row(step) for step in range(1, 31)]
        second = [metrics_row(step) | {"loss": 1.0} for step in range(21, 26)]
        write_metrics(self.folder / "a", first + second)

        code, out, _ = run_command("summary", self.folder / "a")

        self.assertEqual(code, 0)
        self.assertIn("step 25,", out)
        self.assertIn("-> 1.0000", out)

    def test_a_line_cut_off_by_the_end_of_the_job_does_not_count(self) -> None:
        write_metrics(self.folder / "a", [metrics_row(1), metrics_row(2)], ending='{"step": 3, "lo')

        code, out, _ = run_command("summary", self.folder / "a")

        self.assertEqual(code, 0)
        self.assertIn("step 2,", out)

    def test_steps_without_a_finite_loss_are_gaps(self) -> None:
        rows = [metrics_row(step) for step in range(1, 11)]
        rows[4]["loss"] = None
        rows[9]["loss"] = None
        write_metrics(self.folder / "a", rows)

        code, _, _ = run_command("learning", self.folder / "a", "--output", self.output)

        self.assertEqual(code, 0)
        text = (self.output / "learning.txt").read_text()
        self.assertEqual(cells(text, "training loss, last"), [f"{metrics_row(9)['loss']:.4f}"])
        self.assertIn("No validation was measured.", text)

    def test_huge_perplexities_are_short(self) -> None:
        write_metrics(self.folder / "a", [metrics_row(1), metrics_row(2) | {"loss": 361.8, "perplexity": 1.3e157}])

        out = run_command("summary", self.folder / "a")[1]

        self.assertIn("-> 361.8000, perplexity 1.3e+157,", out)
        self.assertNotIn("validation", out)

    def test_errors_are_one_line(self) -> None:
        self.expect_error("summary", self.folder / "none", says="no run directory")
        (self.folder / "empty").mkdir()
        self.expect_error("summary", self.folder / "empty", says="metrics.jsonl and timing were looked for there")
        write_metrics(self.folder / "broken", [metrics_row(1)], ending="{oops}\n{}\n")
        self.expect_error("learning", self.folder / "broken", "--output", self.output,
                          says="metrics.jsonl:2: not JSON")
        write_metrics(self.folder / "text", [metrics_row(1) | {"loss": "low"}])
        self.expect_error("summary", self.folder / "text", says="`loss` is not a number")
        write_metrics(self.folder / "good", [metrics_row(1)])
        (self.folder / "file").write_text("")
        self.expect_error("learning", self.folder / "good", "--output", self.folder / "file",
                          says="cannot make the output folder")


    def test_runs_without_loss_or_validation_still_draw(self) -> None:
        bare = [{"step": 1, "loss": None}]
        write_metrics(self.folder / "a", bare)

        code, _, err = run_command("learning", self.folder / "a", "--output", self.output)

        self.assertEqual((code, err), (0, ""))
        self.expect_png(self.output / "learning_wall.png", at_least=5_000)

    def test_smoothing_keeps_means_lines_and_gaps(self) -> None:
        line = np.arange(9.0)
        np.testing.assert_allclose(smooth(line, 3), [0.5, 1, 2, 3, 4, 5, 6, 7, 7.5])
        np.testing.assert_allclose(smooth(line, 1), line)
        gap = smooth(np.array([1.0, np.nan, 3.0]), 3)
        np.testing.assert_array_equal(gap, [1.0, np.nan, 3.0])


class TimePerRank(CommandTest):
    def write_start(self, name: str, slow_rank: int = -1) -> Path:
        start = self.folder / "a" / "timing" / name
        for rank in range(4):
            write_rank(start, rank, (rank // 2, 0, 0, rank % 2),
                       slowdown_ms=3.0 if rank == slow_rank else 0.0)
        return start

    def test_median_step_without_the_first_steps(self) -> None:
        self.write_start("start_0001", slow_rank=2)
        self.write_start("start_0002", slow_rank=2)

        code, out, _ = run_command("time", self.folder / "a", "--output", self.output)

        self.assertEqual(code, 0)
        self.expect_png(self.output / "time_per_rank.png")
        text = (self.output / "time_per_rank.txt").read_text()
        self.assertTrue(out.startswith(text), out)
        self.assertEqual([Path(line).suffix for line in out.removeprefix(text).split()], [".png", ".pdf", ".svg", ".txt"])
        self.assertIn("a (data 2 x tensor 2; start_0001, start_0002): median of 14 steps", text)
        expected = ["n0", "84.00", "1.00", "20.00", "40.00", "5.00", "3.00", "6.00", "2.00",
                    "4.00", "1.00", "0.00", "2.00", "12.00", "0.00", "68.00", "100.0"]
        self.assertEqual(cells(text, "0 (d0 t0 p0)"), expected)
        self.assertIn("Slowest: rank 2 (d1 t0 p0) on n1, 71.00 ms", text)
        self.assertIn("Memory peak: 103.0 MiB on rank 3", text)

    def test_starts_with_different_layouts_stay_apart(self) -> None:
        self.write_start("start_0001")
        write_rank(self.folder / "a/timing/start_0002", 0, (0, 0, 0, 0), world_size=1)

        code, _, _ = run_command("time", self.folder / "a", "--output", self.output)

        self.assertEqual(code, 0)
        text = (self.output / "time_per_rank.txt").read_text()
        self.assertIn("a (data 2 x tensor 2; start_0001)", text)
        self.assertIn("a (one rank; start_0002)", text)

    def test_reductions_under_way_at_once_count_once(self) -> None:
        start = self.write_start("start_0001")
        for path in start.glob("*.h5"):
            with h5py.File(path, "r+") as file:
                step = file["steps/step_seconds"][...]
                file["steps/reduce_seconds"][...] = 2.0 * step
                file["steps/reduce_busy_seconds"] = 0.5 * step
        older = self.write_start("start_0002")
        with h5py.File(older / "rank_00000.h5", "r+") as file:
            file["steps/reduce_seconds"][...] *= 100.0

        for name, expected in (("start_0001", "42.00"), ("start_0002", "84.00")):
            steps = rank_time(read_rank(self.folder / "a/timing" / name / "rank_00000.h5").skip(SKIPPED_STEPS))
            self.assertEqual(f"{1e3 * steps.busy_seconds:.2f}", expected)

        run_command("time", self.folder / "a", "--output", self.output)
        text = (self.output / "time_per_rank.txt").read_text()
        self.assertIn("d, t, p: coordinates on the data, tensor and pipeline axes.", text)

    def test_the_legend_names_what_can_be_seen(self) -> None:
        self.write_start("start_0001")
        layouts = read_layouts(find_runs([str(self.folder / "a")])[0], 2)[0]

        parts = seen_parts(layouts)

        self.assertNotIn("checkpoint", parts)  # lasted no time
        self.assertEqual(parts[0], "data")
        labels = [patch.get_label() for patch in legend_patches(parts, reductions=True)]
        self.assertEqual(labels[:-1], parts[::-1])
        self.assertIn("progress", labels[-1])

    def test_an_unreadable_start_is_left_out_and_named(self) -> None:
        self.write_start("start_0001")
        cut = self.write_start("start_0002") / "rank_00001.h5"
        cut.write_bytes(cut.read_bytes()[:1000])

        code, out, _ = run_command("time", self.folder / "a", "--output", self.output)

        self.assertEqual(code, 0)
        self.assertIn(f"left out: cannot read {cut}", out)
        self.assertIn("start_0001): median of 7 steps",
                      (self.output / "time_per_rank.txt").read_text())

    def test_errors_are_one_line(self) -> None:
        write_metrics(self.folder / "a", [metrics_row(1)])
        self.expect_error("time", self.folder / "a", "--output", self.output, says="timing/start_* with rank_*.h5")
        start = self.write_start("start_0001")
        self.expect_error("time", self.folder / "a", "--output", self.output, "--skip", 12,
                          says="no more than 12 steps")
        (start / "rank_00003.h5").unlink()
        self.expect_error("time", self.folder / "a", "--output", self.output,
                          says="3 of 4 rank_*.h5")


class Entropy(CommandTest):
    def test_bytes_and_tokens(self) -> None:
        text, tokens = self.folder / "text", self.folder / "tokens.bin"
        text.write_bytes(b"aabb" * 100)
        np.array([300, 301, 302, 300], "<u2").tofile(tokens)

        code, out, _ = run_command("entropy", text, "--tokens", tokens)

        self.assertEqual(code, 0)
        self.assertIn(f"{math.log(2):.4f} nats per byte (1.0000 bits), 400 bytes, 2 different", out)
        self.assertIn(f"{1.5 * math.log(2):.4f} nats per token (1.5000 bits), 4 tokens", out)

    def write_llmc(self, tokens: np.ndarray, magic: int = 20240520, version: int = 1, count: int = -1) -> Path:
        header = np.zeros(256, "<i4")
        header[:3] = magic, version, tokens.size if count < 0 else count
        path = self.folder / "tokens.bin"
        path.write_bytes(header.tobytes() + tokens.tobytes())
        return path

    def test_the_header_of_a_token_file_is_no_token(self) -> None:
        tokens = np.array([300, 301, 302, 300])
        expected = f"{1.5 * math.log(2):.4f} nats per token (1.5000 bits), 4 tokens, 3 different"
        narrow = self.write_llmc(tokens.astype("<u2"))
        self.assertIn(expected, run_command("entropy", "--tokens", narrow)[1])
        wide = self.write_llmc(tokens.astype("<u4"), 20240801, 7)
        self.assertIn(expected, run_command("entropy", "--tokens", wide)[1])
        self.assertIn(expected, run_command("entropy", "--tokens", wide, "--dtype", "uint32")[1])
        np.save(self.folder / "tokens.npy", tokens)
        self.assertIn(expected, run_command("entropy", "--tokens", self.folder / "tokens.npy")[1])

    def test_a_header_that_does_not_fit_its_file_is_refused(self) -> None:
        tokens = np.array([300, 301, 302, 300], "<u2")
        for options, says in (({"count": 5}, "version 1 and 5 tokens of uint16, the file has 1032 bytes"),
                              ({"version": 3}, "version 3 and 4 tokens"),
                              ({"magic": 20240801, "version": 7}, "4 tokens of uint32")):
            self.expect_error("entropy", "--tokens", self.write_llmc(tokens, **options), says=says)
        self.expect_error("entropy", "--tokens", self.write_llmc(tokens), "--dtype", "uint32",
                          says="header says uint16, not uint32")
        self.expect_error("entropy", "--tokens", self.write_llmc(tokens[:0]), says="holds no tokens")
        np.save(self.folder / "square.npy", np.zeros((2, 2), "<u2"))
        self.expect_error("entropy", "--tokens", self.folder / "square.npy", says="shape (2, 2)")

    def test_one_symbol_has_no_entropy(self) -> None:
        (self.folder / "text").write_bytes(b"aaaa")

        self.assertIn(": 0.0000 nats", run_command("entropy", self.folder / "text")[1])

    def test_errors_are_one_line(self) -> None:
        self.expect_error("entropy", says="needs a text file")
        self.expect_error("entropy", self.folder / "none", says="no file")
        odd = self.folder / "odd.bin"
        odd.write_bytes(b"abc")
        self.expect_error("entropy", "--tokens", odd, says="not a positive multiple of 2")
        odd.write_bytes(b"\xff" * 8)
        self.expect_error("entropy", "--tokens", odd, "--dtype", "int32", says="no tokens")


if __name__ == "__main__":
    unittest.main()
