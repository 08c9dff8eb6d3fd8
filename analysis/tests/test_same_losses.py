# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
import unittest
from pathlib import Path

from analysis.report.same_losses import EARLY_STEPS, LIMITS, LOW_PRECISION_LIMITS, limits_of, same_losses_sentence
from analysis.runs import Run
from analysis.scaling import make_groups, read_cases
from analysis.tests.fake_runs import metrics_row, write_metrics
from analysis.tests.test_report import ONE, TWO, ReportTest

ROOT = Path(__file__).resolve().parents[2]


class SameLosses(ReportTest):
    def runs(self, off: dict[int, float], **deck: str) -> list[Path]:
        """On one and two ranks; `off`: by how much losses of the second differ, relative, by step."""
        runs = [self.write("one", (1, 1, 1, 1), ONE), self.write("two", (2, 1, 1, 1), TWO, deck=deck)]
        for run in runs:
            rows = [metrics_row(step) | {"tokens_per_second": 41000.0, "loss": 2.0} for step in range(1, 26)]
            for step, share in off.items() if run.name == "two" else ():
                rows[step - 1]["loss"] = 2.0 * (1.0 + share)
            write_metrics(run, rows)
        return runs

    def sentence(self, off: dict[int, float], **deck: str) -> str:
        cases = [read_cases(Run(run, run.name), 5)[0][0] for run in self.runs(off, **deck)]
        return same_losses_sentence(make_groups(cases, None)[0])

    def test_the_largest_difference_stands_beside_the_limit(self) -> None:
        self.report(*self.runs({3: 2e-6, 12: 5e-5}))

        self.assertIn("At equal steps the training losses of 2 runs differ from those of one up to step 10 by at most 2.0e-06 of the "
                      "loss (step 3, two; `hyperslab parity` allows 1e-05), later by at most 5.0e-05 of the loss (step 12, two; "
                      "`hyperslab parity` allows 0.0001): the layouts compute the same.",
                      (self.output / "report.md").read_text(encoding="utf-8"))

    def test_above_a_limit_they_do_not(self) -> None:
        for off in ({3: 2e-5}, {12: 2e-4}, {4: float("nan")}):
            self.assertIn("the layouts do NOT compute the same.", self.sentence(off), off)
        self.assertIn("(step 1, two;", self.sentence({}))
        self.assertIn("by at most 0 of the loss", self.sentence({}))

    def test_runs_that_train_otherwise_are_not_compared(self) -> None:
        self.assertEqual(self.sentence({3: 1.0}, run__seed="7"), "")
        self.assertEqual(self.sentence({3: 1.0}, optimizer__lr="1"), "")

    def test_the_limits_are_those_of_the_program(self) -> None:
        source = (ROOT / "src/parity/parity.cpp").read_text(encoding="utf-8")
        header = (ROOT / "include/hyperslab/parity/parity.hpp").read_text(encoding="utf-8")
        body = source[source.index("ParityTolerance parity_tolerance"):]
        found = {name: (float(loss), float(late)) for name, loss, late in re.findall(
            r"if \(precision\.(fp8\(\)|compute == Precision::tf32)\) return \{[^,]+, ([^,]+), ([^}]+)\};", body)}
        rest = re.search(r"\n  return \{[^,]+, ([^,]+), ([^}]+)\};", body)
        assert rest is not None
        loss, late = (re.search(rf"double {name} = ([^;]+);", header) for name in ("loss", "late_loss"))
        assert loss is not None and late is not None
        self.assertEqual(LIMITS, {"fp32": (float(loss[1]), float(late[1])), "tf32": found["compute == Precision::tf32"]})
        self.assertEqual({LOW_PRECISION_LIMITS}, {found["fp8()"], (float(rest[1]), float(rest[2]))})
        self.assertIn(f"kEarlySteps = {EARLY_STEPS};", header)
        self.assertEqual(limits_of({"precision.compute": "bf16", "precision.gemm": "fp8_row"}), LOW_PRECISION_LIMITS)
        self.assertEqual(limits_of({"precision.compute": "fp32"}), LIMITS["fp32"])


if __name__ == "__main__":
    unittest.main()
