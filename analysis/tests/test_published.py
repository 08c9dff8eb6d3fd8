# SPDX-License-Identifier: Apache-2.0
"""Published measurements beside predictions."""
from __future__ import annotations

import csv
import json
import math
import stat
import unittest
from dataclasses import replace
from pathlib import Path

from analysis.errors import UserError
from analysis.plan_runs import Prediction, as_gpu, deck_text, machine_text, read_machine
from analysis.published import CURVE, ROWS, error_of, fit_factor, fit_sources, kendall_tau, rankings, source_cells
from analysis.published_rows import (COLUMNS, Row, flops_per_token, matrix_parameters, read_curve, read_rows, seconds_of,
                                     value_of)
from analysis.tests.commands import CommandTest, cells, run_command

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED, RECORDED = (ROOT / path for path in ROWS)
# A `hyperslab plan` whose step takes a microsecond per sample and tensor rank.
PROGRAM = """\
#!/usr/bin/env python3
import json, re, sys
words = sys.argv[1:]
deck = open(words[1]).read()
machine = json.load(open(words[words.index("--machine") + 1]))
if machine["ranks_per_node"] == 3:
    sys.exit("hyperslab: there are no nodes of 3")
number = lambda key: int(re.search(key + r": (\\d+)", deck)[1])
plan = {"step_seconds": 1e-6 * number("global_batch") * number("tensor"), "memory_bytes": 2**30}
json.dump(plan, open(words[words.index("--json") + 1], "w"))
"""


def rows_of(path: Path) -> dict[int, Row]:
    return {row.number: row for row in read_rows([path])}


class Tables(unittest.TestCase):
    def test_published_rows_are_those_of_their_sources(self) -> None:
        rows = rows_of(PUBLISHED)

        self.assertEqual(sorted(rows), list(range(1, 75)))
        self.assertEqual((rows[7].model, rows[7].gpus, rows[7].tensor, rows[7].pipeline, rows[7].measured),
                         ("GPT 177B", 2304, 8, 6, 432.8))
        self.assertEqual((rows[11].source, rows[11].gpus, rows[11].data, rows[11].global_batch * rows[11].context),
                         ("Llama 3 paper", 16384, 128, 2048 * 8192))
        self.assertEqual((rows[40].gpu, rows[40].gpus_per_node, rows[40].tensor, rows[40].data, rows[40].measured),
                         ("H200", 4, 2, 2, 6495))
        self.assertEqual((rows[54].microbatch, rows[54].global_batch, rows[54].recompute, rows[54].measured),
                         (8, 2048, "full", 1039))
        self.assertEqual((rows[68].pipeline, rows[68].virtual_stages, rows[68].precision, rows[68].measured),
                         (35, 3, "fp16", 49.05))

    def test_rows_that_cannot_be_expressed_say_why(self) -> None:
        rows = rows_of(PUBLISHED)
        modelled = [number for number, row in rows.items() if row.is_modelled]

        self.assertEqual(modelled, [*range(1, 12), *range(35, 57), *range(66, 75)])
        for row in rows.values():
            reasons = {"FP8": row.precision == "fp8", "experts": row.expert_parallel > 1,
                       "context parallelism": row.context_parallel > 1}
            self.assertEqual(row.not_modelled, "; ".join(reason for reason, holds in reasons.items() if holds), row)

    def test_sharded_parameters_and_what_is_assumed(self) -> None:
        rows = rows_of(PUBLISHED)

        self.assertEqual({row.source for row in rows.values() if row.is_modelled and row.sharding == "full"},
                         {"KempnerForge", "llm-foundry", "torchtitan"})
        self.assertIn("zero: 3", deck_text(rows[49]))
        self.assertIn("zero: 0", deck_text(rows[35]))
        self.assertEqual(rows[3].assumed.split(), ["tied", "microbatch", "recompute", "sharding", "sequence"])
        self.assertEqual([number for number, row in rows.items() if row.is_modelled and row.is_open],
                         [*range(1, 12), 35, 36])

    def test_recorded_layouts_are_one_model_on_two_counts_of_gpus(self) -> None:
        rows = list(rows_of(RECORDED).values())

        self.assertEqual(len(rows), 19)
        self.assertEqual({(row.model, row.gpus) for row in rows}, {("Llama 3 8B", 4), ("Llama 3 8B", 8)})
        self.assertEqual({row.gpus: sum(row.gpus == each.gpus for each in rows) for row in rows}, {4: 13, 8: 6})

    def test_the_curve_varies_its_row(self) -> None:
        points = read_curve(ROOT / CURVE)
        row = rows_of(PUBLISHED)[7]

        self.assertEqual([point.gpus for point in points], [96, 144, 288, 576, 1152, 2304, 3072, 4608])
        for point in points:
            self.assertEqual(point.gpus, point.data * row.tensor * row.pipeline)
            self.assertEqual(row.global_batch % (point.data * row.pipeline), 0)
            self.assertAlmostEqual(1e-3 * point.tflops_per_gpu * point.gpus / point.pflops, 1.0, delta=0.01)


