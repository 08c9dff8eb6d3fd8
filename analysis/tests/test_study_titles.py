# SPDX-License-Identifier: Apache-2.0
"""What a study says of itself is true of the points that ran."""
from __future__ import annotations

import json
import os
import re
import unittest
from pathlib import Path

from analysis.study.points import expand
from analysis.study.settings import deck_value
from analysis.study.spec import read_study
from analysis.tests.commands import run_command
from analysis.tests.study_case import ROOT, StudyTest
from analysis.yaml_files import load_yaml

MODEL = re.compile(r"GPT-2|ViT-\w+/\d+|Llama|\d+ x \d+ pixels|batch \d{3}")


class Titles(StudyTest):
    def test_a_report_has_the_model_that_ran_in_its_title(self) -> None:
        self.write()
        self.run_study()
        run_command("study", "runs/tiny")
        run_command("report", "runs/tiny")

        for name in ("study.md", "report.md"):
            text = (Path("runs/tiny/report") / name).read_text(encoding="utf-8")
            self.assertTrue(text.startswith("# A tiny study: llama, 1k parameters\n"), text[:80])

    def test_several_models_are_in_no_title(self) -> None:
        self.write()
        self.run_study()
        path = Path("runs/tiny/points/ranks_1-context_8/bench.json")
        path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"model": "gpt2: tiny"}), encoding="utf-8")
        run_command("study", "runs/tiny")

        self.assertTrue(Path("runs/tiny/report/study.md").read_text(encoding="utf-8").startswith("# A tiny study\n"))

    def test_no_small_study_claims_the_model_of_the_large_one(self) -> None:
        os.chdir(ROOT)
        for path in sorted(Path("inputs/studies").glob("*.yaml")):
            study = read_study(path, small=True)
            texts = [study.title, study.about, *(table.title for table in study.tables), *(plot.title for plot in study.plots)]
            self.assertEqual([text for text in texts if MODEL.search(text)], [], path)

    def test_a_study_that_names_its_model_has_it(self) -> None:
        os.chdir(ROOT)
        for path in sorted(Path("inputs/studies").glob("*.yaml")):
            study = read_study(path)
            if "ViT-S/16" in study.title + study.about:
                for point in expand(study, str(path)):
                    deck = load_yaml(Path(point.settings["deck"]))
                    for key, value in (("model.width", 384), ("model.patch", 16)):
                        self.assertEqual(point.settings.get(key, deck_value(deck, key)), value, path)


if __name__ == "__main__":
    unittest.main()
