# SPDX-License-Identifier: Apache-2.0
"""A layout and a rank have one name each, in the order in which the program prints axes."""
from __future__ import annotations

import re
import unittest
from pathlib import Path

from analysis.report.plot import bar_name
from analysis.runs import Run
from analysis.scaling import make_groups, read_cases
from analysis.tests.commands import run_command
from analysis.tests.test_report import FOUR_TENSOR, ONE, ReportTest
from analysis.timings import NAMED_AXES, layout_name, rank_name

ROOT = Path(__file__).resolve().parents[2]


class Names(ReportTest):
    def test_the_order_is_that_of_the_program(self) -> None:
        source = (ROOT / "parallel/mesh/position.cpp").read_text(encoding="utf-8")
        printed = source[source.index("std::string describe(const ParallelConfig"):]

        self.assertEqual(list(dict.fromkeys(re.findall(r"config\.(\w+)", printed))), list(NAMED_AXES))
        self.assertEqual(layout_name((2, 3, 1, 5)), "data 2 x tensor 5 x pipeline 3")
        self.assertEqual(layout_name((1, 1, 4, 1)), "context 4")
        self.assertEqual(layout_name((1, 1, 1, 1)), "one rank")

    def test_ranks_are_named_as_the_program_prints_coordinates(self) -> None:
        source = (ROOT / "parallel/mesh/position.cpp").read_text(encoding="utf-8")
        printed = source[source.index("std::string describe(const Position"):source.index("std::string describe(const ParallelConfig")]

        self.assertEqual(re.findall(r"(data|pipeline|tensor|context) \"", printed), list(NAMED_AXES))
        self.assertEqual(rank_name(5, (1, 2, 4, 3)), "5 (d1 t3 p2 c4)")

    def test_tables_plots_and_files_have_the_same_name(self) -> None:
        one, four = self.write("one", (1, 1, 1, 1), ONE), self.write("four", (1, 2, 1, 2), FOUR_TENSOR)
        out, content = self.report(one, four)
        group = make_groups([read_cases(Run(run, run.name), 5)[0][0] for run in (one, four)], None)[0]

        self.assertIn("4 ranks (tensor 2 x pipeline 2) are 2.50 times", (self.output / "report.md").read_text(encoding="utf-8"))
        self.assertRegex(out, r"(?m)^four +4 +tensor 2 x pipeline 2 ")
        self.assertEqual(content["groups"][0]["traffic"][1]["layout"], "tensor 2 x pipeline 2")
        self.assertEqual([bar_name(group, case).replace("\n", " ") for case in group.cases], ["one rank", "tensor 2 x pipeline 2"])
        columns = (self.output / "scaling.csv").read_text(encoding="utf-8").split("\n")[0].split(",")
        self.assertEqual([name for name in columns if name in NAMED_AXES], list(NAMED_AXES))
        run_command("time", four, "--output", self.output)
        self.assertIn("four (tensor 2 x pipeline 2; start_0001)", (self.output / "time_per_rank.txt").read_text(encoding="utf-8"))


if __name__ == "__main__":
    unittest.main()
