# SPDX-License-Identifier: Apache-2.0
"""A study that the program itself runs, if it is built."""
from __future__ import annotations

import csv
import unittest
from pathlib import Path

import yaml

from analysis.tests.commands import run_command
from analysis.tests.study_case import ROOT, STUDY, StudyTest


class RealProgram(StudyTest):
    def test_a_study_of_two_rank_counts_from_points_to_report(self) -> None:
        binary = ROOT / "build/bin/hyperslab"
        if not binary.is_file():
            self.skipTest(f"{binary} is not built")
        (self.folder / "deck.yaml").write_text(yaml.safe_dump({
            "run": {"device": "cpu"},
            "model": {"family": "llama", "layers": 1, "width": 32, "heads": 2, "vocabulary": 64, "context": 16},
            "data": {"train": ["synthetic"]}, "schedule": {"name": "constant"},
            "train": {"steps": 8, "global_batch": 8}, "checkpoint": {"final": False}}), encoding="utf-8")
        self.write(command="train", scaling="strong", axes={"ranks": [1, 2]}, skip=2,
                   environment={"OMP_NUM_THREADS": 1}, plots=[{"kind": "scaling"}],
                   tables=[{"columns": [*STUDY["tables"][0]["columns"], "run_compute_by_communication",
                                        "memory_prediction_error", "final_loss"]}])

        code, _, err = self.run_study(launcher="mpirun --quiet -np {ranks}", binary=binary)

        self.assertEqual(code, 0, err)
        code, out, err = run_command("report", "runs/tiny")
        self.assertEqual((code, err), (0, ""))
        losses = [line.split()[-1] for line in out.splitlines() if line.startswith(("1  ", "2  "))][:2]
        self.assertEqual(losses[0], losses[1])  # the same training on one and two ranks
        with Path("runs/tiny/report/study.csv").open(encoding="utf-8") as file:
            two = list(csv.DictReader(file))[1]
        self.assertAlmostEqual(float(two["run_compute_by_communication"]) * float(two["run_communication_seconds"]),
                               float(two["run_compute_seconds"]), places=6)
        page = Path("runs/tiny/report/report.html").read_text(encoding="utf-8")
        for words in ("Optimization: Data parallelism", "Predicted beside measured",
                      "Learning curves", "synthetic (generated tokens of a Markov chain)"):
            self.assertIn(words, page)
        self.assertRegex(page, "Laws of scaling, base 1 rank|No number of ranks is faster")  # on a busy machine
        self.expect_png(Path("runs/tiny/report/scaling.png"))


if __name__ == "__main__":
    unittest.main()
