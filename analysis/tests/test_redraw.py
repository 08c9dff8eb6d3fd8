# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest
from pathlib import Path

from analysis.study.columns import fitted
from analysis.study.draw import bar_text
from analysis.study.redraw import main, read_recorded
from analysis.tests.commands import CommandTest

ROOT = Path(__file__).resolve().parents[2]
STUDY, TABLE = ROOT / "inputs/studies/tuning.yaml", ROOT / "analysis/results/studies-h200/tuning.csv"


class Redraw(CommandTest):
    def test_changes_are_those_of_equal_commands_and_data(self) -> None:
        result = read_recorded(STUDY, TABLE)
        plot = result.study.plots[0]

        def texts(name: str) -> dict[str, str]:
            return {row.labels["variant"]: bar_text(result, plot, row, fitted(name, [4.0])) for row in result.rows}

        self.assertEqual(texts("final_loss")["LoRA r 8"], "5.3415\n+1.0263")
        self.assertEqual(texts("final_loss")["base model"], "2.6243", "of other data")
        self.assertNotIn("%", texts("tokens_per_second")["not tuned"], "of another command")

    def test_a_figure_is_written(self) -> None:
        figure = self.folder / "tuning.png"
        self.assertEqual(main([str(STUDY), str(TABLE), "tuning", "a model", str(figure)]), 0)
        self.assertGreater(figure.stat().st_size, 5_000)
        self.assertEqual(main([str(STUDY), str(TABLE), "none", "a model", str(figure)]), 2)


if __name__ == "__main__":
    unittest.main()
