# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import csv
import json
import math
import re
import unittest
import xml.etree.ElementTree
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
from matplotlib.axis import Axis
from matplotlib.patches import Rectangle

from analysis.report.plot import draw_group
from analysis.runs import find_runs
from analysis.scaling import STACK, make_groups, read_cases
from analysis.style import Figure, plt
from analysis.tests.commands import CommandTest, cells, run_command
from analysis.tests.fake_runs import (
    metrics_row, write_deck, write_metrics, write_scaled, write_start_deck,
)

# With the 1 ms beyond the parts a median step lasts 100, 60, 30 and 40 ms.
ONE = {"forward": 33.0, "backward": 60.0, "optimizer": 5.0, "data": 1.0}
TWO = {"forward": 17.0, "backward": 33.0, "optimizer": 5.0, "reduce_exposed": 4.0, "reduce": 20.0}
FOUR = {"forward": 8.0, "backward": 14.0, "optimizer": 2.0, "reduce_exposed": 4.0, "data": 1.0}
FOUR_TENSOR = {"forward": 8.0, "backward": 16.0, "tensor_comm": 7.0, "pipeline_comm": 2.0,
               "pipeline_idle": 5.0, "checkpoint": 1.0}


class ReportTest(CommandTest):
    draws = False

    def setUp(self) -> None:
        super().setUp()
        if not self.draws:  # most of a report's time goes there
            for name, stand_in in (("page.draw_group", lambda group: Figure((1.0, 1.0))),
                                   ("page.draw_steps", lambda metrics: Figure((1.0, 1.0))),
                                   ("command.write_pdf", lambda document, path: "")):
                blank = mock.patch(f"analysis.report.{name}", stand_in)
                blank.start()
                self.addCleanup(blank.stop)

    def write(self, name: str, sizes: tuple[int, int, int, int], parts: dict[str, float],
              deck: dict[str, Any] | None = None, **options: Any) -> Path:
        run = self.folder / name
        write_deck(run, parallel__data=sizes[0], **(deck or {}))
        write_scaled(run, sizes, parts, **options)
        return run

    def report(self, *words: object) -> tuple[str, dict[str, Any]]:
        code, out, err = run_command("report", *words, "--output", self.output)
        self.assertEqual((code, err), (0, ""))
        return out, json.loads((self.output / "scaling.json").read_text())

    def strong_runs(self) -> list[Path]:
        return [self.write("one", (1, 1, 1, 1), ONE), self.write("two", (2, 1, 1, 1), TWO),
                self.write("four", (4, 1, 1, 1), FOUR, deck={"parallel__zero": 1}),
                self.write("tensor", (1, 2, 1, 2), FOUR_TENSOR)]

    def assert_row(self, row: dict[str, Any], **expected: float) -> None:
        for key, value in expected.items():
            self.assertAlmostEqual(row[key], value, places=9, msg=key)


