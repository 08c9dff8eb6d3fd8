# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import csv
import json
import math
import unittest
from pathlib import Path
from typing import Any

import numpy as np

from analysis.divergence import has_diverged
from analysis.learning import PANELS, draw, draw_panel, legend_handles, panel_limits
from analysis.norms import legend_handles as norms_legend, looks_of
from analysis.runs import Metrics, Run
from analysis.style import FORMATS, plt
from analysis.subject import Machine, parameter_count, subject_text
from analysis.tests.commands import CommandTest, cells, run_command
from analysis.tests.fake_runs import metrics_row, write_deck, write_metrics, write_rank
from analysis.ticks import round_ticks, short_number

MODEL = {"family": "llama", "layers": "4", "width": "192", "heads": "6", "kv_heads": "6", "ffn_width": "512",
         "vocabulary": "4096", "context": "128", "position": "rope", "norm": "rmsnorm", "norm_place": "pre",
         "activation": "swiglu", "bias": "false", "tie_embeddings": "false"}


def deck_of(**changes: str) -> dict[str, str]:
    return {f"model.{key}": value for key, value in (MODEL | changes).items()} | {"precision.compute": "bf16"}


class Diverged(CommandTest):
    """Curves of the fake runs fall from 8 to about 2."""

    def metrics(self, name: str, losses: list[float | None]) -> Metrics:
        rows = [metrics_row(step) | {"loss": loss, "perplexity": None if loss is None else math.exp(min(loss, 690.0))}
                for step, loss in enumerate(losses, 1)]
        return Metrics(Run(self.folder / name, name), rows)

    def setUp(self) -> None:
        super().setUp()
        self.sound = self.metrics("sound", [metrics_row(step)["loss"] for step in range(1, 201)])
        self.huge = self.metrics("huge", [8.0, 9.0, 1e3, 2e7, *[None] * 100])
        self.mild = self.metrics("mild", [8.0, 20.0, 21.0, 15.0, *[5.0] * 96])

    def test_limits_are_those_of_sound_runs(self) -> None:
        self.assertEqual([has_diverged(each) for each in (self.sound, self.huge, self.mild)], [False, True, True])
        for panel in PANELS:
            alone = panel_limits(panel, [self.sound])
            self.assertEqual(panel_limits(panel, [self.huge, self.sound, self.mild]), alone)
        low, high = panel_limits(PANELS[0], [self.huge, self.sound])
        self.assertTrue(1.0 < low < 2.0 and 8.0 < high < 9.0)
        low, high = panel_limits(PANELS[0], [self.huge, self.huge])
        self.assertTrue(7.0 < low < 8.0 and 9.0 < high < 10.0)

    def test_only_a_tuned_model_may_end_above_its_first_loss(self) -> None:
        for number, (initial, end, diverged) in enumerate((("null", 2.03, True), ("runs/base", 2.03, False),
                                                           ("runs/base", 2.05, True))):
            metrics = self.metrics(f"risen_{number}", [2.0, *[end] * 40])
            write_deck(metrics.run.path, checkpoint__initial=initial)
            self.assertEqual(has_diverged(metrics), diverged, (initial, end))

    def test_sound_curves_stay_and_diverged_ones_are_marked(self) -> None:
        runs = [self.huge, self.sound, self.mild]
        for panel in PANELS[:2]:
            figure, axes = plt.subplots()

            draw_panel(axes, panel, runs, [each.steps for each in runs])

            low, high = axes.get_ylim()
            crosses = [line for line in axes.lines if line.get_marker() == "x"]
            self.assertEqual([line.get_xdata()[0] for line in crosses], [2.0, 2.0])
            self.assertEqual(len({line.get_ydata()[0] for line in crosses}), 2)
            whole = [line for line in axes.lines if line.get_marker() == "None" and len(line.get_xdata()) == 200
                     and np.all((line.get_ydata() >= low) & (line.get_ydata() <= high))]
            self.assertEqual(len(whole), 2)  # of each step, and smoothed
            labels = [label.get_text() for label in axes.get_yticklabels()]
            self.assertGreaterEqual(len(set(labels)), 3)
            plt.close(figure)
        self.assertEqual([handle.get_label() for handle in legend_handles(runs)][:3],
                         ["huge (diverged)", "sound", "mild (diverged)"])

    def test_what_no_run_measured_gets_no_panel(self) -> None:
        rows = [{key: value for key, value in row.items() if not key.endswith("accuracy")} for row in self.sound.rows]

        figure = draw([Metrics(self.sound.run, rows)], [self.sound.steps], "step")

        self.addCleanup(plt.close, figure)
        self.assertEqual([axes.get_title(loc="left") for axes in figure.axes], ["loss (nats per token)", "perplexity"])

    def test_commands_say_so_without_warnings(self) -> None:
        for each in (self.sound, self.huge, self.mild):
            write_metrics(each.run.path, each.rows)

        code, _, err = run_command("learning", *(each.run.path for each in (self.huge, self.sound, self.mild)),
                                   "--output", self.output)

        self.assertEqual((code, err), (0, ""))
        self.expect_png(self.output / "learning_steps.png")
        self.assertEqual(cells((self.output / "learning.txt").read_text(), "diverged"), ["yes", "no", "yes"])
        self.assertIn("diverged", run_command("summary", self.huge.run.path)[1])
        self.assertNotIn("diverged", run_command("summary", self.sound.run.path)[1])


