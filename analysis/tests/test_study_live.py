# SPDX-License-Identifier: Apache-2.0
"""What a study shows while it runs."""
from __future__ import annotations

import io
import unittest
from pathlib import Path
from unittest import mock

from analysis.study.live import Live, result_text
from analysis.study.record import Record, point_folder
from analysis.tests.fake_runs import metrics_row, write_deck, write_metrics, write_scaled
from analysis.tests.study_case import StudyTest


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Showing(StudyTest):
    def test_the_table_on_a_terminal_is_drawn_again(self) -> None:
        records = {point.name: Record.of(point) for point in self.points()}
        terminal = Terminal()
        live = Live(Path("runs/tiny"), records, terminal)
        record = records["ranks_1-context_16"]
        record.state, record.seconds = "running", 12.4

        live.update(record)
        live.update(record)

        first, again = terminal.getvalue().split("\x1b[7F\x1b[J")
        self.assertEqual(first, again)
        self.assertRegex(first, r"(?m)^ranks_1-context_16 +running +12 *$")
        self.assertIn("0 of 4 points", first)

    def test_a_line_has_the_whole_message(self) -> None:
        record = Record.of(self.points()[0])
        record.state, record.message, log = "failed", "hyperslab: " + 20 * "words " + "end", io.StringIO()

        Live(Path("runs/tiny"), {record.name: record}, log).update(record, event=True)

        self.assertTrue(log.getvalue().endswith("words end\n"), log.getvalue())

    def test_a_point_of_sums_shows_its_sum(self) -> None:
        point = self.points(command="accumulation", deck=None, axes={"sum": ["fp16"]}, base=None,
                            tables=[{"columns": ["accumulated_sum"]}])[0]
        record = Record.of(point)
        place = point_folder(Path("runs/tiny"), record.name)
        place.mkdir(parents=True)
        (place / "bench.json").write_text('{"sum": 9.953125, "exact": 10.0}', encoding="utf-8")
        record.state = "done"

        self.assertEqual(result_text(Path("runs/tiny"), record), "sum 9.95312")

    def test_the_rate_of_a_run_that_ended_is_that_of_its_measured_steps(self) -> None:
        point = self.points(command="train")[0]
        record = Record.of(point)
        place = point_folder(Path("runs/tiny"), record.name)
        write_deck(place)
        write_scaled(place, (1, 1, 1, 1), {"forward": 99.0}, tokens=4096)  # the first five steps last 10 s, the others 0.1 s
        write_metrics(place, [metrics_row(step) | {"loss": 2.5, "tokens_per_second": 777.0} for step in range(1, 26)])

        record.state = "running"
        self.assertEqual(result_text(Path("runs/tiny"), record), "step 25, loss 2.5000, 777 tokens/s")
        record.state = "done"
        self.assertEqual(result_text(Path("runs/tiny"), record), "step 25, loss 2.5000, 40,960 tokens/s (median of 20 steps)")
        self.assertEqual(result_text(Path("runs/tiny"), record, 25), "step 25, loss 2.5000")
        with mock.patch.dict("sys.modules", {"analysis.scaling": None}):  # as where there is no h5py
            self.assertEqual(result_text(Path("runs/tiny"), record, 3), "step 25, loss 2.5000")


if __name__ == "__main__":
    unittest.main()
