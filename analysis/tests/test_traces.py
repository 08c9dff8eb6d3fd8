# SPDX-License-Identifier: Apache-2.0
"""Traces, arrivals and timelines of memory, from files with known numbers."""
from __future__ import annotations

import csv
import json
import unittest
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from analysis.arrivals import splits_of
from analysis.memory import Timeline, read, subtitle_of, title_of
from analysis.runs import find_runs
from analysis.tests.commands import CommandTest, cells, run_command
from analysis.tests.fake_runs import write_deck, write_rank
from analysis.trace_plot import ends_of_messages, operations_within, phase_spans
from analysis.traces import read_trace

MIB = 1 << 20
STEPS = 12


def write_table(file: h5py.File, table: str, /, **columns: list[Any]) -> None:
    for column, values in columns.items():
        if values and isinstance(values[0], str):
            file.create_dataset(f"{table}/{column}", data=values, dtype=h5py.string_dtype())
        else:
            file[f"{table}/{column}"] = np.array(values)


def add_group(file: h5py.File, name: str, ranks: list[int], arrival_ms: float,
              seconds_ms: float) -> None:
    for column, value in (("calls", 4), ("bytes", 1024), ("seconds", 1e-3 * seconds_ms),
                          ("exposed_seconds", 0.0), ("arrival_seconds", 1e-3 * arrival_ms)):
        file[f"groups/{name}/{column}"] = np.full(STEPS, value)
    file[f"groups/{name}/arrival_seconds"][0] = np.nan  # before the ranks have met
    file[f"groups/{name}/ranks"] = np.array(ranks)


def write_traced(run: Path, offset: float = 500.0) -> Path:
    """Two ranks, data 2 and then a pipeline's messages. Rank 1, whose clock is `offset` s behind, began 1 ms
    after rank 0 and comes 3 ms late to both sums of step 5, which take 2 ms from then."""
    start = run / "timing" / "start_0001"
    for rank in (0, 1):
        path = write_rank(start, rank, (rank, 0, 0, 0), world_size=2, steps=STEPS)
        with h5py.File(path, "r+") as file:
            late = rank == 1
            add_group(file, "data", [0, 1], 13.0 if late else 10.0, 2.0 if late else 5.0)
            add_group(file, "tensor", [rank], 1.0, 0.0)
            write_table(file, "traced", step=[5], start_seconds=[1000.001 - offset if late else 1000.0],
                        clock_offset_seconds=[offset if late else 0.0],
                        clock_error_seconds=[1e-5 if late else 0.0], lost=[0])
            write_table(file, "events", step=[5, 5, 5], name=["tensor_comm", "forward", "ffn"],
                        stream=["compute"] * 3, microbatch=[0, 0, 0],
                        start_seconds=[0.002, 0.001, 0.001], end_seconds=[0.003, 0.005, 0.002])
            call = 0.012 if late else 0.010  # 13 and 10 ms after rank 0 began
            end = 0.014 if late else 0.015
            write_table(file, "operations", step=[5, 5, 5], group=["data", "data", "pipeline"],
                        operation=["all_reduce", "reduce_scatter", "exchange"], ticket=[3, 4, 9],
                        bytes=[64, 64, 32], microbatch=[-1, -1, 0],
                        call_seconds=[call, call + 0.01, 0.03], wait_seconds=[call, call, 0.03],
                        end_seconds=[end, end + 0.01, 0.04])
            write_table(file, "messages", step=[5], group=["pipeline"], ticket=[9],
                        sends=[0 if late else 1], peer=[0 if late else 1], bytes=[32])
            write_table(file, "lives", step=[5, 5], category=["parameters", "activations"],
                        label=["masters", "blocks.1.mlp.pre"], layer=[-1, 1], slot=[-1, 0],
                        bytes=[(2 + rank) * MIB, MIB], start_seconds=[0.0, 0.01],
                        end_seconds=[0.05, 0.04])
    return start


