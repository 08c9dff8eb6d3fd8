# SPDX-License-Identifier: Apache-2.0
"""All commands leave out the same first steps, and say so."""
from __future__ import annotations

import io
import unittest
from contextlib import redirect_stdout

from analysis.__main__ import make_parser
from analysis.first_steps import SKIPPED_STEPS
from analysis.runs import Metrics, Run, typical_rate
from analysis.study.spec import read_study
from analysis.tests.commands import CommandTest, run_command
from analysis.tests.fake_runs import metrics_row, write_deck, write_metrics, write_scaled
from analysis.tests.study_case import StudyTest

COMMANDS = (("time", "R"), ("arrivals", "R"), ("check", "overlap", "R"), ("check", "idle", "R", "--limit", "1"))


class OneNumber(CommandTest):
    def test_every_command_has_the_same_default(self) -> None:
        for words in COMMANDS:
            self.assertEqual(make_parser().parse_args(list(words)).skip, SKIPPED_STEPS, words)
            text = io.StringIO()
            with redirect_stdout(text), self.assertRaises(SystemExit):
                make_parser().parse_args([word for word in words if word != "R"] + ["--help"])
            self.assertIn(f"(default {SKIPPED_STEPS})", " ".join(text.getvalue().split()))

    def test_what_was_left_out_is_in_the_output(self) -> None:
        run = self.folder / "a"
        write_deck(run, parallel__data=2)
        write_scaled(run, (2, 1, 1, 1), {"forward": 10.0, "reduce": 2.0, "reduce_exposed": 1.0})
        write_metrics(run, [metrics_row(step) for step in range(1, 26)])

        for words in (("report", run, "--output", self.output), ("check", "overlap", run, "--limit", 1)):
            self.assertIn("note: The first 5 steps of each start are left out.", run_command(*words)[1])
        self.assertEqual(run_command("time", run, "--output", self.output)[0], 0)
        text = (self.output / "time_per_rank.txt").read_text(encoding="utf-8")
        self.assertIn("median of 20 steps", text)
        self.assertIn("The first 5 steps of each start are left out.", text)
        self.assertIn("The first step of each start is left out.",
                      run_command("check", "overlap", run, "--limit", 1, "--skip", 1)[1])

    def test_rates_without_timing_files_leave_out_the_same_steps(self) -> None:
        rows = [metrics_row(step) | {"tokens_per_second": 1.0 if step <= SKIPPED_STEPS else 7.0} for step in range(1, 12)]

        self.assertEqual(typical_rate(Metrics(Run(self.folder, "a"), rows)), 7.0)
        self.assertEqual(typical_rate(Metrics(Run(self.folder, "a"), rows[:3])), 1.0)


class OfStudies(StudyTest):
    def test_a_study_that_says_nothing_has_it_too(self) -> None:
        self.assertEqual(read_study(self.write()).skip, SKIPPED_STEPS)
        self.assertEqual(read_study(self.write(skip=1)).skip, 1)


if __name__ == "__main__":
    unittest.main()
