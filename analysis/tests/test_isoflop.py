# SPDX-License-Identifier: Apache-2.0
"""Scaling laws: planted laws are found, published numbers follow, and answers outside the runs say so."""
from __future__ import annotations

import csv
import json
import math
import unittest
import xml.etree.ElementTree
from typing import Any

import numpy as np

from analysis.isoflop.experiments import Experiment, make_budgets
from analysis.isoflop.lbfgs import minimize
from analysis.isoflop.minimum import BEYOND, INSIDE, NONE, curve_of
from analysis.isoflop.parametric import Form, fit_form
from analysis.isoflop.power import law_of_minima
from analysis.isoflop.words import count_text, flops_text
from analysis.tests.commands import CommandTest, cells, run_command
from analysis.tests.planted_laws import BUDGETS, FIELDS, REPLICATION, count_held, drawn_runs

QUIET = 0.001  # noise of log L


def parabola_runs(compute: float, best: float, floor: float = 2.0, sizes: int = 5) -> list[dict[str, float]]:
    """Losses exactly on a parabola in log N; sizes from a quarter to four times the best."""
    return [{"parameters": best * factor, "compute_budget": compute, "final_loss": floor + 0.1 * math.log(factor) ** 2}
            for factor in np.geomspace(0.25, 4.0, sizes)]