class Traces(CommandTest):
    def setUp(self) -> None:
        super().setUp()
        self.start = write_traced(self.folder / "a")

    def test_ranks_are_on_one_clock(self) -> None:
        trace = read_trace(find_runs([str(self.folder / "a")])[0])

        self.assertEqual(trace.steps, [5])
        self.assertAlmostEqual(trace.begin(5), 1000.0)
        spans = phase_spans(trace.ranks[1], 5, trace.begin(5))
        self.assertEqual([span[0] for span in spans], ["forward", "tensor"])
        np.testing.assert_allclose([span[1:] for span in spans], [(2.0, 6.0), (3.0, 4.0)], atol=1e-6)
        ends = ends_of_messages(trace, 5)
        self.assertEqual(list(ends), [(0, 1, 0)])
        np.testing.assert_allclose(ends[0, 1, 0], [30.0, 41.0], atol=1e-6)

    def test_operations_of_the_step_before_are_not_drawn(self) -> None:
        with h5py.File(self.start / "rank_00000.h5", "r+") as file:
            file["operations/call_seconds"][:2] = [-0.05, -0.01]
            file["operations/end_seconds"][:2] = [-0.02, 0.015]
        trace = read_trace(find_runs([str(self.folder / "a")])[0])

        self.assertEqual(operations_within(trace.ranks[0], 5), [("data", 0.0, 0.015), ("pipeline", 0.03, 0.04)])

    def test_trace_draws_and_tells_phases_apart(self) -> None:
        code, out, err = run_command("trace", self.folder / "a", "--output", self.output)

        self.assertEqual((code, err), (0, ""))
        self.expect_png(self.output / "trace_5.png", at_least=15_000)
        text = (self.output / "trace_5.txt").read_text(encoding="utf-8")
        self.assertTrue(out.startswith(text), out)
        self.assertIn(str(self.output / "trace_5.txt"), out)
        self.assertEqual(cells(text, "0 (d0 t0 p0)"), ["n0", "3.00", "1.00"])  # 4 ms forward with 1 of tensor inside
        self.assertIn("clocks of hosts agree within 10.0 us", text)

    def test_steps_that_were_not_traced_are_named(self) -> None:
        self.expect_error("trace", self.folder / "a", "--output", self.output, "--step", "6",
                          says="step 6 was not traced; traced were 5")
        write_rank(self.folder / "b" / "timing" / "start_0001", 0, (0, 0, 0, 0), world_size=1)
        self.expect_error("trace", self.folder / "b", "--output", self.output,
                          says="timing.trace_steps=[STEP,...]")

    def test_a_damaged_file_is_named(self) -> None:
        (self.start / "rank_00001.h5").write_bytes(b"no HDF5")
        self.expect_error("trace", self.folder / "a", "--output", self.output, says="rank_00001.h5")

    def test_a_missing_rank_is_named(self) -> None:
        (self.start / "rank_00001.h5").unlink()
        for command in (("trace", self.folder / "a", "--output", self.output),
                        ("arrivals", self.folder / "a")):
            self.expect_error(*command, says="holds 1 of 2 rank_*.h5")


def write_gpus(run: Path) -> Path:
    """The same two ranks as GPUs: times of kernels instead of calls of the host."""
    start = write_traced(run)
    for path in start.glob("*.h5"):
        with h5py.File(path, "r+") as file:
            file.attrs["device"] = "NVIDIA H200"
            file["groups/data/arrival_seconds"][...] = np.nan
            file["operations/wait_seconds"][...] = np.nan
            write_table(file, "kernels", step=[5] * 6,
                        name=["gemm", "gemm", "add", "ncclDevKernel", "copy host to device", "adam"],
                        stream=["compute", "compute", "stream 9", "data", "copy", "compute"],
                        phase=["forward", "forward", "backward", "backward", "data", "optimizer"],
                        component=["ffn"] * 6, microbatch=[0] * 6, bytes=[0, 0, 0, 0, 64, 0],
                        start_seconds=[0.001, 0.003, 0.0045, 0.010, 0.0, 0.020],
                        end_seconds=[0.003, 0.005, 0.006, 0.015, 0.001, 0.021])
    return start


