# SPDX-License-Identifier: Apache-2.0
"""`report --template assignment`: order, pages, sentences that follow the numbers, and figures of a column's width."""
from __future__ import annotations

import importlib.util
import json
import re
import struct
import time
import unittest
from pathlib import Path
from typing import Any

from analysis.learning import apart, draw_steps
from analysis.report.assignment import EXTRA, MOST_PAGES
from analysis.report.optimizations import read_optimizations
from analysis.report.ranges import VERDICTS, axis_pairs, range_sentence, verdict
from analysis.runs import Run, read_metrics
from analysis.study.draw import draw_plot
from analysis.study.rows import Result, Row
from analysis.study.spec import Axis, Choice, Plot, read_study
from analysis.style import Look, plt, set_look
from analysis.tests.commands import run_command
from analysis.tests.fake_runs import metrics_row, write_deck, write_metrics
from analysis.tests.study_case import StudyTest

HAS_PDF = importlib.util.find_spec("weasyprint") is not None
TABLES = [{"title": "Memory and rate", "columns": ["tokens_per_second", "speed_up", "memory_peak_bytes"]}]
PLOTS = [{"kind": "bars", "name": "memory", "title": "Memory by context", "x": "model.context", "y": ["memory_peak_bytes"]}]


class AssignmentTest(StudyTest):
    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(set_look, Look())

    def make(self, name: str, **changes: Any) -> str:
        self.write(**{"name": name, "title": f"Study {name}", "tables": TABLES, "plots": PLOTS} | changes)
        code, _, err = self.run_study()
        self.assertEqual(code, 0, err)
        return f"runs/{name}"

    def report(self, *words: object) -> tuple[str, str]:
        """What was printed, and report.md."""
        code, out, err = run_command("report", *words, "--template", "assignment", "--output", "all")
        self.assertEqual((code, err), (0, ""))
        return out, Path("all/report.md").read_text(encoding="utf-8")


