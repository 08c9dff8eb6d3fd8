# SPDX-License-Identifier: Apache-2.0
"""Texts of others in reports: no tag, attribute, link or line of a script comes out of them."""
from __future__ import annotations

import shlex
import unittest
import xml.etree.ElementTree
from html.parser import HTMLParser
from pathlib import Path
from unittest import mock

import yaml

from analysis.tests.commands import CommandTest, run_command
from analysis.tests.fake_runs import metrics_row, write_deck, write_metrics, write_scaled
from analysis.tests.study_case import StudyTest

EVIL = """L" onload="alert(4)' onclick='alert(5)'><script>alert(1)</script><img src=x onerror=alert(2)> | $\\frac{ \
--><b> ]]> [here](javascript:alert(3)) & &lt; {{ 7 * 7 }}"""
AXIS = "axis\" onload=x <b>$\\frac{ --> [b](c)"
TAGS = {"html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "p", "section", "ul", "li", "figure", "figcaption",
        "div", "table", "caption", "thead", "tbody", "tr", "th", "td"}
SVG_TAGS = {"svg", "defs", "g", "path", "use", "clippath", "rect", "text", "tspan", "image", "pattern", "style", "metadata"}


class Tags(HTMLParser):
    """Which tags and attributes a page has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


class Hostile(CommandTest):
    def setUp(self) -> None:
        super().setUp()
        no_pdf = mock.patch("analysis.report.command.write_pdf", lambda document, path: "")  # it takes the same page
        no_pdf.start()
        self.addCleanup(no_pdf.stop)

    def expect_harmless(self, folder: Path) -> None:
        suffixes = set()
        for path in sorted(folder.iterdir()):
            suffixes.add(path.suffix)
            with self.subTest(file=path.name):
                if path.suffix == ".html":
                    self.expect_page(path.read_text(encoding="utf-8"))
                if path.suffix == ".svg":
                    tags = {each.tag.split("}")[1].lower() for each in xml.etree.ElementTree.parse(path).iter()}
                    self.assertLessEqual({tag for tag in tags if tag in ("script", "b", "img", "a")}, set())
                if path.suffix == ".md":
                    text = path.read_text(encoding="utf-8")
                    self.assertNotIn("<", text)
                    self.assertNotRegex(text, r"(^|[^\\!])\[")
        self.assertLessEqual({".html", ".md", ".svg", ".csv"}, suffixes)

    def expect_page(self, text: str) -> None:
        found = Tags(text)
        self.assertEqual(found.tags - TAGS - SVG_TAGS, set())
        self.assertEqual({name for name in found.attributes if name.startswith("on") or name in ("href", "src", "srcdoc")}, set())


class HostileRuns(Hostile):
    def test_names_hosts_devices_and_deck_values(self) -> None:
        runs = []
        for ranks in (1, 2):
            name = f"a{ranks} \" onload=\"x\" <script>$\\frac{{ [b](javascript:c)"
            run = self.folder / name
            write_deck(run, parallel__data=ranks, data__train=yaml.safe_dump([EVIL], width=10_000).strip()[2:],
                       model__family=yaml.safe_dump(EVIL, width=10_000).split("\n")[0])
            write_scaled(run, (ranks, 1, 1, 1), {"forward": 30.0 / ranks, "backward": 60.0 / ranks}, host=EVIL, device=EVIL,
                         commit=EVIL)
            write_metrics(run, [metrics_row(step) for step in range(1, 26)])
            runs.append(run)

        code, _, err = run_command("report", *runs, "--output", self.output)

        self.assertEqual((code, err), (0, ""))
        self.expect_harmless(self.output)


class HostileStudy(StudyTest, Hostile):
    def test_every_text_of_a_study(self) -> None:
        labels = [f"{letter}\" onload=x <script>$\\frac{{ --> [b](c)" for letter in "ab"]
        self.write(title=EVIL, about=f"{EVIL}\n# {EVIL}", environment={"WORDS": EVIL},
                   axes={AXIS: {labels[0]: {"model.context": 8}, labels[1]: {"model.context": 16}}},
                   base={AXIS: labels[0]}, tables=[{"title": EVIL, "columns": ["step_seconds", "memory_peak_bytes"]}],
                   plots=[{"kind": kind, "name": kind, "title": EVIL, "x": AXIS, "y": ["step_seconds"]}
                          for kind in ("lines", "bars")])
        code, _, err = self.run_study()
        self.assertEqual(code, 0, err)

        for command in ("study", "report"):
            code, _, err = run_command(command, "runs/tiny")
            self.assertEqual((code, err), (0, ""))

        self.expect_harmless(Path("runs/tiny/report"))

    def test_names_of_files_are_names_of_files(self) -> None:
        for changes in ({"name": "a b"}, {"name": "a\nb"}, {"name": "../a"},
                        {"plots": [{"name": "../../a", "x": "ranks", "y": ["step_seconds"]}]},
                        {"plots": [{"name": "a\" onload=\"b", "x": "ranks", "y": ["step_seconds"]}]}):
            with self.subTest(changes=changes):
                self.write(**changes)
                code, out, err = self.run_study("--dry-run")
                self.assertEqual((code, out), (2, ""))
                self.assertRegex(err, r"\Astudy.py: study.yaml: [^\n]*name is `[^\n]*expected the name of a file[^\n]*\n\Z")
        points = self.points(point="../../x/{ranks} {model.context}", name="tiny")
        self.assertEqual(points[0].name, "_.._x_1_8")

    def test_slurm_scripts_quote_or_refuse(self) -> None:
        self.write()
        folder = "runs/a b'c %j #d"
        code, _, err = self.run_study("--slurm", "comment=words; touch x $(touch y)", "exclusive", "--output", folder)
        self.assertEqual(code, 0, err)
        text = Path(folder, "study.slurm").read_text(encoding="utf-8")
        lines = [shlex.split(line) for line in text.splitlines() if line.startswith("#SBATCH")]
        self.assertIn(["#SBATCH", "--comment=words; touch x $(touch y)"], lines)
        self.assertIn(["#SBATCH", "--exclusive"], lines)
        self.assertIn(["#SBATCH", "--output=runs/a b'c %%j #d/slurm-%A_%a.out"], lines)
        for words in (["--slurm", "comment=a\ntouch x"], ["--slurm", "a b=c"], ["--slurm", ""],
                      ["--slurm", "--output", "runs/a\ntouch x"]):
            with self.subTest(words=words):
                code, out, err = self.run_study(*words)
                self.assertEqual((code, out), (2, ""), out)
                self.assertEqual(err.count("\n"), 1, err)


if __name__ == "__main__":
    unittest.main()
