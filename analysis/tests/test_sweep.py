# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import csv
import unittest
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

from analysis.runs import find_runs
from analysis.style import plt
from analysis.sweep import curve_names, draw, read_points
from analysis.tests.commands import CommandTest, run_command
from analysis.tests.fake_runs import write_deck, write_metrics, write_start_deck, write_steps


class Sweep(CommandTest):
    def write(self, rate: float, losses: list[float | None], validation: float | None = -1.0,
              name: str = "", **deck: Any) -> Path:
        """A run of 4 steps by its deck; `validation` below 0: not measured, None: not finite."""
        run = self.folder / (name or f"lr_{rate:g}")
        write_deck(run, optimizer__lr=rate, train__steps=4, **deck)
        rows: list[dict[str, Any]] = [{"step": step, "loss": loss}
                                      for step, loss in enumerate(losses, 1)]
        if validation is None or validation >= 0:
            rows[-1]["validation_loss"] = validation
        write_metrics(run, rows)
        return run

    def sweep(self, *runs: Path) -> tuple[str, dict[str, dict[str, str]]]:
        code, out, err = run_command("sweep", *runs, "--output", self.output)
        self.assertEqual((code, err), (0, ""))
        with (self.output / "sweep.csv").open(encoding="utf-8") as file:
            return out, {row["run"]: row for row in csv.DictReader(file)}

    def test_best_rate_and_diverged_runs(self) -> None:
        good = [8.0, 6.0, 5.0, 4.5]
        out, rows = self.sweep(
            self.write(3e-3, good, 4.0), self.write(1e-3, good, 4.25),
            self.write(1e-2, [8.0, 9.0, None, None]), self.write(3e-2, [8.0, 7.0, 7.0, 7.0], None),
            self.write(1e-1, [8.0, 9.0, 20.0, 30.0], 31.0), self.write(2e-3, good[:3], 5.5))

        self.assertEqual({name: row["state"] for name, row in rows.items()},
                         {"lr_0.001": "finished", "lr_0.002": "unfinished", "lr_0.003": "finished",
                          "lr_0.01": "diverged", "lr_0.03": "diverged", "lr_0.1": "diverged"})
        self.assertEqual(list(rows), sorted(rows, key=lambda name: float(name[3:])))
        self.assertEqual(rows["lr_0.003"]["final_loss"], "4.0")
        self.assertEqual(rows["lr_0.01"]["best_validation_loss"], "")
        self.assertIn("lowest final loss 4.0000 at learning rate 0.003 (lr_0.003); 3 of 6 diverged",
                      out)
        self.expect_png(self.output / "sweep.png")
        page = (self.output / "sweep.html").read_text(encoding="utf-8")
        xml.etree.ElementTree.fromstring(page.replace("<!DOCTYPE html>", "").replace(
            '<meta charset="utf-8">', "").replace(
            '<meta name="viewport" content="width=device-width, initial-scale=1">', ""))
        self.assertIn("<td>best</td>", page)
        self.assertEqual(page.count("<td>diverged</td>"), 3)

    def test_a_loss_that_came_back_has_diverged_still(self) -> None:
        validated = self.write(4e-2, [8.0, 7.0, 6.0, 4.0], 4.0)
        write_metrics(validated, [{"step": 1, "loss": 8.0}, {"step": 2, "loss": 7.0, "validation_loss": 16.1},
                                  {"step": 3, "loss": 6.0}, {"step": 4, "loss": 4.0, "validation_loss": 4.0}])

        out, rows = self.sweep(self.write(1e-2, [8.0, 16.0, 6.0, 4.0], 4.5), self.write(2e-2, [8.0, 16.1, 6.0, 4.0], 4.0),
                               self.write(3e-2, [8.0, None, 6.0, 4.0], 4.0), validated,
                               self.write(5e-2, [None, 7.0, 6.0, 4.0], 4.0))

        self.assertEqual([row["state"] for row in rows.values()], ["finished"] + ["diverged"] * 4)
        self.assertIn("learning rate 0.01 (lr_0.01); 4 of 5 diverged", out)

    def write_norms(self, name: str, norms: list[float | None], **deck: Any) -> Path:
        """A run of sound losses."""
        run = self.write(1e-3, [8.0], name=name, **deck)
        write_metrics(run, [{"step": step, "loss": 8.0 - step, "grad_norm": norm}
                            for step, norm in enumerate(norms, 1)])
        return run

    def test_gradients_that_are_not_finite_diverge(self) -> None:
        half = {"precision__compute": "fp16"}
        runs = [self.write_norms("ended", [1.0, None, None, None]),
                self.write_norms("once", [1.0, None, 1.0, 1.0]),
                self.write_norms("half_ended", [1.0, None, None, None], **half),
                self.write_norms("half_sound", [None, None, None, 1.0], **half),
                self.write_norms("half_skips", [None, 1.0, 1.0, None], **half)]

        for run, state in zip(runs, ["diverged"] * 3 + ["finished"] * 2, strict=True):
            with self.subTest(run.name):
                _, rows = self.sweep(run)
                self.assertEqual(rows[run.name]["state"], state)
        self.assertIn("diverged: a loss was not finite", run_command("summary", runs[0])[1])

    def test_a_run_whose_starts_differ_is_on_no_curve(self) -> None:
        mixed = self.write(1e-2, [8.0, 6.0, 5.0, 4.0], 3.0, "resumed")
        write_start_deck(mixed, 1, optimizer__lr=0.003, train__steps=2)
        write_start_deck(mixed, 2, optimizer__lr=0.01, train__steps=4)
        write_steps(mixed, 1, 1, 2)
        write_steps(mixed, 2, 3, 4)

        out, rows = self.sweep(mixed, self.write(3e-3, [8.0, 6.0, 5.0, 4.0], 4.0))

        self.assertEqual((rows["resumed"]["state"], rows["resumed"]["mixed"]),
                         ("mixed", "mixed: optimizer.lr 0.003 -> 0.01 at step 3"))
        self.assertIn("lowest final loss 4.0000 at learning rate 0.003", out)
        self.assertIn("resumed: mixed: optimizer.lr 0.003 -> 0.01 at step 3; left out of its curve", out)

    def test_a_start_that_trained_nothing_does_not_name_the_rate(self) -> None:
        run = self.write(3e-3, [8.0, 6.0, 5.0, 4.0], 4.0)
        write_start_deck(run, 1, optimizer__lr=0.003, train__steps=4)
        write_start_deck(run, 2, optimizer__lr=1.0, train__steps=4)
        write_steps(run, 1, 1, 4)
        write_steps(run, 2, 5, 4)

        _, rows = self.sweep(run)

        self.assertEqual((rows["lr_0.003"]["learning_rate"], rows["lr_0.003"]["state"]), ("0.003", "finished"))

    def test_marks_and_legend_stand_apart_from_curves(self) -> None:
        points = read_points(find_runs([str(self.write(*each)) for each in (
            (1e-3, [8.0, 6.0, 5.0, 4.5], 4.5), (1e-2, [8.0, 6.0, 5.0, 4.0], 4.0), (1.0, [8.0, None], None))]))

        figure = draw(points, "a model")

        axes = figure.axes[0]
        low, high = axes.get_ylim()
        self.assertLess((4.5 - low) / (high - low), 0.9)
        crosses = [line.get_ydata()[0] for line in axes.lines if line.get_marker() == "x" and line.get_ydata()]
        self.assertEqual(crosses, [0.97])
        self.assertIsNone(axes.get_legend())
        figure.draw_without_rendering()
        legend = figure.legends[0].get_window_extent()
        self.assertLess(legend.y1, axes.get_window_extent().y0)
        self.assertIn("lowest 4.0000 at 0.01", figure.legends[0].get_texts()[0].get_text())
        plt.close(figure)

    def test_without_validation_the_last_training_losses_count(self) -> None:
        _, rows = self.sweep(self.write(1e-3, [8.0, 6.0, 5.0, 3.0]))

        self.assertEqual(rows["lr_0.001"]["final_loss"], "5.5")
        self.assertEqual(rows["lr_0.001"]["validated"], "False")

    def test_models_are_series_of_their_own(self) -> None:
        runs = [self.write(rate, [8.0, 6.0, 5.0, 4.0], loss, f"w{width}_{rate}", model__width=width)
                for width, rate, loss in ((64, 1e-3, 4.5), (64, 3e-3, 4.4), (128, 1e-3, 3.9),
                                          (128, 3e-3, 4.1))]

        out, rows = self.sweep(*runs)

        self.assertEqual({row["series"] for row in rows.values()},
                         {"model.width 64", "model.width 128"})
        self.assertIn("model.width 64: lowest final loss 4.4000 at learning rate 0.003", out)
        self.assertIn("model.width 128: lowest final loss 3.9000 at learning rate 0.001", out)

    def test_keys_that_change_no_training_do_not_split_a_curve(self) -> None:
        losses = [8.0, 6.0, 5.0, 4.0]
        _, rows = self.sweep(
            self.write(1e-3, losses, checkpoint__every=10, train__validate_every=5, parallel__bucket_mib=8,
                       train__microbatch=4, model__bos_token=0, data__vocabulary="a.json"),
            self.write(2e-3, losses, checkpoint__every=20, train__validate_every=2, parallel__bucket_mib=16,
                       train__log_every=7, parallel__zero=1, run__device="cpu", optimizer__new_key=1))
        self.assertEqual({row["series"] for row in rows.values()}, {"all runs"})

        _, rows = self.sweep(self.write(1e-3, losses), self.write(2e-3, losses, data__train="[other.bin]"))
        self.assertEqual(len({row["series"] for row in rows.values()}), 2)

    def test_a_far_rate_that_diverged_stands_at_the_edge(self) -> None:
        points = read_points(find_runs([str(self.write(*each)) for each in (
            (1e-4, [8.0, 6.0], 4.5), (1e-2, [8.0, 6.0], 4.0), (10.0, [8.0, None], None), (1e30, [8.0, None], None))]))

        figure = draw(points, "a model")

        axes = figure.axes[0]
        low, high = axes.get_xlim()
        self.assertTrue(5e-5 < low < 1e-4 and 0.1 < high < 0.5, (low, high))
        crosses = [rate for line in axes.lines if line.get_marker() == "x" for rate in line.get_xdata()]
        self.assertEqual(crosses, [high, high])
        self.assertEqual([text.get_text() for text in axes.texts], ["10, 1e+30"], "the rates that share the cross")
        labels = [label.get_text() for label in axes.get_xticklabels()]
        self.assertTrue(all("10" in label and "." not in label for label in labels), labels)
        plt.close(figure)

    def test_names_of_curves_fit_into_the_figure(self) -> None:
        runs = [self.write(rate, [8.0, 6.0, 5.0, 4.0], 4.0, f"w{width}_{layers}_{rate}", model__width=width,
                           model__layers=layers, model__family=family, optimizer__name="a" * 90)
                for width, layers, family, rate in ((64, 2, "gpt2", 1e-3), (128, 2, "gpt2", 1e-3),
                                                    (64, 4, "llama", 2e-3))]
        names = [point.series for point in read_points(find_runs(list(map(str, runs))))]
        self.assertEqual(curve_names(names, 70)[1:], ["model.width 128", "model.family llama, model.layers 4"])
        self.assertEqual(curve_names(names, 20), [f"series {letter} (see the tables)" for letter in "ABC"])

        out, _ = self.sweep(*runs)
        self.assertIn("B: model.family gpt2, model.layers 2, model.width 128: lowest", out)

    def test_only_diverged_runs_still_draw(self) -> None:
        out, _ = self.sweep(self.write(1.0, [8.0, None, None, None]))

        self.assertIn("no run finished; 1 of 1 diverged", out)
        self.expect_png(self.output / "sweep.png", at_least=5_000)

    def test_errors_are_one_line(self) -> None:
        self.expect_error("sweep", self.folder / "none", "--output", self.output,
                          says="no run directory")
        run = self.write(1e-3, [8.0])
        write_deck(run, optimizer__lr="fast")
        self.expect_error("sweep", run, "--output", self.output, says="optimizer.lr is `fast`")
        (run / "deck.yaml").unlink()
        self.expect_error("sweep", run, "--output", self.output, says="deck.yaml is missing")


if __name__ == "__main__":
    unittest.main()