class Gpus(CommandTest):
    def setUp(self) -> None:
        super().setUp()
        self.start = write_gpus(self.folder / "a")

    def test_phases_are_those_of_kernels(self) -> None:
        """Of rank 0: idle 6 to 20 ms; backward counts where forward has ended."""
        code, _, err = run_command("trace", self.folder / "a", "--output", self.output)

        self.assertEqual((code, err), (0, ""))
        self.expect_png(self.output / "trace_5.png", at_least=15_000)
        text = (self.output / "trace_5.txt").read_text(encoding="utf-8")
        header = next(line.split() for line in text.splitlines() if line.startswith("rank"))
        self.assertEqual(header, ["rank", "host", "forward", "backward", "optimizer", "idle"])
        self.assertEqual(cells(text, "0 (d0 t0 p0)"), ["n0", "4.00", "1.00", "1.00", "14.00"])
        self.assertIn("times are those of kernels on the GPUs", text)

    def test_without_cupti_times_are_those_of_the_host(self) -> None:
        for path in self.start.glob("*.h5"):
            with h5py.File(path, "r+") as file:
                del file["kernels"]
        run_command("trace", self.folder / "a", "--output", self.output)

        text = (self.output / "trace_5.txt").read_text(encoding="utf-8")
        self.assertEqual(cells(text, "0 (d0 t0 p0)"), ["n0", "3.00", "1.00"])
        self.assertIn("the host enqueued work: CUPTI was not there", text)

    def test_the_late_rank_is_found_in_traced_steps(self) -> None:
        """Rank 1 comes 3 ms late to both sums."""
        code, out, err = run_command("arrivals", self.folder / "a")

        self.assertEqual((code, err), (0, ""))
        self.assertEqual(cells(out, "0 (d0 t0 p0)"), ["data", "2", "6.000", "4.000", "0"])
        self.assertIn("Slowest: rank 1 (d1 t0 p0) on n0, for which its data group (with rank 0) waits up to 6.00 ms "
                      "of a step, last at 100 % of the collectives.", out)


class Arrivals(CommandTest):
    def setUp(self) -> None:
        super().setUp()
        self.start = write_traced(self.folder / "a")

    def test_the_late_rank_is_named(self) -> None:
        code, out, err = run_command("arrivals", self.folder / "a")

        self.assertEqual((code, err), (0, ""))
        self.assertEqual(cells(out, "0 (d0 t0 p0)"), ["n0", "data", "0.000", "0", "5.000"])
        self.assertEqual(cells(out, "1 (d1 t0 p0)"), ["n0", "data", "3.000", "100", "2.000"])
        self.assertIn("Slowest: rank 1 (d1 t0 p0) on n0, which comes 3.00 ms after the first member to "
                      "the operations of its data group (with rank 0), last in 100 % of the steps.", out)

    def test_waiting_and_transfer_of_traced_steps(self) -> None:
        """Rank 1 came at 13 and 23 ms, rank 0 three before; the sums ended at 15 and 25 ms."""
        splits = splits_of(read_trace(find_runs([str(self.folder / "a")])[0]))

        self.assertEqual([split.rank.rank for split in splits], [0, 1])
        for split, wait, last in zip(splits, (6e-3, 0.0), (0.0, 1.0)):
            self.assertEqual((split.group, split.operations, split.last_share), ("data", 2.0, last))
            self.assertAlmostEqual(split.wait_seconds, wait, places=7)
            self.assertAlmostEqual(split.transfer_seconds, 4e-3, places=7)

    def test_what_no_rank_measured_is_reported(self) -> None:
        for path in self.start.glob("*.h5"):
            with h5py.File(path, "r+") as file:
                file["groups/data/arrival_seconds"][...] = np.nan
                del file["operations"]
        self.expect_error("arrivals", self.folder / "a", says="GPUs in traced ones")

    def test_too_few_steps(self) -> None:
        self.expect_error("arrivals", self.folder / "a", "--skip", STEPS, says="lower --skip")


def life(category: str, label: str, mebibytes: int, start: float, end: float, slot: int = -1,
         layer: int = -1) -> dict[str, Any]:
    return {"category": category, "label": label, "layer": layer, "slot": slot,
            "bytes": mebibytes * MIB, "start_seconds": start, "end_seconds": end}


# In use: 8 parameters and optimizer; 3 and 2 of activations that overlap from 1 to 4 ms; gradients from 2 ms.
LIVES = [life("parameters", "masters", 4, 0.0, 0.010), life("optimizer", "exp_avg", 4, 0.0, 0.010),
         life("activations", "blocks.0.mlp.pre", 3, 0.0005, 0.005, 0, 0),
         life("activations", "blocks.1.mlp.pre", 2, 0.001, 0.004, 0, 1),
         life("activations", "blocks.0.mlp.pre", 3, 0.005, 0.006, 0, 0),
         life("gradients", "gradients", 4, 0.002, 0.010), life("workspace", "logits", 1, 0.0, 0.010)]
HELD = {"parameters": 4 * MIB, "gradients": 4 * MIB, "optimizer": 4 * MIB, "activations": 5 * MIB,
        "workspace": MIB}