class Strong(ReportTest):
    def test_predicted_memory_is_what_runs_record_as_their_peak(self) -> None:
        runs = self.strong_runs()[:2]
        (runs[0] / "plan.txt").write_text("largest       pipeline 0: 9.7 MiB on each of its 2 ranks\n"
                                          "in use        9.3 MiB at most at one time of a step\n", encoding="utf-8")

        self.report(*runs)

        page = (self.output / "report.md").read_text(encoding="utf-8")
        section = page[page.index("## Predicted beside measured"):]
        self.assertIn("9.30", section[:section.index("##", 3)])

    def test_speed_up_and_efficiency_are_exact(self) -> None:
        _, content = self.report(*self.strong_runs())

        self.assertEqual([group["scaling"] for group in content["groups"]], ["strong"])
        rows = {row["run"]: row for row in content["groups"][0]["rows"]}
        self.assertEqual(list(rows), ["one", "two", "tensor", "four"])
        self.assert_row(rows["one"], step_seconds=0.1, speed_up=1.0, efficiency=1.0,
                        tokens_per_second=40960.0, steps=20)
        self.assert_row(rows["two"], step_seconds=0.06, speed_up=100 / 60, efficiency=100 / 120)
        self.assert_row(rows["four"], step_seconds=0.03, speed_up=100 / 30, efficiency=100 / 120)
        self.assert_row(rows["tensor"], step_seconds=0.04, speed_up=2.5, efficiency=0.625,
                        step_seconds_quartile_1=0.036, step_seconds_quartile_3=0.044)
        self.assertEqual([row["is_base"] for row in rows.values()], [True, False, False, False])

    def test_another_base(self) -> None:
        out, content = self.report(*self.strong_runs(), "--base", 4)

        group = content["groups"][0]
        self.assertEqual((group["base_run"], group["base_ranks"]), ("four", 4))
        rows = {row["run"]: row for row in group["rows"]}
        self.assert_row(rows["one"], speed_up=0.3, efficiency=1.2)
        self.assert_row(rows["tensor"], speed_up=0.75, efficiency=0.75)
        self.assertIn("base: 4 ranks (data 4) of four, 30.00 ms per step", out)
        self.assertIn("has an efficiency of 120 %", out)
        self.expect_error("report", self.folder / "one", "--output", self.output, "--base", 3,
                          says="no run has 3 ranks, found 1")

    def test_parts_add_up_to_the_step(self) -> None:
        _, content = self.report(*self.strong_runs())

        rows = {row["run"]: row for row in content["groups"][0]["rows"]}
        for row in rows.values():
            parts = [row[f"{name.replace(' ', '_')}_seconds"] for name in STACK]
            self.assertAlmostEqual(sum(parts), row["step_seconds"], places=12)
        self.assert_row(rows["one"], compute_seconds=0.093, forward_seconds=0.033,
                        optimizer_seconds=0.005, data_seconds=0.001, other_seconds=0.001,
                        skew_seconds=0.0, communication_seconds=0.0)
        self.assert_row(rows["two"], reduce_seconds=0.02, reduce_exposed_seconds=0.004,
                        communication_seconds=0.02, communication_exposed_seconds=0.004)
        self.assert_row(rows["tensor"], tensor_seconds=0.007, pipeline_seconds=0.002,
                        idle_seconds=0.005, checkpoint_seconds=0.001,
                        communication_exposed_seconds=0.009)

    def test_skew_is_what_the_slowest_rank_takes_longer(self) -> None:
        run = self.write("two", (2, 1, 1, 1), TWO)
        path = run / "timing/start_0001/rank_00001.h5"
        with h5py.File(path, "r+") as file:
            for name, factor in (("step_seconds", 66 / 60), ("backward_seconds", 39 / 33)):
                file[f"steps/{name}"][...] *= factor

        _, content = self.report(run)

        row = content["groups"][0]["rows"][0]
        self.assert_row(row, step_seconds=0.066, backward_seconds=0.036, skew_seconds=0.003)

    def test_the_slowest_rank_is_named(self) -> None:
        run = self.write("eight", (2, 2, 1, 2), FOUR, slow=(5, 3.0))

        _, content = self.report(run)

        row = content["groups"][0]["rows"][0]
        self.assertEqual((row["slowest_rank"], row["slowest_place"], row["slowest_host"]),
                         (5, "5 (d1 t1 p0)", "n1"))
        self.assert_row(row, slowest_own_seconds=0.029, slowest_above_median=29 / 26 - 1)

    def test_decks_commits_and_hardware_are_named(self) -> None:
        runs = self.strong_runs()
        write_scaled(runs[1], (2, 1, 1, 1), TWO, commit="fedcba987654")

        out, content = self.report(*runs)

        self.assertEqual(content["deck_differences"], {"parallel.zero": ["0", "0", "1", "0"]})
        self.assertIn("different commits (0123456789ab, fedcba987654)", out)
        html = (self.output / "report.html").read_text()
        for text in ("parallel.zero", "fedcba987654", "NVIDIA H200", "2026-01-02T03:04:05Z"):
            self.assertIn(text, html)


