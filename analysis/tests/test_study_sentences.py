# SPDX-License-Identifier: Apache-2.0
"""Sentences, labels and order of what a study reports."""
from __future__ import annotations

import math
import unittest
from dataclasses import replace
from pathlib import Path
from typing import Any

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

    def test_a_diverged_row_is_reported_so(self) -> None:
        result = self.result({"size": "a"}, [row("a", 2.0), row("b", 3.0, "diverged"), row("c", 2.00001)])

        self.assertEqual(row_sentences(result), [
            "b beside a: final loss (nats) 2.0000 to 3.0000 (+1.0000); it diverged on the way.",
            "c beside a: final loss (nats) 2.0000 to 2.0000 (unchanged)."])
        plot = Plot("bars", "loss", "Loss", "size", ["final_loss"], change=True)
        texts = [bar_text(result, plot, each, fitted("final_loss", [2.0])) for each in result.rows]
        self.assertEqual(texts, ["2.0000", "3.0000\n+1.0000\ndiverged", "2.0000\nunchanged"])

    def test_without_a_base_the_extremes_are_reported(self) -> None:
        result = self.result(None, [row("a", 2.0), row("b", 3.0), row("c", 9.0, "diverged")])

        self.assertEqual(row_sentences(result), ["final loss (nats): least 2.0000 (a), greatest 3.0000 (b), "
                                                 "beside 1 that diverged."])

    def test_changes_are_reported_between_equal_commands_and_data_alone(self) -> None:
        def reported(**other: Any) -> list[str]:
            values = {"final_loss": 2.0, "tokens_per_second": 100.0, "memory_peak_bytes": 2.0 ** 30}
            more = {"final_loss": 1.5, "tokens_per_second": 620.0, "memory_peak_bytes": 2.0 ** 31}
            one = Row({"size": "a"}, ["a"], "done", values, {}, "eval", ("t", "v"))
            two = replace(Row({"size": "b"}, ["b"], "done", more, {}, "eval", ("t", "v")), **other)
            result = self.result({"size": "a"}, [one, two])
            table = replace(result.study.tables[0], columns=["final_loss", "tokens_per_second", "memory_peak_bytes"])
            result = replace(result, study=replace(result.study, tables=[table]))
            self.assertEqual([math.isnan(result.relative(two, name)) for name in ("final_loss_change", "speed_up")],
                             [other.get("data", ("", "v"))[1] != "v", "command" in other])
            return row_sentences(result)

        memory = "peak memory (MiB) 1,024.0 to 2,048.0 (+100.0 %)"
        self.assertEqual(reported(), [f"b beside a: {memory}; tokens/s 100 to 620 (6.2 times as fast); "
                                      "final loss (nats) 2.0000 to 1.5000 (-0.5000)."])
        self.assertEqual(reported(command="train"), ["b beside a: final loss (nats) 2.0000 to 1.5000 (-0.5000)."])
        self.assertEqual(reported(data=("t", "w")), [f"b beside a: {memory}; tokens/s 100 to 620 (6.2 times as fast)."])
        self.assertEqual(reported(command="train", data=("t", "w")), [])

    def test_what_rows_have_in_common_is_said_once(self) -> None:
        axes = [Axis("deck", [Choice(name, {}) for name in ("small", "large")]),
                Axis("model.context", [Choice("128", {})]), Axis("precision.compute", [Choice(name, {}) for name in ("fp32", "tf32", "bf16")])]
        rows = [Row({"deck": deck, "model.context": "128", "precision.compute": precision}, [], "done", {"tokens_per_second": rate})
                for deck in ("small", "large") for precision, rate in (("fp32", 100.0), ("tf32", 300.0), ("bf16", 110.0))]
        study = self.result({"size": "a"}, []).study
        study = replace(study, base={"precision.compute": "fp32"}, tables=[replace(study.tables[0], columns=["tokens_per_second"])])

        reported = row_sentences(Result(study, axes, rows, [], []))

        self.assertEqual(reported, [f"{deck}: tf32 beside fp32: tokens/s 100 to 300 (3.0 times as fast). "
                                    "bf16 beside fp32: tokens/s 100 to 110 (+10.0 %)." for deck in ("small", "large")])

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
