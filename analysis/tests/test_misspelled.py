# SPDX-License-Identifier: Apache-2.0
"""Whoever misspells a name is told the nearest one that there is."""
from __future__ import annotations

import unittest
from pathlib import Path

from analysis.errors import UserError, nearest
from analysis.study.points import expand
from analysis.study.spec import read_study
from analysis.tests.fake_runs import metrics_row, write_metrics
from analysis.tests.study_case import StudyTest


class Misspelled(StudyTest):
    def test_nearest(self) -> None:
        self.assertEqual(nearest("rnaks", ["data", "ranks"]), " (did you mean ranks?)")
        self.assertEqual(nearest("x", ["data", "ranks"]), "")

    def test_names_in_a_study(self) -> None:
        for near, changes in (
                ("tables", {"tabless": []}), ("columns", {"tables": [{"columnsx": ["mfu"]}]}),
                ("tokens_per_second", {"tables": [{"columns": ["token_per_second"]}]}),
                ("final_loss_change", {"tables": [{"columns": ["final_los_change"]}]}),
                ("model.context", {"tables": [{"columns": ["mfu"], "across": "model.contxt"}]}),
                ("ranks", {"base": {"rank": 1}}), ("baseline", {"axes": {"a": {"baseline": {}}}, "base": {"a": "baselin"}}),
                ("bars", {"plots": [{"kind": "bar"}]}), ("strong", {"scaling": "stron"}),
                ("train", {"command": "trains"}), ("warmup", {"set": {"warm_up": 1}}), ("warmup", {"set": {"warmups": 1}}),
                ("ranks", {"point": "p{rank}"})):
            with self.subTest(near), self.assertRaises(UserError) as caught:
                path = self.write(**changes)
                expand(read_study(path), str(path))
            self.assertIn(f"(did you mean {near}?)", str(caught.exception))

    def test_words_of_the_command_line(self) -> None:
        self.write()
        for near, words in (("ranks", ["--axis", "rank=[1]"]), ("model.context", ["--set", "model.contxt=8"]),
                            ("ranks_1-context_8", ["--only", "rank_1-context_8"])):
            code, _, err = self.run_study(*words)
            self.assertEqual(code, 2)
            self.assertIn(f"(did you mean {near}?)", err)

    def test_folders(self) -> None:
        self.write()
        self.run_study()
        write_metrics(Path("runs/first"), [metrics_row(1)])

        self.expect_error("summary", "runs/firstt", says="(did you mean runs/first?)")
        self.expect_error("summary", "firstt", says="(did you mean first?)")
        self.expect_error("study", "runs/tyny", says="(did you mean runs/tiny?)")
        self.expect_error("quantization", "runs/firstt", "--output", "q", says="(did you mean runs/first?)")


if __name__ == "__main__":
    unittest.main()
