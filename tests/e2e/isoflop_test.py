#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compute budgets: the sizes of the study are those of the program, and runs of equal compute become a law."""

import json
import os
import pathlib
import re
import subprocess

import support

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = support.python_of_reports()
SIZES = """
import json, sys
from analysis.study.spec import read_study
study = read_study(__import__("pathlib").Path("inputs/studies/isoflop.yaml"), sys.argv[1] == "small")
axis = next(axis for axis in study.axes if axis.name == "size")
print(json.dumps({choice.label: study.settings | choice.settings for choice in axis.choices}))
"""
# Parameters beside the table at the input: width x (vocabulary + 4 width + 3 x feed-forward width + 3) of one layer.
STUDY = """\
name: budgets
title: Loss by size
deck: deck.yaml
set: {data.train: [synthetic], data.validation: [synthetic], train.validate_every: 0, train.validate_batches: 4,
      checkpoint.final: false, checkpoint.every: 0, train.global_batch: 4, model.layers: 1}
axes:
  flops: [1.0e+9, 3.0e+9]
  size:
    small: {parameters: 3872, model.width: 8}
    middle: {parameters: 8256, model.width: 16}
    large: {parameters: 13152, model.width: 24}
tables: [{columns: [final_loss]}]
"""


class Budgets(support.Case):
    """jobs/study.py and python3 -m analysis isoflop with the program."""

    def setUp(self):
        super().setUp()
        if PYTHON is None:
            self.skipTest("no Python with h5py, matplotlib, PyYAML and Jinja2")

    def python(self, *words, cwd=ROOT):
        done = subprocess.run([PYTHON, *map(str, words)], cwd=cwd, capture_output=True, text=True, check=False,
                              env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_sizes_of_the_study_are_those_of_the_program(self):
        for form in ("large", "small"):
            for label, settings in json.loads(self.python("-c", SIZES, form)).items():
                with self.subTest(form=form, size=label):
                    keys = {key: value for key, value in settings.items() if key.startswith("model.")}
                    keys |= {"parallel.data": 1, "parallel.tensor": 1, "run.device": "cpu", "data.train": "[synthetic]",
                             "data.validation": "[synthetic]", "data.vocabulary": "null"}
                    shown = self.run_program("train", ROOT / settings["deck"], "--dry-run", *support.overrides(
                        *(f"{key}={value}" for key, value in keys.items())))
                    parameters = int(re.search(r"(?m)^parameters +(\d+)$", shown.out)[1])
                    vocabulary = settings.get("model.vocabulary", 10000)
                    self.assertEqual(parameters - vocabulary * settings["model.width"], settings["parameters"])

    def test_runs_of_equal_compute_become_a_law(self):
        (self.folder / "budgets.yaml").write_text(STUDY, encoding="utf-8")
        self.python(ROOT / "jobs" / "study.py", "budgets.yaml", "--binary", support.command()[0],
                    "--launcher", "env OMP_NUM_THREADS=1", cwd=self.folder)

        out = self.python("-m", "analysis", "isoflop", "runs/budgets", "--draws", "20", cwd=self.folder)

        found = json.loads((self.folder / "runs/budgets/report/isoflop.json").read_text(encoding="utf-8"))
        self.assertIn("N: parameters without the tables at the input", out)
        for budget, compute in zip(found["budgets"], (1e9, 3e9)):
            self.assertEqual(len(budget["runs"]), 3)
            self.assertAlmostEqual(budget["compute"] / compute, 1.0, delta=0.03)


if __name__ == "__main__":
    support.main()
