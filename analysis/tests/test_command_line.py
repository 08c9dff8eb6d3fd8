# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

from analysis.interpreter import SYSTEM_PYTHON, system_python_has_modules
from analysis.style import LOOK
from analysis.tests.commands import CommandTest, run_command
from analysis.tests.fake_runs import metrics_row, write_deck, write_metrics, write_scaled

ROOT = Path(__file__).resolve().parents[2]
# Stands for the Python of pyenv or conda: it finds no module beyond those of Python itself.
BARE = f"""#!/bin/sh
exec {sys.executable} -S -c '
import runpy, sys
sys.executable = "/opt/bare/bin/python3"
sys.argv[0:2] = []
if sys.argv[0] == "-m":
    sys.path.insert(0, "")
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    runpy.run_path(sys.argv[0], run_name="__main__")
' "$0" "$@"
"""


class CommandLine(CommandTest):
    def setUp(self) -> None:
        super().setUp()
        self.run_folder = self.folder / "first"
        write_deck(self.run_folder)
        write_metrics(self.run_folder, [metrics_row(step) for step in range(1, 26)])
        write_scaled(self.run_folder, (1, 1, 1, 1), {"forward": 30.0, "backward": 60.0})

    def refused(self, *words: str) -> str:
        process = subprocess.run([sys.executable, "-m", "analysis", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        self.assertEqual((process.returncode, process.stdout), (2, ""))
        self.assertRegex(process.stderr, r"\Aanalysis: [^\n]+\n\Z")
        return process.stderr

    def test_for_a_misspelled_command_the_nearest_is_named(self) -> None:
        self.assertIn("there is no command 'learnings' (did you mean learning?)", self.refused("learnings", "RUN"))
        self.assertIn("the commands are learning, sweep", self.refused("zzz"))

    def test_usage_has_the_name_that_the_installed_script_hands_down(self) -> None:
        for name, words in (("hyperslab-analysis", ()), ("hyperslab-analysis", ("learning",)), ("", ("check", "idle"))):
            process = subprocess.run([sys.executable, "-m", "analysis", *words, "--help"], cwd=ROOT, capture_output=True,
                                     text=True, check=False, env={**os.environ, "HYPERSLAB_ANALYSIS": name})
            expected = " ".join(["usage:", name or "python3 -m analysis", *words[:1]])
            self.assertTrue(process.stdout.startswith(expected + " "), process.stdout)

    def test_wrong_options_are_one_line(self) -> None:
        self.assertIn("see python3 -m analysis learning --help", self.refused("learning"))
        self.assertIn("--skip", self.refused("time", "RUN", "--skip", "x"))
        self.assertIn("unrecognized arguments: --outptu", self.refused("learning", "RUN", "--outptu", "x"))

    def test_figures_have_the_size_and_the_title_that_are_asked_for(self) -> None:
        self.addCleanup(setattr, LOOK, "size", None)
        self.addCleanup(setattr, LOOK, "title", True)
        for command, name in (("learning", "learning_steps"), ("time", "time_per_rank")):
            code, _, err = run_command(command, self.run_folder, "--size", "180x90", "--no-title")
            self.assertEqual((code, err), (0, ""))
            svg = (self.run_folder / "report" / f"{name}.svg").read_text(encoding="utf-8")
            width, height = (float(re.findall(rf'<svg [^>]*{side}="([0-9.]+)pt"', svg)[0]) for side in ("width", "height"))
            self.assertAlmostEqual(width, 180 / 25.4 * 72, delta=0.1)
            self.assertAlmostEqual(height, 90 / 25.4 * 72, delta=0.1)
            self.assertNotIn("<!-- Learning curves -->", svg)
            self.assertNotIn("<!-- Time of a step by rank -->", svg)
        for size in ("85", "85x1", "axb"):
            self.assertIn("--size", self.refused("learning", "RUN", "--size", size))

    def test_of_one_run_the_folder_is_its_report(self) -> None:
        for command, name in (("learning", "learning.txt"), ("time", "time_per_rank.txt"), ("report", "scaling.csv")):
            with self.subTest(command=command):
                code, _, err = run_command(command, self.run_folder)
                self.assertEqual((code, err), (0, ""))
                self.assertTrue((self.run_folder / "report" / name).is_file())
        second = self.folder / "second"
        write_metrics(second, [metrics_row(1)])
        self.expect_error("learning", self.run_folder, second, says="these 2 runs be written? give --output DIR")

    @unittest.skipUnless(os.access(SYSTEM_PYTHON, os.X_OK), "no Python of the system")
    def test_a_python_without_the_modules_gives_way_to_the_system_s(self) -> None:
        bare = self.folder / "python3"
        bare.write_text(BARE, encoding="utf-8")
        bare.chmod(0o755)

        def started(*words: object) -> subprocess.CompletedProcess[str]:
            return subprocess.run([bare, *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False)

        has_modules = subprocess.run([SYSTEM_PYTHON, "-c", "import numpy, h5py, matplotlib, yaml, jinja2"],
                                     capture_output=True, check=False).returncode == 0
        found = started("-m", "analysis", "summary", self.run_folder)
        study = started("jobs/study.py", "inputs/studies/strong.yaml", "--dry-run")
        if has_modules:
            self.assertEqual((found.returncode, found.stderr), (0, ""))
            self.assertIn("first: step 25", found.stdout)
            self.assertEqual((study.returncode, study.stderr), (0, ""))
        else:
            for each in (found, study):
                self.assertEqual(each.returncode, 2)
                self.assertRegex(each.stderr, r"Python module \w+ is missing in [^\n]+pip install numpy[^\n]+\n\Z")

    def test_a_python_gives_way_to_another_one_alone(self) -> None:
        if os.path.realpath(sys.executable) == os.path.realpath(SYSTEM_PYTHON):
            self.assertFalse(system_python_has_modules())


if __name__ == "__main__":
    unittest.main()