class Flops(unittest.TestCase):
    def test_parameters_of_matrix_products(self) -> None:
        rows = rows_of(PUBLISHED)

        # 4 w^2 of attention and 8 w^2 of the feed-forward layer in each block, and the head.
        self.assertEqual(matrix_parameters(rows[7]), 96 * 12 * 12288**2 + 131072 * 12288)
        # 8 of 32 heads for keys and values; gate, up and down.
        self.assertEqual(matrix_parameters(rows[74]), 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 128256 * 4096)

    def test_conventions_give_what_sources_print(self) -> None:
        rows = rows_of(PUBLISHED)

        # Rows of tokens/s of which the source prints TFLOP/s too.
        for number, convention, tflops in ((13, "full", 776), (17, "full", 736), (18, "full", 750), (21, "full", 554),
                                           (22, "full", 678), (23, "causal", 744)):
            row = rows[number]
            self.assertEqual(row.convention, convention)
            self.assertAlmostEqual(1e-12 * row.measured * flops_per_token(row, convention), tflops, delta=0.002 * tflops)

    def test_causal_attention_is_half(self) -> None:
        row = rows_of(PUBLISHED)[74]

        weights = 6 * matrix_parameters(row)
        self.assertEqual(flops_per_token(row, "full") - weights, 12 * 32 * 4096 * 4096)
        self.assertEqual(flops_per_token(row, "causal") - weights, 6 * 32 * 4096 * 4096)

    def test_values_and_seconds_are_inverse(self) -> None:
        rows = rows_of(PUBLISHED)

        self.assertAlmostEqual(value_of(rows[74], 16 * 4096 / 8 / 11236), 11236)
        self.assertEqual(value_of(rows[41], 1.5), 1.5)
        for number in (1, 35, 41):
            self.assertAlmostEqual(value_of(rows[number], seconds_of(rows[number])), rows[number].measured)