class Fitting(unittest.TestCase):
    def test_a_planted_law_is_found_within_its_interval(self) -> None:
        for noise in (0.0005, 0.002, 0.005):
            with self.subTest(noise=noise):
                held = count_held(100, noise, with_form=False)
                self.assertGreaterEqual(min(held.values()), 95, held)

    def test_the_planted_form_is_found_within_its_intervals(self) -> None:
        held = count_held(10, 0.002, with_form=True)

        self.assertGreaterEqual(min(held.values()), 8, held)
        self.assertEqual(len(held), 4 + len(FIELDS) + 1)

    def test_intervals_are_no_wider_than_the_noise_makes_them(self) -> None:
        def width(noise: float) -> float:
            random = np.random.default_rng(5)
            curves = [curve_of(budget) for budget in make_budgets(drawn_runs(REPLICATION, noise, random))]
            low, high = np.quantile(law_of_minima(curves, 1000, random).draws[:, 1], [0.025, 0.975])
            return float(high - low)

        self.assertLess(width(0.0005), 0.03)
        self.assertGreater(width(0.005), 4.0 * width(0.0005))

    def test_without_noise_the_form_is_found(self) -> None:
        runs = drawn_runs(REPLICATION, 0.0, np.random.default_rng(3))

        found = fit_form(runs, 0, np.random.default_rng(1))

        for name in FIELDS:
            self.assertAlmostEqual(getattr(found.form, name) / getattr(REPLICATION, name), 1.0, delta=2e-3)
        self.assertLess(found.deviation, 1e-5)

    def test_the_search_ends_in_the_minimum_of_rosenbrock_s_valley(self) -> None:
        def valley(points: np.ndarray, _: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            x, y = points.T
            return (1 - x) ** 2 + 100 * (y - x * x) ** 2, np.stack([-2 * (1 - x) - 400 * x * (y - x * x), 200 * (y - x * x)], axis=1)

        points, values = minimize(valley, np.array([[-1.2, 1.0], [3.0, -4.0], [0.0, 0.0]]), 500)

        np.testing.assert_allclose(points, 1.0, atol=1e-4)
        self.assertLess(values.max(), 1e-8)

    def test_published_parameters_give_the_published_optimum(self) -> None:
        """Besiroglu et al. 2024: exponents of 0.51 and 0.49, some 20 tokens a parameter at the compute of Chinchilla."""
        of_size, of_tokens = REPLICATION.exponents
        size, tokens = REPLICATION.best(5.76e23)

        self.assertAlmostEqual(of_size, 0.5126, places=4)
        self.assertAlmostEqual(of_tokens, 0.4874, places=4)
        self.assertAlmostEqual(size / 72.2e9, 1.0, places=2)
        self.assertAlmostEqual(tokens / size, 18.4, places=1)
        self.assertAlmostEqual(6.0 * size * tokens / 5.76e23, 1.0, places=12)

    def test_no_size_of_the_same_compute_is_better_than_the_best(self) -> None:
        size, _ = REPLICATION.best(1e21)
        losses = {factor: REPLICATION.loss(factor * size, 1e21 / 6.0 / factor / size) for factor in (0.9, 0.99, 1.0, 1.01, 1.1)}

        self.assertEqual(min(losses, key=losses.__getitem__), 1.0)
        self.assertAlmostEqual(REPLICATION.compute_for(REPLICATION.best_loss(1e21)) / 1e21, 1.0, places=9)
        self.assertEqual(REPLICATION.compute_for(1.8172), math.inf)

    def test_a_parabola_without_a_minimum_between_the_sizes_is_in_no_law(self) -> None:
        def state(losses: list[float]) -> str:
            runs = [Experiment("", size, 1e12 / 6 / size, 1e12, loss) for size, loss in zip((1e4, 2e4, 4e4, 8e4), losses)]
            return curve_of(make_budgets([*runs, *(Experiment("", size, 1.0, 1e15, 2.0) for size in (1, 2, 3))])[0]).state

        self.assertEqual(state([3.0, 2.5, 2.4, 2.6]), INSIDE)
        self.assertEqual(state([3.0, 2.5, 2.15, 1.9]), BEYOND)
        self.assertEqual(state([3.0, 3.1, 3.1, 2.9]), NONE)

    def test_numbers_are_short(self) -> None:
        self.assertEqual([count_text(value) for value in (12, 12_336, 999_900, 72.2e9, 1.33e12, 4e15, math.nan)],
                         ["12", "12.3k", "1M", "72.2B", "1.33T", "4e15", "-"])
        self.assertEqual([flops_text(value) for value in (5.76e23, math.inf)], ["5.76e23", "no end"])


class IsoflopTest(CommandTest):
    def write(self, runs: list[dict[str, Any]], name: str = "runs.json") -> str:
        path = self.folder / name
        path.write_text(json.dumps(runs), encoding="utf-8")
        return str(path)

    def planted(self) -> str:
        return self.write([{"parameters": each.parameters, "compute_budget": each.compute, "final_loss": each.loss}
                           for each in drawn_runs(REPLICATION, QUIET, np.random.default_rng(7))])

    def isoflop(self, *words: object, draws: int = 100) -> tuple[str, dict[str, Any]]:
        code, out, err = run_command("isoflop", *words, "--draws", draws, "--output", self.output)
        self.assertEqual((code, err), (0, ""))
        return out, json.loads((self.output / "isoflop.json").read_text(encoding="utf-8"))


class Command(IsoflopTest):
    def test_hand_worked_numbers(self) -> None:
        """Minima of 1e6, 1e7 and 1e8 parameters at 6e12, 6e14 and 6e16 FLOPs: N = k C^0.5 with k = 1e6 / sqrt(6e12)."""
        runs = [*parabola_runs(6e12, 1e6, 3.0), *parabola_runs(6e14, 1e7, 2.5), *parabola_runs(6e16, 1e8, 2.25)]

        out, found = self.isoflop(self.write(runs), "--budget", "6e20", "--flops-per-second", "1e14")

        self.assertEqual(cells(out, "6e12")[:8], ["5", "1M", "3.0000", "1M", "1M", "1.0", "3.0000", "between"])
        law = found["minima"]["N"]
        self.assertAlmostEqual(law["exponent"], 0.5, places=9)
        self.assertAlmostEqual(law["scale"] / (1e6 / math.sqrt(6e12)), 1.0, places=6)
        self.assertAlmostEqual(found["minima"]["D"]["scale"] / (1e6 / math.sqrt(6e12)), 1.0, places=6)
        answer = next(each for each in found["answers"] if each["by"].startswith("power"))
        self.assertAlmostEqual(answer["parameters"]["value"] / 1e10, 1.0, places=6)
        self.assertAlmostEqual(answer["device_hours"]["value"], 6e20 / 1e14 / 3600)
        self.assertEqual(answer["reach"], "EXTRAPOLATED: 10,000 times the largest budget that ran")
        self.assertAlmostEqual(found["held_out"]["parameters_predicted"] / 1e8, 1.0, places=6)
        self.assertAlmostEqual(found["held_out"]["parameters_measured"] / 1e8, 1.0, places=6)

    def test_files_and_figures(self) -> None:
        out, found = self.isoflop(self.planted(), "--target-loss", "2.0")

        page = (self.output / "isoflop.html").read_text(encoding="utf-8")
        xml.etree.ElementTree.fromstring(page.replace("<!DOCTYPE html>", "").replace('<meta charset="utf-8">', "").replace(
            '<meta name="viewport" content="width=device-width, initial-scale=1">', ""))
        for name in ("isoflop_losses", "isoflop_laws"):
            self.expect_png(self.output / f"{name}.png")
        with (self.output / "isoflop_runs.csv").open(encoding="utf-8") as file:
            self.assertEqual(len(list(csv.DictReader(file))), 35)
        with (self.output / "isoflop_budgets.csv").open(encoding="utf-8") as file:
            self.assertEqual([float(row["compute"]) for row in csv.DictReader(file)], [each["compute"] for each in found["budgets"]])
        for text in (page, out):
            self.assertIn("With ten times the compute the best model is", text)
            self.assertIn("EXTRAPOLATED", text)
        self.assertEqual(self.isoflop(self.planted(), "--target-loss", "2.0")[1], found)  # equal runs, equal intervals

    def test_sentences_follow_the_losses(self) -> None:
        runs = drawn_runs(REPLICATION, QUIET, np.random.default_rng(7))
        words = "L(N, D) of the smaller budgets misses"

        def sentence(last: float) -> str:
            content = [{"parameters": each.parameters, "compute_budget": each.compute, "final_loss": each.loss} for each in runs]
            content[-1]["final_loss"] *= last
            return next(line for line in self.isoflop(self.write(content), draws=0)[0].splitlines() if line.startswith(words))

        self.assertNotEqual(sentence(1.0), sentence(1.05))

    def test_answers_inside_and_outside_the_budgets(self) -> None:
        _, found = self.isoflop(self.planted(), "--budget", "1e19", "5.76e23", "--target-loss", "2.8")

        reaches = [each["reach"] for each in found["answers"]]
        self.assertEqual(reaches[:2], ["between the budgets that ran"] * 2)
        self.assertTrue(all(reach.startswith("EXTRAPOLATED: 5,7") for reach in reaches[2:4]), reaches)
        form = found["answers"][3]
        self.assertLess(form["parameters"]["interval"][0], 72.2e9)
        self.assertGreater(form["parameters"]["interval"][1], 72.2e9)
        loss = found["answers"][4]
        size, tokens, compute = (loss[name]["value"] for name in ("parameters", "tokens", "compute"))
        self.assertAlmostEqual(6 * size * tokens / compute, 1.0, places=9)
        self.assertAlmostEqual(REPLICATION.loss(size, tokens), 2.8, delta=0.01)

    def test_hours_of_a_plan(self) -> None:
        plan = self.folder / "plan.json"
        plan.write_text(json.dumps({"ranks": 4, "tokens_per_second": 1e6, "matmul_parameters": 10 ** 9}), encoding="utf-8")

        out, found = self.isoflop(self.planted(), "--budget", "1e20", "--plan", plan)

        rate = 6.0 * 1e9 * 1e6 / 4
        self.assertAlmostEqual(found["answers"][0]["device_hours"]["value"], 1e20 / rate / 3600)
        self.assertIn("1.5e+15 FLOP/s a device, which plan.json predicts (1,000,000 tokens/s of 1,000,000,000 parameters on 4 devices)", out)

    def test_three_sizes_a_budget_have_no_interval(self) -> None:
        runs = [*parabola_runs(6e12, 1e6, 3.0, 3), *parabola_runs(6e14, 1e7, 2.5, 3)]

        out, found = self.isoflop(self.write(runs))

        self.assertIsNone(found["minima"]["N"]["exponent_interval"])
        self.assertIn("each budget has as many runs as a parabola has coefficients", out)
        self.assertIn("It cannot be held out", out)
        self.assertIsNone(found["held_out"])

    def test_an_exponent_that_may_be_zero_is_said_to_be(self) -> None:
        """Both budgets have their minimum near one size, with noise."""
        random = np.random.default_rng(2)
        runs = [each | {"final_loss": each["final_loss"] * (1 + 0.01 * random.standard_normal())}
                for compute in (1e12, 2e12, 4e12) for each in parabola_runs(compute, 1e5, 3.0, 7)]

        self.assertIn("these runs do not show that both the best size and the best tokens grow with compute", self.isoflop(self.write(runs))[0])


class WrongInput(IsoflopTest):
    def expect(self, runs: Any, says: str, *words: object) -> None:
        self.expect_error("isoflop", self.write(runs), *words, "--output", self.output, says=says)

    def test_lists(self) -> None:
        good = parabola_runs(6e12, 1e6)
        both = [*good, *parabola_runs(6e14, 1e7)]
        self.expect(good, "all runs are of one budget, 6e+12 FLOPs, and a law needs 2")
        self.expect([*good, *parabola_runs(6e14, 1e7)[:2]], "the budget of 6e+14 FLOPs has 2 model sizes ([5], [6]), and a minimum needs 3")
        self.expect([*both, both[0] | {"final_loss": math.nan}], "[10].final_loss is nan, expected a number")
        self.expect([*both, both[0] | {"final_loss": None}], "[10].final_loss is null, expected a number")
        self.expect([*both, both[0] | {"parameters": 0}], "[10].parameters is 0, expected a number above 0")
        self.expect([*both, {"parameters": 1, "compute_budget": 6e12}], "[10].final_loss is missing")
        self.expect({"runs": both}, "it is an object, expected a list")
        self.expect([], "it holds 0, expected at least 1")
        self.expect([*parabola_runs(6e12, 1e6), *(each | {"final_loss": 4 - each["final_loss"]} for each in parabola_runs(6e14, 1e7))],
                    "1 of 2 budgets have a parabola with a minimum between their sizes")

    def test_options(self) -> None:
        planted = json.loads((self.folder / "runs.json").read_text(encoding="utf-8")) if self.planted() else []
        self.expect(planted, "--target-loss 1.5 is not above the fitted floor E = 1.8", "--target-loss", "1.5")
        self.expect(planted, "give --plan or --flops-per-second, not both", "--plan", "p.json", "--flops-per-second", "1")
        self.expect(planted, "p.json cannot be read (No such file or directory); write it with hyperslab plan", "--plan", "p.json")
        self.expect(planted, "give it alone, without run directories and --without", "--without", "a")
        (self.folder / "old.json").write_text('{"ranks": 1, "tokens_per_second": 5.0}', encoding="utf-8")
        self.expect(planted, "matmul_parameters is missing", "--plan", self.folder / "old.json")

    def test_no_file_and_no_output(self) -> None:
        self.expect_error("isoflop", "nowhere.json", "--output", self.output, says="nowhere.json cannot be read (No such file or directory)")
        self.expect_error("isoflop", "nowhere", "--output", self.output, says="no run directory nowhere")
        self.expect_error("isoflop", self.planted(), says="where shall the report of these runs be written? give --output DIR")


if __name__ == "__main__":
    unittest.main()
