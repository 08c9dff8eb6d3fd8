# SPDX-License-Identifier: Apache-2.0
"""Reports on portrait paper, and figures whose lines and legends can be told apart."""
from __future__ import annotations

import importlib.util
import unittest
from pathlib import Path
from typing import Any, Iterator

from analysis.learning import draw_steps
from analysis.report.page import without_nothing
from analysis.runs import Run, read_metrics
from analysis.step_time import draw
from analysis.style import Figure, plt
from analysis.tests.fake_runs import metrics_row, write_deck, write_metrics
from analysis.tests.test_report import ONE, ReportTest
from analysis.timings import read_layouts

ALL = {"forward": 20.0, "backward": 40.0, "optimizer": 5.0, "reduce_exposed": 3.0, "reduce": 9.0, "tensor_comm": 6.0,
       "pipeline_comm": 2.0, "pipeline_idle": 4.0, "wait": 1.0, "data": 1.0, "checkpoint": 1.0}


def boxes(box: Any) -> Iterator[Any]:
    yield box
    for inner in getattr(box, "children", ()):
        yield from boxes(inner)


@unittest.skipUnless(importlib.util.find_spec("weasyprint"), "no weasyprint (apt install weasyprint)")
class Portrait(ReportTest):
    def test_no_table_is_wider_than_the_page(self) -> None:
        from weasyprint import HTML

        runs = [self.write(f"ranks_{data * 4}-a_long_name_of_a_run_{data}", (data, 2, 1, 2), ALL,
                           deck={"parallel__zero": data % 3, "parallel__bucket_mib": data}) for data in (1, 2, 4, 8, 16)]
        for run in runs:
            write_metrics(run, [metrics_row(step) | {"mfu": 0.5} for step in range(1, 26)])
        self.report(*runs)

        pages = HTML(filename=str(self.output / "report.html")).render().pages
        for page in pages:
            paper = page._page_box  # WeasyPrint has no other way to the places of boxes
            self.assertLess(page.width, page.height)
            over = {getattr(box, "text", type(box).__name__): box.position_x + box.width - paper.width - paper.margin_left
                    for box in boxes(paper) if type(box).__name__ in ("TableBox", "TextBox")}
            self.assertEqual({text: beyond for text, beyond in over.items() if beyond > 1.0}, {})


class Narrow(ReportTest):
    def test_columns_of_nothing_are_left_out_and_many_runs_stand_below_each_other(self) -> None:
        self.assertEqual(without_nothing((["a", "b", "c"], [["x", "0.00 (0.0)", "1"], ["y", "-", "-"]])),
                         (["a", "c"], [["x", "1"], ["y", "-"]]))
        self.report(self.write("one", (1, 1, 1, 1), ONE), self.write("two", (1, 1, 1, 1), ONE, deck={"train__microbatch": 4}))
        page = (self.output / "report.md").read_text(encoding="utf-8")
        self.assertIn("| run | train.microbatch |", page)
        self.assertNotIn("tensor (ms, %)", page)


class Curves(ReportTest):
    draws = True

    def labels(self, figure: Figure) -> list[str]:
        self.addCleanup(plt.close, figure)
        return [text.get_text() for text in figure.legends[0].get_texts()]

    def test_runs_on_one_curve_are_one_line(self) -> None:
        for name, shift in (("a", 0.0), ("b", 1e-6), ("c", 0.5)):
            write_deck(self.folder / name)
            rows = [metrics_row(step) for step in range(1, 16)]
            write_metrics(self.folder / name, [row | {"loss": row["loss"] + shift} for row in rows])
        figure = draw_steps([read_metrics(Run(self.folder / name, name)) for name in "abc"])

        self.assertEqual(self.labels(figure), ["a and 1 run on the same curve", "c", "training"])  # nothing was validated
        self.assertEqual(len(figure.axes[0].lines), 2 * 2)  # training and marks

    def test_bars_without_a_second_one_stand_above_their_ticks(self) -> None:
        run = self.write("a", (1, 1, 1, 1), ONE)
        figure = draw(read_layouts(Run(run, "a"), 5)[0])
        self.addCleanup(plt.close, figure)

        axes = figure.axes[0]
        self.assertEqual({round(bar.get_x() + bar.get_width() / 2, 9) for bar in axes.patches}, {float(axes.get_xticks()[0])})


if __name__ == "__main__":
    unittest.main()