class Fits(unittest.TestCase):
    def setUp(self) -> None:
        row = rows_of(PUBLISHED)[74]
        self.rows = [replace(row, number=number) for number in range(1, 6)]

    def predictions(self, *speeds: float) -> list[Prediction]:
        """Of rows that were measured at so many times the predicted speed."""
        return [Prediction(row, speed * seconds_of(row), 1.0) for row, speed in zip(self.rows, speeds)]

    def test_factor_is_the_median_in_logarithms(self) -> None:
        self.assertAlmostEqual(fit_factor(self.predictions(0.5, 0.8, 3.0)), 0.8)
        self.assertAlmostEqual(fit_factor(self.predictions(0.5, 2.0)), 1.0)
        self.assertAlmostEqual(fit_factor(self.predictions(1.0)), 1.0)

    def test_errors_are_of_the_predicted_value(self) -> None:
        fit, = fit_sources(self.predictions(0.8, 0.8, 1.0))

        self.assertEqual(fit.source, "Hyperslab")
        for error, expected in zip(fit.errors, (0.0, 0.0, -0.2)):
            self.assertAlmostEqual(error, expected)
        self.assertAlmostEqual(fit.median_error, 0.0)
        self.assertAlmostEqual(fit.largest_error, 0.2)

    def test_open_rows_are_told_apart(self) -> None:
        one, two, three = self.predictions(0.5, 1.0, 1.0)

        fit, = fit_sources([replace(one, row=replace(one.row, assumed="tied recompute")), two,
                            replace(three, row=replace(three.row, assumed="tied"))])

        self.assertAlmostEqual(fit.largest_error, 1.0)
        self.assertEqual(fit.described_errors, [0.0, 0.0])
        self.assertEqual(source_cells(fit)[-2:], ["2", "0.0 %"])

    def test_error_of_seconds(self) -> None:
        row = replace(self.rows[0], unit="step_seconds", measured=2.0)

        # Twice as fast as predicted: 3 s become 1.5 s, a quarter too few.
        self.assertAlmostEqual(error_of(Prediction(row, 3.0, 1.0), 2.0), -0.25)

    def test_each_source_has_a_factor(self) -> None:
        one, other = self.predictions(0.5, 2.0)

        fits = fit_sources([one, replace(other, row=replace(other.row, source="other"))])

        self.assertEqual([(fit.source, round(fit.factor, 9)) for fit in fits], [("Hyperslab", 0.5), ("other", 2.0)])

    def test_tau(self) -> None:
        self.assertEqual(kendall_tau([1, 2, 3, 4], [10, 20, 30, 40]), 1.0)
        self.assertEqual(kendall_tau([1, 2, 3, 4], [4, 3, 2, 1]), -1.0)
        self.assertAlmostEqual(kendall_tau([1, 2, 3, 4], [1, 2, 4, 3]), 4 / 6)
        self.assertAlmostEqual(kendall_tau([1, 2, 3], [1, 1, 2]), 2 / 3)

    def test_rankings_need_four_layouts(self) -> None:
        rows = [replace(row, measured=1000.0 * row.number) for row in self.rows]
        found = [Prediction(row, 1.0 / row.number, 1.0) for row in rows]

        self.assertEqual([(each.name, each.layouts, each.tau) for each in rankings(found[:4])],
                         [("Hyperslab, Llama 3 8B, 8 GPUs", 4, 1.0)])
        self.assertEqual(rankings(found[:3]), [])
        on_four = [*found[:3], *(replace(each, row=replace(each.row, gpus=4, data=4)) for each in found[3:])]
        self.assertEqual([each.name for each in rankings(on_four)], ["Hyperslab, Llama 3 8B, by GPU, 4 to 8 GPUs"])


