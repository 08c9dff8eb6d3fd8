# SPDX-License-Identifier: Apache-2.0
"""What `plan` said of a point before it ran."""
from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from analysis.json_files import NUMBER, number_of, read_json

PLAN, PLAN_JSON = "plan.txt", "plan.json"
FORM = {"memory_bytes": float, "step_seconds": float, "memory_in_use_bytes?": NUMBER}
UNITS = {"bytes": 1.0, "KiB": 2.0 ** 10, "MiB": 2.0 ** 20, "GiB": 2.0 ** 30, "TiB": 2.0 ** 40}
_IN_USE = re.compile(r"^in use\s+(\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB|TiB) at ", re.MULTILINE)
_LARGEST = re.compile(r"^largest\s+.*?: (\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB|TiB) on ", re.MULTILINE)


@dataclass(frozen=True)
class Prediction:
    """Of the fullest rank and of a step; NaN: not predicted. Step times need a machine file."""

    memory_bytes: float = math.nan  # as bench reports them: all that the arenas hold
    step_seconds: float = math.nan
    in_use_bytes: float = math.nan  # as train reports them: most in use at one time; of plans before that was reported NaN

    def memory_of(self, command: str) -> float:
        """What the command's own figure is to be compared with."""
        return self.in_use_bytes if command == "train" and not math.isnan(self.in_use_bytes) else self.memory_bytes


def printed_bytes(path: Path, line: re.Pattern[str] = _LARGEST) -> float:
    """As `plan` prints it, with the decimals that it prints."""
    if not path.is_file():
        return math.nan
    match = line.search(path.read_text(encoding="utf-8", errors="replace"))
    return float(match[1]) * UNITS[match[2]] if match else math.nan


def read_prediction(place: Path) -> Prediction:
    """From plan.json if study.py knew the machine, else from what was printed."""
    path = place / PLAN_JSON
    if not path.is_file():
        return Prediction(printed_bytes(place / PLAN), in_use_bytes=printed_bytes(place / PLAN, _IN_USE))
    content = read_json(path, FORM, "remove it")
    return Prediction(float(content["memory_bytes"]), float(content["step_seconds"]),
                      number_of(content.get("memory_in_use_bytes")))
