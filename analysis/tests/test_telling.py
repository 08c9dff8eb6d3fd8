# SPDX-License-Identifier: Apache-2.0
"""Sentences, labels and order of what a study tells."""
from __future__ import annotations

import unittest
from pathlib import Path

from analysis.study.columns import fitted
from analysis.study.draw import bar_text, series_of
from analysis.study.rows import Result, Row
from analysis.study.spec import Axis, Choice, Plot, read_study
from analysis.report.studies import row_sentences
from analysis.tables import number
from analysis.tests.study_case import StudyTest


def row(size: str, loss: float, state: str = "done") -> Row:
    return Row({"size": size}, [size], state, {"final_loss": loss})


class Sentences(StudyTest):
    def result(self, base: dict[str, str] | None, rows: list[Row]) -> Result:
        self.write(axes={"size": {name: {"run.seed": index} for index, name in enumerate("abc")}}, base=base,
                   tables=[{"columns": ["final_loss"]}])
        study = read_study(Path("study.yaml"))
        return Result(study, study.axes, rows, [], [])

    def test_a_diverged_row_is_told_so(self) -> None:
        result = self.result({"size": "a"}, [row("a", 2.0), row("b", 3.0, "diverged"), row("c", 2.00001)])

        self.assertEqual(row_sentences(result), [
            "size b beside size a: final loss (nats) 2.0000 to 3.0000 (+50.0 %); it diverged on the way.",
            "size c beside size a: final loss (nats) 2.0000 to 2.0000 (unchanged)."])
        plot = Plot("bars", "loss", "Loss", "size", ["final_loss"], change=True)
        texts = [bar_text(result, plot, each, fitted("final_loss", [2.0])) for each in result.rows]
        self.assertEqual(texts, ["2.0000", "3.0000\n+50.0 %\ndiverged", "2.0000\nunchanged"])

    def test_without_a_base_the_extremes_are_told(self) -> None:
        result = self.result(None, [row("a", 2.0), row("b", 3.0), row("c", 9.0, "diverged")])

        self.assertEqual(row_sentences(result), ["final loss (nats): least 2.0000 (size a), greatest 3.0000 (size b), "
                                                 "beside 1 that diverged."])

    def test_series_have_the_order_of_their_axis(self) -> None:
        precision = Axis("precision", [Choice(name, {}) for name in ("fp32", "tf32", "bf16")])
        context = Axis("context", [Choice(name, {}) for name in ("128", "512")])
        rows = [Row({"precision": name, "context": place}, [], "done", {}) for place, names in (
            ("128", ("fp32", "bf16")), ("512", ("fp32", "tf32", "bf16"))) for name in names]
        result = Result(self.result(None, []).study, [precision, context], rows, [], [])

        found = series_of(result, Plot("lines", "a", "A", "context", []), rows)

        self.assertEqual(list(found), ["fp32", "tf32", "bf16"])

    def test_no_number_is_minus_zero(self) -> None:
        self.assertEqual([number(value, 1) for value in (-0.04, 0.0, -0.06, 1234.56)], ["0.0", "0.0", "-0.1", "1,234.6"])


if __name__ == "__main__":
    unittest.main()