class Memory(CommandTest):
    def write(self, name: str, mode: str = "step", context: int = 128,
              lives: list[dict[str, Any]] | None = None, **changes: Any) -> Path:
        spans = [{"name": "forward", "start_seconds": 0.0, "end_seconds": 0.002},
                 {"name": "backward", "start_seconds": 0.002, "end_seconds": 0.006},
                 {"name": "optimizer", "start_seconds": 0.006, "end_seconds": 0.010}]
        rank = {"rank": 0, "held_bytes": HELD, "residual_stream_bytes": MIB // 2, "spans": spans,
                "lives": LIVES if lives is None else lives}
        data = {"format": "hyperslab memory timeline", "format_version": 1, "mode": mode,
                "model": "llama: 2 layers", "context": context, "microbatch": 4, "precision": "fp32",
                "timelines": [rank | {"rank": 1, "lives": LIVES[:1]}, rank]} | changes
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(data), encoding="utf-8")
        return path

    def timeline(self) -> Timeline:
        return read(self.write("a"))

    def test_peaks(self) -> None:
        timeline = self.timeline()

        self.assertEqual(timeline.rank, 0, "the rank that needs most")
        peak, moment = timeline.peak()
        self.assertEqual(peak, 18 * MIB)
        self.assertAlmostEqual(moment, 0.002)
        for category, held in HELD.items():
            self.assertEqual(timeline.peak_of(category), held, category)

    def test_in_use_at_a_moment(self) -> None:
        timeline = self.timeline()
        at = np.array([0.0, 0.0007, 0.003, 0.0045, 0.0055, 0.007])

        np.testing.assert_array_equal(timeline.in_use("activations", at) / MIB, [0, 3, 5, 3, 3, 0])
        np.testing.assert_array_equal(timeline.in_use("gradients", at) / MIB, [0, 0, 4, 4, 4, 4])

    def test_figure_and_tables(self) -> None:
        files = [self.write("a"), self.write("b", "forward", 128, LIVES[:3]),
                 self.write("c", "step", 256, LIVES + [life("activations", "scores", 7, 0.001, 0.003)])]
        code, out, err = run_command("memory", *files, "--output", self.output)

        self.assertEqual((code, err), (0, ""))
        self.expect_png(self.output / "memory.png")
        text = (self.output / "memory.txt").read_text(encoding="utf-8")
        self.assertTrue(out.startswith(text), out)
        self.assertEqual(cells(text, "a")[:7], ["step", "128", "4", "fp32", "0", "18.0", "2.00"])
        self.assertEqual(cells(text, "128"), ["18.0", "11.0"])
        self.assertEqual(cells(text, "256"), ["25.0", "-"])
        self.assertIn("Residual stream: 0.50 MiB", text)
        self.assertRegex(text, r"3\.00  activations +0  mlp\.pre +0\.50 +5\.00")
        with (self.output / "memory.csv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([row["peak_bytes"] for row in rows], [str(18 * MIB), str(11 * MIB), str(25 * MIB)])

    def test_a_run_with_traced_steps(self) -> None:
        write_traced(self.folder / "run")
        timeline = read(self.folder / "run")

        self.assertEqual((timeline.rank, timeline.name), (1, "run step 5"))
        self.assertEqual(timeline.peak()[0], 4 * MIB)

    def test_a_figure_of_a_run_says_what_its_deck_reports_and_nothing_that_is_not_drawn(self) -> None:
        write_traced(self.folder / "run")
        write_deck(self.folder / "run", model__context=64, train__microbatch=4)
        timeline = read(self.folder / "run")

        self.assertEqual(title_of(timeline), "run step 5, rank 1 (step, context 64, microbatch 4, fp32)")
        self.assertEqual(subtitle_of([timeline]), "llama")
        self.assertEqual(subtitle_of([read(self.write("a"))]), "llama: 2 layers; dashed: held by the arenas all the "
                         "time; shaded: forward, backward, optimizer")

    def test_refusals(self) -> None:
        (self.folder / "text.json").write_text("[]", encoding="utf-8")
        (self.folder / "torn.json").write_text("{", encoding="utf-8")
        for path, words in [(self.folder / "text.json", "--memory-timeline FILE.json"),
                            (self.folder / "torn.json", "cannot read"),
                            (self.folder / "nowhere.json", "cannot read"),
                            (self.write("odd", lives=[life("heap", "x", 1, 0.0, 1.0)]), "heap"),
                            (self.write("back", lives=[life("gradients", "x", 1, 1.0, 0.0)]), "damaged"),
                            (self.write("other", timelines=[{"rank": 0}]), "timelines[0].lives is missing"),
                            (self.write("number", timelines=3), "written by this version"),
                            (self.write("none", lives=[]), "no lives")]:
            with self.subTest(path=path.name):
                self.expect_error("memory", path, "--output", self.output, says=words)


if __name__ == "__main__":
    unittest.main()