class Traffic(ReportTest):
    def add_traffic(self, run: Path) -> None:
        for path in sorted((run / "timing").glob("*/rank_*.h5")):
            with h5py.File(path, "r+") as file:
                whole = np.ones(file["steps/step"].size)
                file["steps/reduce_busy_seconds"] = 0.25 * file["steps/reduce_seconds"][()]
                groups = ("data", "tied") if file.attrs["rank"] == 0 else ("data",)
                for group in groups:
                    for name, value in (("calls", 5), ("bytes", 3 << 20), ("seconds", 0.02),
                                        ("exposed_seconds", 0.004)):
                        scale = 1 + file.attrs["rank"] if name == "seconds" else 1
                        file[f"groups/{group}/{name}"] = scale * value * whole

    def test_seconds_that_nobody_measured_are_not_there(self) -> None:
        run = self.write("gpus", (2, 1, 1, 1), TWO)
        self.add_traffic(run)
        for path in sorted((run / "timing").glob("*/rank_*.h5")):
            with h5py.File(path, "r+") as file:
                file["groups/data/seconds"][...] = np.nan

        _, content = self.report(run)

        self.assertIsNone(content["groups"][0]["traffic"][0]["groups"]["data"]["seconds"])
        page = (self.output / "report.html").read_text(encoding="utf-8")
        self.assertIn("<td>data</td>\n<td>5.0</td>\n<td>3.00</td>\n<td>-</td>\n<td>4.00</td>", page)

    def test_groups_are_means_over_their_ranks(self) -> None:
        run = self.write("two", (2, 1, 1, 1), TWO, threads=3)
        self.add_traffic(run)

        out, content = self.report(run, self.write("one", (1, 1, 1, 1), ONE))

        layouts = {each["run"]: each["groups"] for each in content["groups"][0]["traffic"]}
        self.assertEqual(layouts["one"], {})
        self.assert_row(layouts["two"]["tied"], calls=5.0, bytes=float(3 << 20), seconds=0.02,
                        exposed_seconds=0.004)
        self.assertAlmostEqual(layouts["two"]["data"]["seconds"], 0.03)
        rows = {row["run"]: row for row in content["groups"][0]["rows"]}
        self.assert_row(rows["two"], reduce_busy_seconds=0.005)
        self.assertIsNone(rows["one"]["reduce_busy_seconds"])
        self.assertEqual((rows["one"]["threads_per_rank"], rows["two"]["threads_per_rank"]),
                         ("", "3"))
        page = (self.output / "report.html").read_text(encoding="utf-8")
        self.assertIn("<td>data</td>\n<td>5.0</td>\n<td>3.00</td>\n<td>30.00</td>\n<td>4.00</td>",
                      page)
        self.assertNotIn("threads per rank (", out)

    def test_other_threads_are_reported_and_not_joined(self) -> None:
        run = self.write("two", (2, 1, 1, 1), TWO, threads=1)
        write_scaled(run, (2, 1, 1, 1), TWO, start="start_0002", threads=2)

        out, content = self.report(run)

        self.assertEqual([row["starts"] for row in content["groups"][0]["rows"]],
                         ["start_0001", "start_0002"])
        self.assertIn("different threads per rank (1, 2)", out)