class Report(AssignmentTest):
    def test_four_studies_are_one_report_of_four_pages(self) -> None:
        studies = [self.make(name, axes={"ranks": [1, 2], "model.context": [8, 16, 32, 64]}) for name in "abcd"]

        begin = time.monotonic()
        out, text = self.report(*studies)

        self.assertLess(time.monotonic() - begin, 30.0)
        self.assertEqual(re.findall(r"(?m)^## (.*)$", text), ["1. Experimental setup", "2. Profiling", "3. Background", "4. Trade-offs",
                                                              "5. Extra work"])
        self.assertEqual(re.findall(r"(?m)^### (2\.\d) Study (\w)", text), [(f"2.{number}", name) for number, name in enumerate("abcd", 1)])
        self.assertEqual(re.findall(r"\*Figure (\d)\. ", text), ["1", "2", "3", "4"])
        pages = re.search(r"note: the main part takes (\d) pages? of A4", out)
        self.assertEqual(pages is not None, HAS_PDF, out)
        if pages:
            self.assertLessEqual(int(pages[1]), MOST_PAGES)
            from weasyprint import HTML
            self.assertEqual(len(HTML(string=Path("all/report.html").read_text(encoding="utf-8")).render().pages), int(pages[1]))

    def test_an_appendix_on_request_has_what_the_pages_leave_out(self) -> None:
        study = self.make("a", axes={"ranks": [1, 2], "model.context": [8 * size for size in range(1, 17)]})

        out, text = self.report(study)
        _, longer = self.report(study, "--appendix")

        self.assertNotIn("Appendix", text)
        self.assertIn("more rows of this table are in the study's .csv", text)
        self.assertTrue(longer.startswith(text.rstrip("\n")))
        self.assertEqual(longer[len(text):].strip().splitlines()[0], "# Appendix")
        self.assertIn("### Results of the study", longer)
        self.assertLessEqual(int(re.search(r"takes (\d) page", out)[1]) if HAS_PDF else 0, MOST_PAGES)  # type: ignore[index]

    def test_sentences_follow_the_numbers(self) -> None:
        study = self.make("a")
        before = self.report(study)[1]
        path = Path("runs/a/points/ranks_2-context_16/bench.json")
        content = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(content | {"tokens_per_second": 10 * content["tokens_per_second"]}), encoding="utf-8")

        after = self.report(study)[1]

        self.assertIn("- ranks 2 beside ranks 1 (2 pairs): peak memory unchanged; tokens/s 2.0 times as fast", before)
        self.assertIn("- ranks 2 beside ranks 1 (2 pairs): peak memory unchanged; tokens/s 2.0 to 20.0 times as fast", after)
        self.assertIn("it is faster with the same memory (memory unchanged, tokens/s +100.0 %, in the median of 2 pairs).", before)
        self.assertIn("it is faster with the same memory (memory unchanged, tokens/s +1000.0 %, in the median of 2 pairs).", after)
        self.assertIn("context 16 beside context 8 (2 pairs): peak memory +100.0 %; tokens/s 1.0 to 10.0 times as fast", after)

    def test_only_what_was_used_has_a_background(self) -> None:
        def names(study: str) -> list[str]:
            text = self.report(study)[1]
            part = text[text.index("## 3. Background"):text.index("## 4. Trade-offs")]
            return [each.name for each in read_optimizations() if f"\n{each.name}: {each.text[:20]}" in part and f"({each.source}.)" in part]

        parallel = names(self.make("a", axes={"ranks": [1, 2]}, plots=[]))
        rounded = names(self.make("b", axes={"quantization.weights": ["none", "int8"]}, base=None, plots=[]))

        self.assertEqual(parallel, ["Data parallelism"])
        self.assertEqual(rounded, ["Matrices in int8 or int4 after training"])

    def test_every_technique_of_courses_has_a_paragraph_with_a_source(self) -> None:
        found = {each.name: each for each in read_optimizations()}

        for name in ("LoRA", "QLoRA", "Fake quantization (quantization-aware training)", "Matrices in int8 or int4 after training", "FP8", "Muon",
                     "Image loader", "Sharded parameters (zero 3)", "Context parallelism", "Mixture of experts"):
            self.assertGreater(len(found[name].text), 150)
            self.assertRegex(found[name].source, r"(19|20)\d\d$")
        self.assertLessEqual(set(EXTRA), set(found))
        lora, fake, after = (found[name] for name in ("LoRA", "Fake quantization (quantization-aware training)",
                                                      "Matrices in int8 or int4 after training"))
        self.assertTrue(lora.is_used_by("train", {"adapter.rank": "8"}))
        self.assertFalse(lora.is_used_by("train", {"adapter.rank": "0"}))
        self.assertFalse(found["QLoRA"].is_used_by("train", {"model.frozen_format": "nf4", "adapter.rank": "0"}))
        self.assertTrue(fake.is_used_by("train", {"quantization.weights": "int4"}))
        self.assertEqual([each.is_used_by("eval", {"quantization.weights": "int4"}) for each in (fake, after)], [False, True])

    def test_figures_have_the_width_of_a_column(self) -> None:
        def millimetres(name: str) -> int:
            width = struct.unpack(">I", Path("all", name).read_bytes()[16:20])[0]
            return round(width / 300 * 25.4)

        two = [{"kind": "bars", "name": "two", "title": "Two", "x": "model.context", "y": ["memory_peak_bytes", "tokens_per_second"]}]
        self.report(self.make("a"), self.make("b", plots=two))
        self.assertEqual([millimetres("1_a/memory.png"), millimetres("2_b/two.png")], [85, 170])
        self.report("runs/a", "--width", "120")
        self.assertEqual(millimetres("1_a/memory.png"), 120)
        self.assertNotIn('class="pair"', Path("all/report.html").read_text(encoding="utf-8"))  # too wide for a table beside it

    def test_a_figure_of_a_column_stands_beside_its_table(self) -> None:
        self.report(self.make("a"))

        page = Path("all/report.html").read_text(encoding="utf-8")
        pair = page[page.index('<div class="pair">'):]
        self.assertLess(pair.index("<svg"), pair.index("<table"))
        self.assertLess(pair.index("<table"), pair.index("</section>"))

    def test_fonts_that_are_not_there_and_an_appendix_of_nothing_are_refused(self) -> None:
        self.expect_error("report", self.make("b"), "--appendix", says="give --template assignment, too, or leave it out")
        self.expect_error("report", self.make("a"), "--font", "DejaVu Srif", says="no such font is installed (did you mean DejaVu Serif?)")