class Command(CommandTest):
    def setUp(self) -> None:
        super().setUp()
        self.machine = self.folder / "machine.json"
        self.machine.write_text(json.dumps({"format": "hyperslab machine", "name": "made up", "ranks_per_node": 1}))
        self.binary = self.folder / "hyperslab"
        self.binary.write_text(PROGRAM, encoding="utf-8")
        self.binary.chmod(self.binary.stat().st_mode | stat.S_IXUSR)

    def words(self, *more: object) -> list[object]:
        return ["published", "--machine", self.machine, "--binary", self.binary, *more]

    def table(self, numbers: set[int], **changes: str) -> Path:
        with PUBLISHED.open(encoding="utf-8", newline="") as file:
            rows = [{**row, **changes} for row in csv.DictReader(file) if int(row["number"]) in numbers]
        path = self.folder / "rows.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(COLUMNS))
            writer.writeheader()
            writer.writerows(rows)
        return path

    def test_tables_files_and_plot(self) -> None:
        code, out, err = run_command(*self.words("--output", self.output))

        self.assertEqual((code, err), (0, ""))
        self.assertEqual(cells(out, "torchtitan")[0], "2")
        self.assertEqual(cells(out, "Hyperslab, Llama 3 8B, 4 GPUs")[0], "13")
        self.expect_png(self.output / "strong_scaling.png")
        with (self.output / "published.csv").open(encoding="utf-8", newline="") as file:
            rows = {int(row["number"]): row for row in csv.DictReader(file)}
        self.assertEqual(len(rows), 42 + 19)
        self.assertAlmostEqual(float(rows[41]["predicted_step_seconds"]), 1e-6 * 16 * 4)
        text = (self.output / "published.md").read_text(encoding="utf-8")
        self.assertIn("| FP8; context parallelism | 16 25 26 30 31 32 33 34 |", text)
        self.assertIn("45 GB/s a GPU between nodes", text)

    def test_rows_of_another_table_have_no_curve(self) -> None:
        code, out, err = run_command(*self.words("--rows", self.table({35}), "--output", self.output))

        self.assertEqual((code, err), (0, ""))
        self.assertEqual(cells(out, "KempnerForge")[2:4], ["0.0", "%"])
        self.assertFalse((self.output / "strong_scaling.png").exists())

    def test_the_machine_file_gets_network_and_nodes(self) -> None:
        changed = json.loads(machine_text(read_machine(self.machine, 45.0), "H100", 4))

        self.assertEqual((changed["ranks_per_node"], changed["network_bytes_per_second"]), (4, 45e9))
        self.assertEqual(changed["name"], "made up")

    def test_other_gpus_take_longer_by_their_data_sheets(self) -> None:
        content = {"name": "NVIDIA H200", "peak_flops": {"bf16": 989e12}, "sustained_flops": {"bf16": 600e12},
                   "ops": {"bf16": [["product", "bf16", 1e12, 1e9, 2.0, 1, 8, 8], ["add", "bf16", 1e6, 1e9, 2.0, 1, 8, 8]]},
                   "collectives": [["data", "all_reduce", 2, 1024, 3.0]]}

        self.assertEqual(as_gpu(content, "H200"), content)
        h100 = as_gpu(content, "H100")
        self.assertEqual([row[4] for row in h100["ops"]["bf16"]], [2.0, 2.0 * 4.8 / 3.35])
        self.assertEqual(h100["collectives"], content["collectives"])
        a100 = as_gpu(content, "A100")
        self.assertAlmostEqual(a100["ops"]["bf16"][0][4], 2.0 * 989 / 312)
        self.assertAlmostEqual(a100["peak_flops"]["bf16"], 312e12, delta=1e3)
        self.assertEqual(a100["collectives"][0][4], 4.5)

    def test_missing_files_are_reported(self) -> None:
        absent = self.folder / "absent"
        self.expect_error("published", "--binary", self.binary, "--machine", absent, says="cannot read the machine file")
        self.expect_error("published", "--machine", self.machine, "--binary", absent, says="jobs/build.sh")
        self.expect_error(*self.words("--rows", absent), says="cannot read")
        for text in ("{", "[]", "{}"):
            self.machine.write_text(text)
            self.expect_error(*self.words(), says="no machine file")

    def test_wrong_rows_are_reported(self) -> None:
        for changes, says in (({"family": "bert"}, "family 'bert' is not one of gpt2, llama"),
                              ({"gpus": "7"}, "is 1, gpus is 7"), ({"microbatch": "5"}, "no multiple"),
                              ({"measured": "-1"}, "measured -1 is not above 0"), ({"layers": "many"}, "not a number"),
                              ({"unit": "tflops_per_gpu"}, "need a convention"), ({"tied": "yes"}, "not true or false"),
                              ({"assumed": "luck"}, "no column 'luck'"), ({"not_modelled": "FP8"}, "no row is modelled")):
            with self.subTest(says=says):
                self.expect_error(*self.words("--rows", self.table({35}, **changes)), says=says)
        twice = self.table({35})
        self.expect_error(*self.words("--rows", twice, twice), says="there are two rows 35")
        (self.folder / "rows.csv").write_text("number\n1\n")
        self.expect_error(*self.words("--rows", self.folder / "rows.csv"), says="no column 'source'")

    def test_what_the_program_says_is_reported(self) -> None:
        self.expect_error(*self.words("--rows", self.table({35}, gpus_per_node="3")), says="there are no nodes of 3")
        self.binary.write_text("#!/bin/sh\n", encoding="utf-8")
        self.expect_error(*self.words("--rows", self.table({35})), says="predicts no step_seconds")

    def test_rows_are_read_once_each(self) -> None:
        with self.assertRaises(UserError):
            read_rows([PUBLISHED, PUBLISHED])
        self.assertEqual(len(read_rows([PUBLISHED, RECORDED])), 93)
        self.assertTrue(all(math.isfinite(seconds_of(row)) for row in read_rows([RECORDED])))
