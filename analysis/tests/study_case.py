# SPDX-License-Identifier: Apache-2.0
"""Studies in a folder of their own, run by jobs/study.py with a program that stands for hyperslab."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from analysis.study.points import Point, expand
from analysis.study.spec import read_study
from analysis.tests.commands import CommandTest

ROOT = Path(__file__).resolve().parents[2]
FAKE = Path(__file__).with_name("fake_program.py")

DECK = {"model": {"context": 8}, "train": {"global_batch": 4}, "parallel": {"tensor": 1}}
STUDY: dict[str, Any] = {
    "name": "tiny", "title": "A tiny study", "deck": "deck.yaml", "command": "bench",
    "axes": {"ranks": [1, 2], "model.context": [8, 16]}, "base": {"ranks": 1},
    "tables": [{"title": "Times", "columns": ["step_seconds", "speed_up", "memory_peak_bytes"]}],
}


class StudyTest(CommandTest):
    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        Path("deck.yaml").write_text(yaml.safe_dump(DECK), encoding="utf-8")

    def write(self, **changes: Any) -> Path:
        """study.yaml; a change to None leaves a key out."""
        content = {key: value for key, value in (STUDY | changes).items() if value is not None}
        path = Path("study.yaml")
        path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        return path

    def points(self, **changes: Any) -> list[Point]:
        path = self.write(**changes)
        return expand(read_study(path), str(path))

    def run_study(self, *words: str, launcher: str = f"env RANKS={{ranks}} {sys.executable}",
                  binary: Path = FAKE) -> tuple[int, str, str]:
        """Of study.yaml: exit code, standard output and standard error."""
        process = self.start_study(*words, launcher=launcher, binary=binary)
        out, err = process.communicate()
        return process.returncode, out, err

    def start_study(self, *words: str, launcher: str = sys.executable, binary: Path = FAKE) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, str(ROOT / "jobs/study.py"), "study.yaml", "--binary", str(binary),
                                 "--launcher", launcher, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})

    def calls(self) -> list[str]:
        """Names of the points that were started, in order; the list starts empty after that."""
        path = Path("calls.txt")
        names = path.read_text(encoding="utf-8").split() if path.is_file() else []
        path.unlink(missing_ok=True)
        return names

    def state(self, point: str) -> str:
        path = Path("runs/tiny/points") / point / "point.json"
        return str(json.loads(path.read_text(encoding="utf-8"))["state"])