class Figures(CommandTest):
    def test_equal_runs_give_equal_files(self) -> None:
        write_metrics(self.folder / "a", [metrics_row(step) for step in range(1, 60)])
        for folder in ("one", "two"):
            run_command("learning", self.folder / "a", "--output", self.folder / folder)
        for suffix in FORMATS:
            name = f"learning_steps.{suffix}"
            self.assertEqual((self.folder / "one" / name).read_bytes(), (self.folder / "two" / name).read_bytes())

    def test_ticks_are_round(self) -> None:
        self.assertEqual(round_ticks(43_860, 4_725_815), [5e4, 1e5, 2e5, 5e5, 1e6, 2e6])
        self.assertEqual(round_ticks(5e5, 1.3e6), [5e5, 6e5, 8e5, 1e6])
        self.assertEqual(round_ticks(1.01, 1.2), [1.05, 1.1, 1.15, 1.2])
        self.assertEqual(round_ticks(1.0, 1e20)[:3], [1.0, 1e3, 1e6])
        self.assertEqual(round_ticks(0.0003, 1.0), [0.001, 0.01, 0.1, 1.0])
        for value, text in ((0.003, "0.003"), (2e-4, "2 \u00d7 10\u207b\u2074"), (1e-5, "10\u207b\u2075"), (5e3, "5000"),
                            (5e4, "50k"), (1.5e6, "1.5M"), (2e9, "2G"), (1e15, "10\u00b9\u2075"), (0.0, "0")):
            self.assertEqual(short_number(value), text)

    def test_parameters_are_counted_as_the_program_does(self) -> None:
        # 2 V C + L (4 C C + 3 C F + 2 C) + C
        self.assertEqual(parameter_count(deck_of()), 2 * 4096 * 192 + 4 * (4 * 192 ** 2 + 3 * 192 * 512 + 2 * 192) + 192)
        gpt2 = deck_of(family="gpt2", layers="12", width="768", heads="12", kv_heads="12", ffn_width="3072",
                       vocabulary="50257", context="1024", position="learned", norm="layernorm", bias="true",
                       activation="gelu_tanh", tie_embeddings="true")
        self.assertEqual(parameter_count(gpt2), 124_439_808)
        self.assertIsNone(parameter_count(deck_of(experts="8")))

    def test_the_subtitle_names_model_precision_and_machine(self) -> None:
        machines = [Machine(ranks, ("cpu",), ("n0", "n1")) for ranks in (1, 2, 4)]
        self.assertEqual(subject_text([deck_of(), deck_of()], machines),
                         "llama, 3.34M parameters; bf16; 1, 2 and 4 ranks, CPU, 2 hosts")
        self.assertEqual(subject_text([], []), "")
        wide, gpt2 = deck_of(ffn_width="1024"), deck_of(family="gpt2")
        self.assertEqual(subject_text([deck_of(), wide], []), "llama, 3.34M or 4.52M parameters; bf16")
        self.assertEqual(subject_text([deck_of(), gpt2], []), "llama, 3.34M parameters or gpt2, 3.34M parameters; bf16")


class Norms(CommandTest):
    def write(self, rows: list[dict[str, Any]]) -> Path:
        run = self.folder / "run"
        write_deck(run)
        write_rank(run / "timing/start_0001", 0, (0, 0, 0, 0), world_size=1)
        (run / "norms.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return run

    def row(self, step: int, gradient: float | None = 0.5) -> dict[str, Any]:
        return {"step": step, "activation_rms": {"embedding": 0.02, "blocks.0": 0.1 * step},
                "weight_norm": {"embedding.token.weight": 8.0, "blocks.0.mlp.up.weight": 3.0,
                                "blocks.0.mlp.down.weight": 4.0, "head.weight": 7.0},
                "gradient_norm": {"embedding.token.weight": 0.25, "blocks.0.mlp.up.weight": gradient,
                                  "blocks.0.mlp.down.weight": 0.0, "head.weight": 0.1}}

    def test_norms_of_tensors_are_joined_by_layer(self) -> None:
        run = self.write([self.row(10), self.row(20), self.row(15), self.row(20, None)])

        code, out, err = run_command("norms", run, "--output", self.output)

        self.assertEqual((code, err), (0, ""))
        self.expect_png(self.output / "norms.png")
        self.assertEqual(cells(out, "blocks.0"), ["2", "5", "0.5", "0.1"])
        self.assertEqual(cells(out, "head"), ["-", "7", "0.1", "0.01429"])
        with (self.output / "norms.csv").open(encoding="utf-8") as file:
            rows = {(row["step"], row["layer"]): row for row in csv.DictReader(file)}
        self.assertEqual({step for step, _ in rows}, {"10", "15", "20"})  # 20 was done again
        self.assertEqual(rows["15", "blocks.0"]["activation_rms"], "1.5")
        self.assertEqual((rows["20", "blocks.0"]["gradient_norm"], rows["20", "head"]["activation_rms"]), ("", ""))

    def test_huge_and_missing_values_still_draw(self) -> None:
        rows = [self.row(10), self.row(20, 1e30), self.row(30, None)]
        rows[2]["weight_norm"] = dict.fromkeys(rows[2]["weight_norm"])
        code, _, err = run_command("norms", self.write(rows), "--output", self.output)
        self.assertEqual((code, err), (0, ""))

    def test_deep_models_name_some_of_their_layers(self) -> None:
        handles = norms_legend(looks_of([*(f"blocks.{layer}" for layer in range(48)), "head"]))

        labels = [handle.get_label() for handle in handles]
        self.assertEqual((len(labels), labels[0], labels[-2:]), (13, "blocks.0", ["blocks.47", "head"]))

    def test_errors_are_one_line(self) -> None:
        write_deck(self.folder / "run")
        self.expect_error("norms", self.folder / "run", "--output", self.output,
                          says="norms.jsonl is missing; train with train.log_norms above 0")
        run = self.write([{"step": 1, "weight_norm": {"a": "b"}}])
        self.expect_error("norms", run, "--output", self.output, says="weight_norm of step 1 is not a number")


if __name__ == "__main__":
    unittest.main()
