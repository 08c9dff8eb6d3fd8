# SPDX-License-Identifier: Apache-2.0
"""Points and runs with more CPU ranks than cores: what is left out of their tables, and why."""
from __future__ import annotations

import re
from pathlib import Path

from analysis.tables import counted, some

OUTPUT = "output.txt"  # what jobs/study.py keeps of what the program printed
WHY = ("the parts of their steps include waiting for a core, and their peak rates were measured on shared cores: their MFU is "
       "left out, and their speed-ups say nothing of more cores")
_CROWDED = re.compile(r"(\d+) ranks on (?:[^;\n]*, )?(\d+) cores?\b[^;\n]*; more ranks than cores")


def crowd_of(place: Path) -> str:
    """Such as "4 ranks on 2 cores", as the program printed when it began; empty if each rank had a core."""
    path = place / OUTPUT
    found = _CROWDED.search(path.read_text(encoding="utf-8", errors="replace")) if path.is_file() else None
    return f"{found[1]} ranks on {counted(int(found[2]), 'core')}" if found else ""


def crowd_notes(crowds: dict[str, str]) -> list[str]:
    """One note on all points or runs, by name, whose text is not empty."""
    crowded = [f"{name} ({text})" for name, text in crowds.items() if text]
    return [f"more ranks than cores: {some(crowded)}; {WHY}"] if crowded else []
