# SPDX-License-Identifier: Apache-2.0
"""Given a wrong folder a command says what it looked for, where, and what to do."""
from __future__ import annotations

import unittest

from analysis.tests.commands import CommandTest
from analysis.tests.fake_runs import metrics_row, write_deck, write_metrics


class WrongFolders(CommandTest):
    def test_a_folder_of_runs(self) -> None:
        for name in ("a", "b"):
            write_metrics(self.folder / "runs" / name, [metrics_row(1)])
        (self.folder / "runs/other").mkdir()

        for words in (["report"], ["time"], ["arrivals"], ["summary"], ["learning"]):
            output = [] if words[0] in ("arrivals", "summary") else ["--output", self.output]
            self.expect_error(*words, self.folder / "runs", *output, says=(
                f"{self.folder}/runs is no run directory: deck.yaml, metrics.jsonl and timing were looked for there; it holds "
                f"these: {self.folder}/runs/a, {self.folder}/runs/b\n"))

    def test_a_study_where_a_run_is_needed(self) -> None:
        study = self.folder / "study"
        write_deck(study / "points/ranks_1")
        (study / "study.yaml").write_text("name: a\n", encoding="utf-8")

        self.expect_error("time", study, "--output", self.output,
                          says=f"{study} is a study: deck.yaml, metrics.jsonl and timing were looked for there; it holds these: "
                               f"{study}/points/ranks_1\n")

    def test_an_empty_folder(self) -> None:
        (self.folder / "empty").mkdir()

        self.expect_error("report", self.folder / "empty", "--output", self.output,
                          says="were looked for there; name a folder that `hyperslab train` wrote")

    def test_a_run_without_a_step(self) -> None:
        write_deck(self.folder / "a")

        for command in ("report", "time"):
            self.expect_error(command, self.folder / "a", "--output", self.output,
                              says=f"there is no {self.folder}/a/timing/start_* with rank_*.h5; the run has not ended its first step, "
                                   "or the files were not copied: run it longer, or copy them")
        self.expect_error("summary", self.folder / "a", says="metrics.jsonl is missing; the run has not ended its first step")


if __name__ == "__main__":
    unittest.main()
