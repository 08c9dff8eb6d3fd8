# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import csv
import unittest
from pathlib import Path

from analysis.crowding import crowd_of
from analysis.dashes import dash_note
from analysis.tests.commands import run_command
from analysis.tests.fake_runs import metrics_row, write_metrics
from analysis.tests.study_case import StudyTest
from analysis.tests.test_report import ONE, TWO, ReportTest

CROWDED = "threads: 1 a rank; 2 ranks on 1 core of this host's 8 (the others are closed to them by taskset); more ranks than cores"


class Crowded(ReportTest):
    def runs(self, printed: str = "", **attributes: int) -> list[Path]:
        """On one and two ranks, with an MFU of 50 %; of the second what the program printed, and its attributes."""
        runs = [self.write("one", (1, 1, 1, 1), ONE, device="cpu"), self.write("two", (2, 1, 1, 1), TWO, device="cpu", **attributes)]
        for run in runs:
            write_metrics(run, [metrics_row(step) | {"mfu": 0.5} for step in range(1, 26)])
        (runs[1] / "output.txt").write_text(printed, encoding="utf-8")
        return runs

    def test_utilization_is_left_out_and_every_dash_is_explained(self) -> None:
        for runs in (self.runs(CROWDED), self.runs(cores=1)):
            out, content = self.report(*runs)

            self.assertEqual([row["mfu"] for row in content["groups"][0]["rows"]], [0.5, None])
            self.assertIn("note: more ranks than cores: two (", out)
            self.assertIn("2 ranks on 1 core", out)
            self.assertIn("Where a cell is a dash: MFU, attention as masked (%): more ranks than cores", out)
            page = (self.output / "report.md").read_text(encoding="utf-8")
            self.assertIn("more ranks than cores, no metrics.jsonl, or a peak rate that is unknown", page)

    def test_what_a_crowded_pipeline_has_beyond_its_parts_is_waiting_for_a_core(self) -> None:
        for cores, words in ((1, "10.0 % other, which is waiting for a core between the passes of a pipeline"), (2, "10.0 % other")):
            self.report(self.write("pipeline", (1, 2, 1, 1), {"forward": 9.0}, device="cpu", cores=cores))

            page = (self.output / "report.md").read_text(encoding="utf-8")
            self.assertIn(f"is 90.0 % forward and backward; {words}.", page)
            self.assertIn("MPI yields the core there, and other is the wait until the rank has one again", page)

    def test_a_core_for_each_rank_keeps_it(self) -> None:
        for runs in (self.runs("threads: 1 a rank; 2 ranks on 2 cores"), self.runs(cores=2)):
            out, content = self.report(*runs)

            self.assertEqual([row["mfu"] for row in content["groups"][0]["rows"]], [0.5, 0.5])
            self.assertNotIn("more ranks than cores", out)
            self.assertNotIn("a dash", out)


class CrowdedPoints(StudyTest):
    def test_points_of_bench_have_no_utilization_either(self) -> None:
        self.write(tables=[{"columns": ["mfu", "step_seconds"]}])
        self.run_study()
        (Path("runs/tiny/points/ranks_2-context_8/output.txt")).write_text(CROWDED, encoding="utf-8")

        code, out, err = run_command("study", "runs/tiny")

        self.assertEqual((code, err), (0, ""))
        with Path("runs/tiny/report/study.csv").open(encoding="utf-8") as file:
            self.assertEqual([row["mfu"] for row in csv.DictReader(file)], ["0.5", "0.5", "", "0.5"])
        self.assertIn("Where a cell is a dash: MFU", out)
        self.assertIn("Where a cell is a dash: MFU", Path("runs/tiny/report/study.md").read_text(encoding="utf-8"))

    def test_what_the_program_prints_of_cores(self) -> None:
        for line, expected in ((CROWDED, "2 ranks on 1 core"), ("threads: 1 a rank; 4 ranks on 2 cores; more ranks than cores: they",
                                                                 "4 ranks on 2 cores"), ("threads: 1 a rank; 4 ranks on 4 cores", "")):
            Path("output.txt").write_text(f"{line}\n", encoding="utf-8")
            self.assertEqual(crowd_of(Path(".")), expected)
        self.assertEqual(crowd_of(Path("elsewhere")), "")

    def test_dashes_are_explained_by_column(self) -> None:
        note = dash_note([(["run", "MFU (%)", "tokens"], [["a", "-", "1"], ["b", "2", "-"]]), (["deck key", "a"], [["x.y", "-"]])])

        self.assertEqual(note, "Where a cell is a dash: MFU (%): more ranks than cores, no metrics.jsonl, or a peak rate that is "
                               "unknown or that a step exceeded; tokens: not measured; a: the deck lacks the key.")
        self.assertEqual(dash_note([(["run", "MFU (%)"], [["-1", "2"]])]), "")


if __name__ == "__main__":
    unittest.main()
