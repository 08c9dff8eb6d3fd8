# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest
from pathlib import Path

import yaml

from analysis.accumulation import accumulate, to_bf16
from analysis.tests.commands import run_command
from analysis.tests.study_case import StudyTest


class Accumulation(StudyTest):
    def test_sums_are_those_of_the_types(self) -> None:
        self.assertAlmostEqual(accumulate(0.01, 1000, "fp32", "fp32"), 10.000133514, places=8)
        self.assertEqual(accumulate(0.01, 1000, "fp16", "fp16"), 9.953125)
        self.assertAlmostEqual(accumulate(0.01, 1000, "fp32", "fp16"), 10.002136230, places=8)
        self.assertEqual(accumulate(0.01, 1000, "bf16", "bf16"), 4.0)  # 0.01 is below half a unit there
        self.assertEqual([to_bf16(value) for value in (1.0, 1.00390625, 1.01171875)], [1.0, 1.0, 1.015625])

    def test_the_command_prints_and_writes_it(self) -> None:
        code, out, _ = run_command("accumulation", "--sum", "fp16", "--term", "fp16", "--json", "a/sum.json")

        self.assertEqual(code, 0)
        self.assertEqual(out, "1000 times 0.01 (fp16) summed in fp16: 9.953125, exact 10\n")
        self.assertEqual(yaml.safe_load(Path("a/sum.json").read_text())["sum"], 9.953125)
        self.expect_error("accumulation", "--value", "nan", says="expected a finite number")


if __name__ == "__main__":
    unittest.main()
