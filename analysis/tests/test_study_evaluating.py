# SPDX-License-Identifier: Apache-2.0
"""Studies whose points evaluate checkpoints or make tokens one by one."""
from __future__ import annotations

import json
import unittest
from pathlib import Path

from analysis.tests.commands import cells, run_command
from analysis.tests.study_case import StudyTest


class Evaluating(StudyTest):
    def test_points_evaluate_what_an_earlier_point_saved(self) -> None:
        checkpoint = "{study}/points/base"
        self.write(command="eval", base={"variant": "whole"}, axes={"variant": {
            "base": {"command": "train"}, "whole": {"checkpoint": checkpoint},
            "few": {"checkpoint": checkpoint, "quantization.weights": "int8"},
            "on": {"command": "train", "checkpoint.initial": checkpoint}}},
            tables=[{"title": "Losses", "columns": ["final_loss", "perplexity_change", "matrix_bytes"]}])
        code, _, err = self.run_study()
        self.assertEqual(code, 0, err)
        launches = {name: json.loads((Path("runs/tiny/points") / name / "point.json").read_text(encoding="utf-8"))["launch"]
                    for name in ("few", "on")}

        self.assertEqual(self.calls(), ["base", "whole", "few", "on"])
        self.assertIn("[3/4] few: done", err)
        self.assertIn("loss 3.0000, 640 tokens/s", err)
        few = launches["few"]
        self.assertEqual(few[few.index("--checkpoint") + 1], "runs/tiny/points/base")
        self.assertIn("checkpoint.initial=runs/tiny/points/base", launches["on"])
        out = run_command("study", "runs/tiny")[1]
        self.assertEqual(cells(out, "whole"), ["2.0000", "0.0", "8.0"])
        self.assertEqual(cells(out, "few"), ["3.0000", "100.0", "1.0"])

    def test_decoding_has_the_time_of_a_token(self) -> None:
        self.write(axes={"rows": [1, 4]}, base=None, set={"mode": "decode"},
                   tables=[{"title": "Tokens", "columns": ["token_seconds", "tokens_per_second", "matrix_bytes"]}])
        code, _, err = self.run_study()

        self.assertEqual(code, 0, err)
        self.assertIn("decode 20.00 ms a token", err)
        self.assertEqual(cells(run_command("study", "runs/tiny")[1], "4"), ["20.00", "50", "1.0"])

    def test_a_checkpoint_is_an_option_of_eval_alone(self) -> None:
        self.write(axes={"checkpoint": ["runs/a"]}, base=None)
        code, _, err = self.run_study()
        self.assertEqual(code, 2)
        self.assertIn("`checkpoint` is no option of bench", err)


if __name__ == "__main__":
    unittest.main()
