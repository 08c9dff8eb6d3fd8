# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
import unittest
from pathlib import Path

from analysis.tests.commands import run_command
from analysis.tests.fake_runs import metrics_row, write_deck, write_metrics, write_scaled
from analysis.tests.study_case import StudyTest


class Parts(StudyTest):
    def test_a_report_on_several_studies_has_a_part_for_each(self) -> None:
        self.write()
        self.run_study()
        self.write(name="wide", title="A wide study", axes={"model.context": [8, 32]}, base=None)
        self.run_study()
        write_deck(Path("one"))
        write_metrics(Path("one"), [metrics_row(step) for step in range(1, 26)])
        write_scaled(Path("one"), (1, 1, 1, 1), {"forward": 30.0, "backward": 60.0})

        self.expect_error("report", "runs/tiny", "runs/wide", says="in 2 parts be written? give --output DIR")
        code, out, err = run_command("report", "tiny", "one", "runs/wide", "runs/../runs/tiny", "--output", "all")

        self.assertEqual((code, err), (0, ""), out)
        text = Path("all/report.md").read_text(encoding="utf-8")
        self.assertTrue(text.startswith("# Report in 3 parts\n\nA tiny study: llama, 1k parameters; A wide study: llama, 1k parameters; Scaling report.\n"), text[:200])
        self.assertEqual(re.findall(r"(?m)^## (.*)$", text),
                         ["A tiny study: llama, 1k parameters", "A wide study: llama, 1k parameters", "Scaling report", "Optimization: Gradient accumulation",
                          "How it is measured"])
        self.assertEqual(re.findall(r"(?m)^### (Setup|Results of the study)$", text),
                         ["Setup", "Results of the study"] * 2 + ["Setup"])
        for name in ("1_tiny/study.csv", "2_wide/study.csv", "3_runs/scaling.csv"):
            self.assertTrue((Path("all") / name).is_file(), name)
        pictures = re.findall(r"\]\((.*?\.png)\)", text)
        self.assertIn("3_runs/scaling.png", pictures)
        for picture in pictures:
            self.assertTrue((Path("all") / picture).is_file(), picture)
        page = Path("all/report.html").read_text(encoding="utf-8")
        self.assertEqual(page.count("<h2 "), 5)
        self.assertNotRegex(page, r'id="3_runs/')


if __name__ == "__main__":
    unittest.main()
