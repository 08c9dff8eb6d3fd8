# SPDX-License-Identifier: Apache-2.0
"""Names and texts of files as terminals, pages and figures get them."""
from __future__ import annotations

import io
import json
import os
import re
import unittest
import xml.etree.ElementTree
from pathlib import Path
from unittest import mock
from urllib.parse import unquote

from analysis.errors import UserError, one_line, visible
from analysis.runs import Run
from analysis.study.live import Live
from analysis.study.record import Record
from analysis.study.redraw import main as redraw
from analysis.tables import markdown_image, markdown_words, text_table
from analysis.tests.commands import CommandTest, run_command
from analysis.tests.fake_runs import metrics_row, write_deck, write_metrics, write_scaled
from analysis.tests.study_case import StudyTest

OBEYED = [*map(chr, range(10)), *map(chr, range(11, 32)), *map(chr, range(127, 160)), "\u061c", "\u200e", "\u200f",
          *map(chr, range(0x2028, 0x202F)), *map(chr, range(0x2066, 0x206A))]
EVIL = "\x1b]0;title\x07\x1b[31m\u202etxt\u2066\x9b2J\r\x7f\u200f"
NAME = "a) [b](c) 50%20#é <i>"


class TextTest(CommandTest):
    def expect_visible(self, text: str) -> None:
        self.assertEqual([letter for letter in text if letter in OBEYED], [], ascii(text))

    def expect_whole(self, folder: Path) -> None:
        """No text file has a control character, and every SVG can be read."""
        for path in sorted(folder.iterdir()):
            with self.subTest(file=path.name):
                if path.suffix in (".md", ".html", ".csv", ".txt", ".json", ".svg"):
                    self.expect_visible(path.read_text(encoding="utf-8"))
                if path.suffix == ".svg":
                    xml.etree.ElementTree.parse(path)


class Texts(TextTest):
    def test_a_terminal_obeys_nothing_of_a_text(self) -> None:
        for letter in [*OBEYED, "\ud800", "\udc9b"]:
            self.assertEqual(visible(f"a{letter}b\nc"), "a?b\nc", ascii(letter))
        self.assertEqual(visible("é 日本 \u200d العربية"), "é 日本 \u200d العربية")
        self.assertEqual(one_line("a\nb\x1b"), "a b?")

    def test_errors_names_and_cells_are_one_line(self) -> None:
        self.assertEqual(str(UserError("a\n\x1b[31mb")), "a ?[31mb")
        self.assertEqual(Run(Path("x"), "a\nb\u202e").label, "a b?")
        self.assertEqual(text_table(["a\nb"], [["\x1bc"]]), "a b\n---\n?c")


class Links(StudyTest):
    def images_of(self, text: str) -> list[tuple[str, str]]:
        """Labels and targets; nothing else in the text is a link."""
        found = re.findall(r"!\[((?:\\.|[^\]\\])*)\]\(([^()<>\s]*)\)", text)
        self.assertEqual(len(found), len(re.findall(r"(?<!\\)\]\(", text)), text)
        return found

    def test_nothing_in_a_label_or_a_path_ends_the_link(self) -> None:
        text = markdown_image("a](http://b) [c](d)\n![e](f)", f"{NAME}/p.png")
        (label, target), = self.images_of(text)
        self.assertEqual(re.sub(r"\\(.)", r"\1", label), "a](http://b) [c](d) ![e](f)")
        self.assertEqual(unquote(target), f"{NAME}/p.png")
        self.assertEqual(markdown_image("a", "1_a/b c.png"), "![a](1_a/b%20c.png)")
        self.assertEqual(unquote(markdown_image("a", "\udcff.png")[5:-1], errors="surrogateescape"), "\udcff.png")
        self.assertEqual(markdown_words("[a] \\ <b>"), "\\[a\\] \\\\ &lt;b>")

    def test_figures_of_studies_in_folders_of_any_name_are_found(self) -> None:
        self.write(plots=[{"name": "p", "title": "x](http://y) z", "x": "ranks", "y": ["step_seconds"]}])
        self.run_study()
        os.rename("runs/tiny", f"runs/{NAME}")
        self.write(name="wide", axes={"ranks": [1]})
        self.run_study()

        code, _, err = run_command("report", f"runs/{NAME}", "runs/wide", "--output", "all")
        self.assertEqual((code, err), (0, ""))
        code, _, err = run_command("study", f"runs/{NAME}", "--output", "one")
        self.assertEqual((code, err), (0, ""))

        for page in (Path("all/report.md"), Path("one/study.md")):
            (label, target), = self.images_of(page.read_text(encoding="utf-8"))
            self.assertIn("x\\](http://y) z", label)
            self.assertTrue((page.parent / unquote(target)).is_file(), target)