class Page(ReportTest):
    draws = True

    def test_files_hold_the_same_numbers(self) -> None:
        one = self.write("one", (1, 1, 1, 1), ONE)
        alike = self.write("alike", (1, 1, 1, 1), ONE)
        out, content = self.report(one, alike, self.write("two", (2, 1, 1, 1), TWO))

        self.expect_png(self.output / "scaling.png")
        with open(self.output / "scaling.csv", newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        for row, same in zip(rows, content["groups"][0]["rows"], strict=True):
            self.assertEqual(float(row["speed_up"]), same["speed_up"])
            self.assertEqual(row["devices"], "NVIDIA H200")
        self.assertEqual(cells(out, "two"), ["2", "data", "2", "1", "20", "60.00",
                                             "54.00", "-", "66.00", "68,267", "34,133", "1.667",
                                             "83.3", "-", "100.0", "0.00"])

    def test_bars_are_stacked_up_to_the_step(self) -> None:
        run = find_runs([str(self.write("tensor", (1, 2, 1, 2), FOUR_TENSOR))])[0]
        group = make_groups(read_cases(run, 5)[0], None)[0]

        figure = draw_group(group)

        self.assertEqual(len(figure.axes), 2)
        for axes, top in zip(figure.axes, (40.0, 100.0)):
            bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
            self.assertEqual(len(bars), len(STACK))
            ends = np.cumsum([bar.get_height() for bar in bars])
            np.testing.assert_allclose([bar.get_y() for bar in bars[1:]], ends[:-1], atol=1e-9)
            self.assertAlmostEqual(ends[-1], top, places=9)
        plt.close(figure)

    def test_curves_have_round_ticks_an_ideal_line_and_no_labels_on_them(self) -> None:
        runs = find_runs([str(run) for run in (self.write("one", (1, 1, 1, 1), ONE),
                                               self.write("two", (2, 1, 1, 1), TWO),
                                               self.write("four", (4, 1, 1, 1), FOUR))])
        group = make_groups([case for run in runs for case in read_cases(run, 5)[0]], None)[0]

        figure = draw_group(group)

        rate, speed_up, efficiency = figure.axes[:3]
        self.assertEqual(self.labels(rate.yaxis), ["40k", "50k", "60k", "80k", "100k", "150k"])
        self.assertEqual(self.labels(speed_up.yaxis), ["1", "2", "4"])
        self.assertEqual(list(speed_up.lines[-1].get_ydata()), [1.0, 4.0])
        self.assertEqual(self.labels(speed_up.xaxis), ["1\n1.00", "2\n1.67", "4\n3.33"])
        self.assertEqual(self.labels(efficiency.xaxis), ["1\n100 %", "2\n83 %", "4\n83 %"])
        self.assertEqual([len(axes.texts) for axes in figure.axes[:3]], [0, 0, 0])
        self.assertTrue(all("(log)" in axes.get_title(loc="left") for axes in (rate, speed_up)))
        self.assertEqual(efficiency.get_xlabel(), "ranks (log)\nsecond line: efficiency of the fastest layout")
        texts = [text.get_text() for text in figure.texts]
        self.assertEqual(texts, ["Strong scaling: 1 to 4 ranks, 4,096 tokens per step",
                                 "llama; fp32; NVIDIA H200"])
        plt.close(figure)

    def labels(self, axis: Axis) -> list[str]:
        return [label.get_text() for label in axis.get_ticklabels()]

    def test_the_page_needs_nothing_else(self) -> None:
        odd = self.write("a<b>&", (2, 1, 1, 1), TWO)

        self.report(self.write("one", (1, 1, 1, 1), ONE), odd,
                    self.write("wide", (1, 1, 1, 1), ONE, deck={"model__width": 256}))

        html = (self.output / "report.html").read_text()
        links = re.findall(r'(?:src|href|url)\s*(?:=\s*"|\()\s*([^")]*)', html)
        self.assertTrue(links)
        self.assertEqual([link for link in links if not link.startswith("#")], [])
        self.assertNotRegex(html, r"<script|<link|@import")
        self.assertIn("a&lt;b&gt;&amp;", html)
        self.assertNotIn("a<b>", html)

    def test_the_page_is_well_formed_and_accessible(self) -> None:
        self.report(self.write("one", (1, 1, 1, 1), ONE), self.write("two", (2, 1, 1, 1), TWO),
                    self.write("wide", (1, 1, 1, 1), ONE, deck={"model__width": 256}))

        html = (self.output / "report.html").read_text()
        closed = re.sub(r"(<meta[^>]*)>", r"\1/>", html.removeprefix("<!DOCTYPE html>"))
        root = xml.etree.ElementTree.fromstring(closed)
        self.assertEqual(root.get("lang"), "en")
        drawings = root.findall(".//{http://www.w3.org/2000/svg}svg")
        self.assertEqual([drawing.get("role") for drawing in drawings], ["img", "img"])
        self.assertTrue(all(drawing.get("aria-label") for drawing in drawings))
        tables = root.findall(".//table")
        self.assertEqual(len(tables), 12)  # with the setup and the laws of scaling
        for table in tables:
            self.assertTrue(table.findtext("caption"))
            self.assertTrue(all(cell.get("scope") for cell in table.iter("th")))
        ids = [element.get("id") for element in root.iter() if element.get("id")]
        self.assertEqual(len(ids), len(set(ids)))


class Groups(ReportTest):
    def kinds(self, content: dict[str, Any]) -> list[tuple[str, list[str]]]:
        return [(group["scaling"], [row["run"] for row in group["rows"]])
                for group in content["groups"]]

    def test_weak_scaling_is_recognised(self) -> None:
        one = self.write("one", (1, 1, 1, 1), ONE, tokens=4096)
        two = self.write("two", (2, 1, 1, 1), ONE | {"reduce_exposed": 25.0}, tokens=8192,
                         deck={"train__global_batch": 64})

        out, content = self.report(one, two)

        self.assertEqual(self.kinds(content), [("weak", ["one", "two"])])
        self.assertIn("Weak scaling: 1 to 2 ranks, 4,096 tokens per step and rank", out)
        self.assertIn("4,096 tokens per step and rank", out)
        row = content["groups"][0]["rows"][1]
        self.assert_row(row, step_seconds=0.125, efficiency=0.8, speed_up=1.6)

    def write_batch(self, ranks: int, tokens: int) -> Path:
        return self.write(f"r{ranks}_{tokens}", (ranks, 1, 1, 1), ONE, tokens=tokens,
                          deck={"train__global_batch": tokens // 128})

    def test_strong_runs_of_two_batches_are_no_weak_scaling(self) -> None:
        runs = [self.write_batch(ranks, tokens) for tokens in (4096, 8192) for ranks in (1, 2, 4)]

        out, content = self.report(*runs)

        self.assertEqual(self.kinds(content), [("strong", ["r1_4096", "r2_4096", "r4_4096"]),
                                               ("strong", ["r1_8192", "r2_8192", "r4_8192"])])
        self.assertIn("1. Strong scaling: 1 to 4 ranks, 4,096 tokens per step", out)

    def test_one_run_of_another_batch_is_no_weak_scaling(self) -> None:
        runs = [self.write_batch(ranks, 4096) for ranks in (1, 2, 4)] + [self.write_batch(4, 8192)]

        _, content = self.report(*runs)

        self.assertEqual(self.kinds(content), [("strong", ["r1_4096", "r2_4096", "r4_4096"]),
                                               ("single", ["r4_8192"])])

    def test_weak_runs_beside_strong_ones_share_the_first(self) -> None:
        runs = [self.write_batch(ranks, 4096) for ranks in (1, 2)] + [self.write_batch(2, 8192)]

        out, content = self.report(*runs)

        self.assertEqual(self.kinds(content), [("strong", ["r1_4096", "r2_4096"]),
                                               ("weak", ["r1_4096", "r2_8192"])])
        self.assertNotIn("is not compared", out)

    def test_other_batches_models_sequences_and_devices_stay_apart(self) -> None:
        one = self.write("one", (1, 1, 1, 1), ONE)
        others = {
            "batch": ({"train__global_batch": 96}, {"tokens": 12288}, "global_batch 32 against 96"),
            "model": ({"model__width": 256}, {}, "model.width 192 against 256"),
            "sequence": ({"model__context": 64}, {"tokens": 2048}, "model.context 128 against 64"),
            "precision": ({"precision__compute": "bf16"}, {}, "fp32 against bf16"),
            "device": ({}, {"device": "cpu"}, "device NVIDIA H200 against cpu"),
        }
        for name, (deck, options, reason) in others.items():
            with self.subTest(name):
                other = self.write(name, (2, 1, 1, 1), TWO, deck=deck, **options)

                out, content = self.report(one, other)

                self.assertEqual(self.kinds(content), [("single", ["one"]), ("single", [name])])
                self.assertRegex(out, f"group 2 is not compared with group 1: .*{reason}")

    def test_a_base_that_a_group_lacks_is_reported(self) -> None:
        runs = [self.write("two", (2, 1, 1, 1), TWO), self.write("four", (4, 1, 1, 1), FOUR),
                self.write("wide", (1, 1, 1, 1), ONE, deck={"model__width": 256})]

        out, _ = self.report(*runs, "--base", 2)

        self.assertIn("group 2 has no run of 2 ranks; its base has 1", out)

    def test_learning_rates_and_names_do_not_part_runs(self) -> None:
        one = self.write("one", (1, 1, 1, 1), ONE)
        two = self.write("two", (2, 1, 1, 1), TWO,
                         deck={"optimizer__lr": 0.1, "run__name": "two", "train__steps": 9,
                               "model__bos_token": 0})

        _, content = self.report(one, two)

        self.assertEqual(self.kinds(content), [("strong", ["one", "two"])])
        self.assertEqual(content["deck_differences"],
                         {"optimizer.lr": ["0.002", "0.1"], "train.steps": ["400", "9"],
                          "model.bos_token": ["-", "0"]})

    def test_starts_of_one_run_with_other_layouts_are_compared(self) -> None:
        run = self.write("run", (1, 1, 1, 1), ONE)
        write_scaled(run, (2, 1, 1, 1), TWO, start="start_0002")
        write_scaled(run, (2, 1, 1, 1), TWO, start="start_0003", host="far")

        out, content = self.report(run)

        rows = content["groups"][0]["rows"]
        self.assertEqual([(row["starts"], row["steps"]) for row in rows],
                         [("start_0001", 20), ("start_0002 start_0003", 40)])
        self.assertEqual(rows[1]["hosts"], "n0, far")
        self.assertIn("deck.yaml is of the run's newest start, not of start_0001", out)

    def test_starts_have_decks_of_their_own(self) -> None:
        run = self.write("run", (1, 1, 1, 1), ONE)
        write_start_deck(run, 1, memory__recompute="full", optimizer__lr=0.1)
        write_start_deck(run, 2, memory__recompute="none", optimizer__lr=0.1)
        write_scaled(run, (1, 1, 1, 1), TWO, start="start_0002")

        out, content = self.report(run)

        self.assertEqual([group["rows"][0]["starts"] for group in content["groups"]],
                         ["start_0001", "start_0002"])
        self.assertEqual(content["deck_differences"], {"memory.recompute": ["full", "none"]})
        self.assertEqual(list(content["decks"]), ["run/start_0001", "run/start_0002"])
        self.assertNotIn("deck.yaml is of the run's newest start", out)
        self.assertIn("group 2 is not compared with group 1: memory.recompute full against none", out)

    def test_the_timing_files_count_if_the_deck_says_otherwise(self) -> None:
        run = self.write("one", (1, 1, 1, 1), ONE, tokens=8192)

        out, content = self.report(run)

        self.assertEqual(content["groups"][0]["rows"][0]["tokens_per_step"], 8192)
        self.assertIn("8,192 tokens in the timing files and 4,096 in deck.yaml", out)


class Metrics(ReportTest):
    def test_utilization_and_a_rate_that_disagrees(self) -> None:
        run = self.write("one", (1, 1, 1, 1), ONE)
        write_metrics(run, [metrics_row(step) | {"mfu": 0.5 if step > 5 else 0.0,
                                                 "tokens_per_second": 50000.0}
                            for step in range(1, 26)])

        out, content = self.report(run)

        self.assertEqual(content["groups"][0]["rows"][0]["mfu"], 0.5)
        self.assertIn("metrics.jsonl says 50,000 tokens/s, the timing files 40,960", out)

    def test_utilization_of_each_start_is_of_its_own_steps(self) -> None:
        run = self.write("one", (1, 1, 1, 1), ONE, device="cpu", steps=40)
        write_scaled(run, (2, 1, 1, 1), TWO, start="start_0002", steps=30, device="cpu")
        for rank in (0, 1):  # it went on after step 20: start_0001 did 21 to 40 in vain
            with h5py.File(run / f"timing/start_0002/rank_{rank:05d}.h5", "r+") as file:
                file["steps/step"][...] += 20
        write_metrics(run, [metrics_row(step) | {"mfu": 0.5 if step <= 20 else 0.25, "tokens_per_second": 68000.0}
                            for step in range(1, 51)])

        out, content = self.report(run)

        self.assertEqual([row["mfu"] for row in content["groups"][0]["rows"]], [0.5, 0.25])
        reported = "MFU on CPUs is a share of the rate that each start measured"
        self.assertIn(reported, out)
        page = (self.output / "report.html").read_text(encoding="utf-8")
        self.assertIn(reported, page)
        self.assertIn("<p>2 layouts of 1 run in 1 group; only runs", page)

    def test_utilization_of_a_start_that_was_done_again_is_unknown(self) -> None:
        run = self.write("one", (1, 1, 1, 1), ONE)
        write_scaled(run, (2, 1, 1, 1), TWO, start="start_0002")
        write_metrics(run, [metrics_row(step) | {"mfu": 0.25, "tokens_per_second": 68000.0}
                            for step in range(1, 26)])

        _, content = self.report(run)

        self.assertEqual([row["mfu"] for row in content["groups"][0]["rows"]], [None, 0.25])

    def test_utilization_of_a_start_whose_rate_was_wrong_is_unknown(self) -> None:
        run = self.write("one", (1, 1, 1, 1), ONE)
        write_metrics(run, [metrics_row(step) | {"mfu": 0.9 if step < 25 else None, "tokens_per_second": 41000.0}
                            for step in range(1, 26)])

        _, content = self.report(run)

        self.assertIsNone(content["groups"][0]["rows"][0]["mfu"])

    def test_a_rate_that_agrees_is_no_note(self) -> None:
        run = self.write("one", (1, 1, 1, 1), ONE)
        write_metrics(run, [metrics_row(step) | {"tokens_per_second": 41000.0}
                            for step in range(1, 26)])

        _, content = self.report(run)

        self.assertEqual(content["notes"], [])
        self.assertIsNone(content["groups"][0]["rows"][0]["mfu"])


class Damage(ReportTest):
    def rank(self, run: Path, rank: int) -> Path:
        return run / f"timing/start_0001/rank_{rank:05d}.h5"

    def expect_report_error(self, run: Path, says: str) -> None:
        self.expect_error("report", run, "--output", self.output, says=says)

    def test_missing_ranks_are_named(self) -> None:
        run = self.write("four", (4, 1, 1, 1), FOUR)
        self.rank(run, 1).unlink()
        self.rank(run, 3).unlink()
        self.expect_report_error(run, "2 of 4 rank_*.h5; copy the others there: rank_00001.h5, "
                                      "rank_00003.h5")

    def test_torn_files_are_named(self) -> None:
        run = self.write("four", (4, 1, 1, 1), FOUR)
        for rank in (0, 2):
            self.rank(run, rank).write_bytes(self.rank(run, rank).read_bytes()[:1000])
        self.expect_report_error(run, f"cannot read {self.rank(run, 0)}")
        self.expect_report_error(run, "(nor is rank_00002.h5 whole)")

    def test_rows_that_were_not_written_are_no_data(self) -> None:
        run = self.write("one", (1, 1, 1, 1), ONE)
        for column, value, says in (("step", 0.0, "step 0 follows step 19"),
                                    ("forward_seconds", math.nan, "forward_seconds is nan"),
                                    ("data_seconds", -1.0, "data_seconds is -1.0 in row 19")):
            with self.subTest(column):
                write_scaled(run, (1, 1, 1, 1), ONE)
                with h5py.File(self.rank(run, 0), "r+") as file:
                    kept = file[f"steps/{column}"][...].astype(np.float64)
                    kept[19] = value
                    del file[f"steps/{column}"]
                    file[f"steps/{column}"] = kept
                self.expect_report_error(run, says)

    def test_parts_that_do_not_fit_into_the_step(self) -> None:
        run = self.write("one", (1, 1, 1, 1), ONE)
        with h5py.File(self.rank(run, 0), "r+") as file:
            file["steps/forward_seconds"][12] += 3e-3
        self.expect_report_error(run, "the parts of step 13 add up to 102.000 ms, the step lasted "
                                      "100.000 ms")

    def test_files_of_another_start(self) -> None:
        run = self.write("two", (2, 1, 1, 1), TWO)
        with h5py.File(self.rank(run, 1), "r+") as file:
            file.attrs["data"] = 0
        self.expect_report_error(run, "the coordinates of its 2 ranks fill no layout")

    def test_a_rank_that_ended_earlier_is_a_note(self) -> None:
        run = self.write("two", (2, 1, 1, 1), TWO)
        with h5py.File(self.rank(run, 1), "r+") as file:
            for name in list(file["steps"]):
                kept = file[f"steps/{name}"][:15]
                del file[f"steps/{name}"]
                file[f"steps/{name}"] = kept

        out, content = self.report(run)

        self.assertEqual(content["groups"][0]["rows"][0]["steps"], 10)
        self.assertIn("only the 15 steps that all ranks have, of 25; short: rank_00001.h5", out)

    def test_a_damaged_start_beside_a_whole_one_is_a_note(self) -> None:
        run = self.write("two", (2, 1, 1, 1), TWO)
        write_scaled(run, (2, 1, 1, 1), TWO, start="start_0002")
        self.rank(run, 1).unlink()

        out, content = self.report(run)

        self.assertEqual(content["groups"][0]["rows"][0]["starts"], "start_0002")
        self.assertRegex(out, r"note: left out: .*start_0001 holds 1 of 2 .*rank_00001\.h5")

    def test_only_seconds_of_groups_may_be_missing(self) -> None:
        for name in ("groups/data/calls", "steps/forward_seconds"):
            with self.subTest(name=name):
                run = self.write(name.replace("/", "_"), (1, 1, 1, 1), ONE)
                with h5py.File(self.rank(run, 0), "r+") as file:
                    steps = file["steps/step"].size
                    for column in ("calls", "bytes", "seconds", "exposed_seconds"):
                        file[f"groups/data/{column}"] = np.ones(steps)
                    file[name][...] = np.nan * np.ones(steps)
                self.expect_report_error(run, "is nan in row 0, expected a number")

    def test_decks(self) -> None:
        run = self.folder / "run"
        write_scaled(run, (1, 1, 1, 1), ONE)
        self.expect_report_error(run, "deck.yaml is missing")
        for text, says in (("run:\n  - a\n", "deck.yaml:2: expected"), ("a: 1\n", "in no section"),
                           ("", "is empty"), ("run:\n  name: a\n", "train.global_batch is ``")):
            (run / "deck.yaml").write_text(text)
            self.expect_report_error(run, says)


if __name__ == "__main__":
    unittest.main()
