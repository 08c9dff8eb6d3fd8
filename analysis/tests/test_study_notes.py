# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import shlex
import unittest
from pathlib import Path

from analysis.study.machine import libraries_of
from analysis.tests.commands import run_command
from analysis.tests.study_case import StudyTest


class Notes(StudyTest):
    def test_points_that_an_axis_loses_are_named(self) -> None:
        self.write()
        self.run_study("--axis", "ranks=[1,2]")

        code, out, _ = self.run_study("--axis", "ranks=[1]")

        self.assertEqual(code, 0)
        self.assertEqual(out.count("is no point of the study any more: it stays in runs/tiny"), 2)
        self.assertIn("ranks_2-context_8 is no point", out)
        self.assertNotIn("ranks_1-context_8 is no point", out)

    def test_reports_say_that_a_machine_was_crowded_or_busy(self) -> None:
        self.write()
        self.run_study()
        for name, lines in (("ranks_1-context_8", "busy machine: its load of the last minute is 8.8 on 2 cores; other\n"),
                            ("ranks_2-context_8", "threads: 1 a rank; 4 ranks on 2 cores; more ranks than cores: they\n"
                                                  "busy machine: its load of the last minute is 9.25 on 2 cores; other\n")):
            (Path("runs/tiny/points") / name / "output.txt").write_text(lines, encoding="utf-8")

        code, out, err = run_command("study", "runs/tiny")

        self.assertEqual((code, err), (0, ""))
        self.assertIn("note: more ranks than cores: ranks_2-context_8 (4 ranks on 2 cores); the parts", out)
        self.assertIn("note: other programs used the machine during ranks_1-context_8, ranks_2-context_8 (load up to 9.25)", out)

    def test_commands_of_a_dry_run_can_be_pasted_and_steer_no_terminal(self) -> None:
        self.write(axes={"ranks": [2]}, base=None, set={"data.train": ["a b.bin", "c;d"], "run.note": "x\x1b[31m\u2028y"})

        code, out, err = self.run_study("--dry-run", "--output", "my runs")

        self.assertEqual((code, err), (0, ""))
        name, command, last = out.splitlines()
        words = shlex.split(command)
        self.assertIn("data.train=[a b.bin,c;d]", words)
        self.assertIn("run.directory=my runs/points/ranks_2", words)
        self.assertIn("run.note=x?[31m?y", words)
        self.assertEqual((name, last), ("ranks_2 (waiting)", "1 point in my runs"))

    def test_libraries_are_named_as_the_program_names_them(self) -> None:
        self.assertEqual(libraries_of("hyperslab 0.2.0 (abc)\n  compiler  GCC 12.2.0\n  MPI       Open MPI v4.1.4\n"
                                      "  CUDA      off in this build\n"), {"compiler": "GCC 12.2.0", "MPI": "Open MPI v4.1.4"})
        self.write()
        self.run_study()
        path = Path("runs/tiny/points/ranks_1-context_8/point.json")
        record = json.loads(path.read_text(encoding="utf-8"))
        record["machine"]["libraries"] = {"MPI": "Open MPI v4.1.4"}
        path.write_text(json.dumps(record), encoding="utf-8")
        run_command("report", "runs/tiny")

        self.assertIn("| compiler and libraries | Open MPI v4.1.4 |",
                      Path("runs/tiny/report/report.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    unittest.main()