class ControlCharactersOfStudies(StudyTest, TextTest):
    def setUp(self) -> None:
        super().setUp()
        no_pdf = mock.patch("analysis.report.command.write_pdf", lambda document, path: "")  # it takes the same page
        no_pdf.start()
        self.addCleanup(no_pdf.stop)

    def test_every_text_of_a_study(self) -> None:
        labels = [f"{letter}{EVIL}" for letter in "ab"]
        axis = f"axis{EVIL}"
        self.write(title=f"T{EVIL}\nnote: forged", about=EVIL, base={axis: labels[0]},
                   axes={axis: {labels[0]: {"model.context": 8}, labels[1]: {"model.context": 16}}},
                   tables=[{"title": f"{EVIL}\nnote: forged", "columns": ["step_seconds"]}],
                   plots=[{"kind": kind, "name": kind, "title": EVIL, "x": axis, "y": ["step_seconds"]}
                          for kind in ("lines", "bars")])
        _, out, err = self.run_study()
        self.expect_visible(out + err)
        for path in Path("runs/tiny/points").glob("*/point.json"):
            content = json.loads(path.read_text(encoding="utf-8"))
            content |= {"state": "failed", "message": f"{EVIL}\nnote: forged", "machine": {"host": EVIL, "gpus": ["\ud800"]}}
            path.write_text(json.dumps(content), encoding="utf-8")

        for command in ("study", "report"):
            code, out, err = run_command(command, "runs/tiny")
            self.assertEqual((code, err), (0, ""))
            self.expect_visible(out)
            self.assertNotIn("\nnote: forged", out)

        self.expect_whole(Path("runs/tiny/report"))

    def test_an_error_that_quotes_a_file(self) -> None:
        self.write()
        self.run_study()
        for text in (f'title: "{ascii(EVIL)[1:-1]}"\nname: "{ascii(EVIL)[1:-1]}"\ntables: [1]\n', f"a: {EVIL}", f"? {EVIL!r}: ["):
            Path("runs/tiny/study.yaml").write_text(text, encoding="utf-8")
            code, out, err = run_command("study", "runs/tiny")
            self.assertEqual((code, out), (2, ""))
            self.assertRegex(err, r"\Aanalysis: runs/tiny/study.yaml[^\n]+\n\Z")
            self.expect_visible(err)

    def test_what_a_running_study_shows(self) -> None:
        record = Record.of(self.points()[0])
        record.state, record.message = "failed", f"{EVIL}\n{EVIL}"
        for terminal in (False, True):
            stream = io.StringIO()
            with mock.patch.object(stream, "isatty", lambda terminal=terminal: terminal):
                Live(Path("runs/tiny"), {record.name: record}, stream).update(record, event=True)
            self.expect_visible(stream.getvalue())

    def test_a_recorded_study_that_is_drawn_again(self) -> None:
        self.write()
        Path("table.csv").write_text(f"ranks,model.context,state\n{EVIL.replace(chr(13), '')},8,done\n", encoding="utf-8")
        with mock.patch("sys.stderr", io.StringIO()) as stream:
            self.assertEqual(redraw(["study.yaml", "table.csv", "b", "", "f.png"]), 2)
        self.assertRegex(stream.getvalue(), r"\Aredraw: table.csv:2: [^\n]+is no point of study.yaml\n\Z")
        self.expect_visible(stream.getvalue())


class ControlCharactersOfRuns(TextTest):
    def test_names_decks_and_timings_of_runs(self) -> None:
        names = [f"a{EVIL}\nnote: forged", os.fsdecode(b"b\xff\x9b")]
        for ranks, name in enumerate(names, 1):
            run = self.folder / name
            write_deck(run, model__family=EVIL.replace("\r", ""), parallel__data=ranks)
            write_metrics(run, [{"step": step, "\x1b": "\x1b", **metrics_row(step)} for step in range(1, 26)])
            write_scaled(run, (ranks, 1, 1, 1), {"forward": 30.0 / ranks}, host=EVIL, device=EVIL, commit=EVIL)
        runs = [self.folder / name for name in names]

        for command in ("report", "learning", "sweep", "time"):
            with self.subTest(command=command), mock.patch("analysis.report.command.write_pdf", lambda document, path: ""):
                code, out, err = run_command(command, *runs, "--output", self.output)
                self.assertEqual((code, err), (0, ""))
                self.expect_visible(out)
                self.assertNotIn("\nnote: forged", out)
        self.expect_whole(self.output)
        self.expect_visible(run_command("summary", runs[0])[1])

    def test_errors_of_runs(self) -> None:
        run = self.folder / f"a{EVIL}\nanalysis: forged"
        write_metrics(run, [])
        for text in ("", f"{EVIL}\n", f'{{"step": 1, "loss": "{ascii(EVIL)[1:-1]}"}}\n', f'"{EVIL}"\n'):
            (run / "metrics.jsonl").write_text(text, encoding="utf-8")
            code, out, err = run_command("summary", run)
            self.assertEqual((code, out), (2, ""))
            self.assertRegex(err, r"\Aanalysis: [^\n]+\n\Z")
            self.expect_visible(err)
        self.expect_visible(run_command("summary", self.folder / EVIL)[2])


if __name__ == "__main__":
    unittest.main()