class Ranges(AssignmentTest):
    def result(self, rows: list[Row]) -> Result:
        self.write(axes={"size": {name: {"run.seed": index} for index, name in enumerate("ab")}}, base={"size": "a"},
                   tables=[{"columns": ["tokens_per_second", "memory_peak_bytes", "final_loss"]}])
        study = read_study(Path("study.yaml"))
        return Result(study, study.axes, rows, [], [])

    def test_verdicts(self) -> None:
        def said(memory: float, rate: float) -> str:
            one, two = (Row({"size": name}, [], "done", {"memory_peak_bytes": m, "tokens_per_second": r})
                        for name, m, r in (("a", 100.0, 100.0), ("b", memory, rate)))
            return verdict(self.result([one, two]), "b beside a", [(two, one)])

        self.assertEqual(said(60.0, 80.0), "b beside a: it trades speed for memory (memory -40.0 %, tokens/s -20.0 %).")
        self.assertIn("it saves memory and is faster", said(60.0, 120.0))
        self.assertIn("it costs memory and speed", said(160.0, 20.0))
        self.assertIn("it saves memory at the same speed", said(60.0, 101.0))
        self.assertEqual(said(100.0, 100.5), "")
        self.assertEqual(len(VERDICTS), 8)

    def test_the_range_of_a_loss_is_in_nats(self) -> None:
        rows = [Row({"size": name}, [], "done", {"final_loss": loss}) for name, loss in (("a", 2.0), ("b", 2.1), ("a", 3.0), ("b", 2.9))]

        text = range_sentence(self.result(rows), "b beside a", [(rows[1], rows[0]), (rows[3], rows[2])])

        self.assertEqual(text, "b beside a (2 pairs): final loss -0.1000 to +0.1000 nats.")

    def test_ends_of_an_axis_are_compared_with_all_else_equal(self) -> None:
        axes = [Axis("batch", [Choice(name, {}) for name in ("1", "2", "4")]), Axis("kind", [Choice(name, {}) for name in "xy"])]
        rows = [Row({"batch": batch, "kind": kind}, [], "done", {}) for batch in ("1", "2", "4") for kind in "xy" if (batch, kind) != ("1", "y")]
        study = self.result([]).study

        what, pairs = axis_pairs(Result(study, axes, rows, [], []), axes[0])

        self.assertEqual(what, "batch 4 beside batch 1")
        self.assertEqual([(row.labels, base.labels) for row, base in pairs], [({"batch": "4", "kind": "x"}, {"batch": "1", "kind": "x"})])


class Figures(AssignmentTest):
    def test_memory_begins_at_zero_in_every_plot(self) -> None:
        self.write(axes={"model.context": [8, 16]}, base=None, tables=TABLES)
        study = read_study(Path("study.yaml"))
        rows = [Row({"model.context": label}, [], "done", {"memory_peak_bytes": value, "tokens_per_second": value})
                for label, value in (("8", 100e6), ("16", 110e6))]
        result = Result(study, study.axes, rows, [], [])
        for kind in ("lines", "bars"):
            figure = draw_plot(result, Plot(kind, "m", "M", "model.context", ["memory_peak_bytes"]), "")
            self.assertEqual(figure.axes[0].get_ylim()[0], 0.0)
            plt.close(figure)

    def test_tuned_runs_do_not_share_an_axis_with_their_base(self) -> None:
        runs = []
        for name, first, initial in (("base", 8.0, "null"), ("lora", 2.2, "runs/base"), ("full", 2.2, "runs/base")):
            write_deck(Path(name), checkpoint__initial=initial)
            write_metrics(Path(name), [metrics_row(step, first) for step in range(1, 60)])
            runs.append(read_metrics(Run(Path(name), name)))
        runs[2].rows[0]["loss"] += 0.1

        self.assertEqual(apart(runs), {", from the start": [0], ", tuned": [1, 2]})
        self.assertEqual(apart(runs[1:]), {"": [0, 1]})
        figure = draw_steps(runs)
        columns = len(figure.axes) // 2
        self.assertGreater(figure.axes[0].get_ylim()[1], 7.0)
        self.assertLess(figure.axes[columns].get_ylim()[1], 3.0)
        self.assertEqual(figure.axes[columns].get_title(loc="left"), "loss (nats per token), tuned")
        lines = [line.get_linestyle() for line in figure.axes[columns].lines if len(line.get_xdata()) > 1 and line.get_alpha() is None]
        self.assertEqual(len(set(lines[:2])), 2)  # one below the other is seen
        plt.close(figure)


if __name__ == "__main__":
    unittest.main()
