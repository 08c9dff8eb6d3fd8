# SPDX-License-Identifier: Apache-2.0
"""One word has one meaning in all tables of a report."""
from __future__ import annotations

import csv
import unittest
from pathlib import Path

import h5py
import numpy as np

from analysis.report.tables import communication_rows, traffic_rows
from analysis.runs import FINAL_LOSS, TRAINING_LOSS, Run, final_loss, read_metrics
from analysis.scaling import Case, make_groups, read_cases
from analysis.study.columns import COLUMNS, LOSSES
from analysis.study.measured import of_step
from analysis.tests.commands import cells, run_command
from analysis.tests.fake_runs import metrics_row, write_deck, write_metrics, write_scaled
from analysis.tests.study_case import StudyTest
from analysis.tests.test_report import ONE, ReportTest

# Two reductions of 20 ms each that are in progress at once for 15 ms.
PARTS = {"forward": 17.0, "backward": 33.0, "reduce_exposed": 4.0, "reduce": 40.0, "reduce_busy": 25.0, "tensor_comm": 6.0,
         "pipeline_comm": 2.0, "wait": 3.0}


class Communication(ReportTest):
    def case(self) -> tuple[Path, Case]:
        run = self.write("a", (2, 1, 1, 1), PARTS)
        for path in sorted(run.glob("timing/*/*.h5")):  # in this file step_seconds has both sums, too
            with h5py.File(path, "r+") as file:
                scale = np.asarray(file["steps/forward_seconds"]) / 17e-3
                file["steps/step_seconds"][...] = 70e-3 * scale
                for name, value in (("calls", 2.0), ("bytes", 1e6), ("seconds", 0.09), ("exposed_seconds", 0.05)):
                    file[f"groups/data/{name}"] = np.full(scale.size, value)
        return run, read_cases(Run(run, "a"), 5)[0][0]

    def test_communication_is_the_same_in_all_tables_and_files(self) -> None:
        run, case = self.case()
        header, rows = communication_rows(make_groups([case], None)[0])
        cells = dict(zip(header, rows[0]))
        self.report(run)
        with (self.output / "scaling.csv").open(encoding="utf-8") as file:
            row = next(csv.DictReader(file))

        for found in (1e-3 * float(cells["communication (ms)"]), of_step(case)["communication_seconds"],
                      float(row["communication_seconds"])):
            self.assertAlmostEqual(found, 0.033, places=9)
        for found in (1e-3 * float(cells["exposed communication (ms)"]), of_step(case)["exposed_seconds"],
                      float(row["communication_exposed_seconds"])):
            self.assertAlmostEqual(found, 0.012, places=9)

    def test_what_the_host_waits_for_a_group_is_not_called_exposed(self) -> None:
        run, case = self.case()
        header, rows = traffic_rows(make_groups([case], None)[0])
        self.report(run)

        self.assertEqual(dict(zip(header, rows[0]))["waited for (ms)"], "50.00")
        self.assertFalse(any("exposed" in name for name in header))
        self.assertIn("Traffic of a step and rank, by group. Transfers overlap each other and the computation, so their sum may "
                      "exceed the step.", (self.output / "report.md").read_text(encoding="utf-8"))


class FinalLoss(ReportTest):
    def test_it_is_one_number_with_one_name(self) -> None:
        run = self.folder / "a"
        write_deck(run)
        write_metrics(run, [metrics_row(step) for step in range(1, 41)])
        write_scaled(run, (1, 1, 1, 1), ONE, steps=40)
        final = f"{final_loss(read_metrics(Run(run, 'a'))):.4f}"

        self.report(run)
        run_command("sweep", run, "--output", self.output)
        run_command("learning", run, "--output", self.output)

        text = (self.output / "learning.txt").read_text(encoding="utf-8")
        self.assertEqual(cells(text, "final loss"), [final])
        page = (self.output / "report.md").read_text(encoding="utf-8")
        self.assertIn("| final loss |", page)
        for name in ("report.md", "sweep.html"):
            written = (self.output / name).read_text(encoding="utf-8")
            self.assertIn(final, written, name)
            self.assertIn(FINAL_LOSS, written, name)

    def test_a_loss_of_the_last_steps_has_its_own_name(self) -> None:
        titles = [COLUMNS[name].title for name in LOSSES]

        self.assertEqual(COLUMNS["training_loss"].title, f"{TRAINING_LOSS} (nats)")
        self.assertEqual(len(set(titles)), len(titles))


class FinalLossOfStudies(StudyTest):
    def test_a_study_says_what_it_is(self) -> None:
        self.write(tables=[{"columns": ["final_loss_change"]}])
        self.run_study()
        self.assertIn(f"note: {FINAL_LOSS}", run_command("study", "runs/tiny")[1])
        self.write()
        self.run_study()
        self.assertNotIn(FINAL_LOSS, run_command("study", "runs/tiny")[1])


if __name__ == "__main__":
    unittest.main()
