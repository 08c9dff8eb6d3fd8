# SPDX-License-Identifier: Apache-2.0
"""Recorded steps of runs beside what `hyperslab plan` predicts of them, without any factor."""
from __future__ import annotations

import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from typing import Sequence

from analysis.errors import UserError, one_line
from analysis.json_files import read_json
from analysis.plan_runs import last_words, require_binary
from analysis.published_rows import read_lines
from analysis.tables import text_table

TABLE = Path("tests/data/recorded_steps.csv")
UNITS = ("tokens_per_second", "steps_per_second", "milliseconds")
HEADER = ("run", "measured", "predicted", "unit", "time error")


@dataclass(frozen=True)
class Recorded:
    """One run: `settings` are separated by spaces, as --set takes them."""

    source: str
    run: str
    deck: str
    ranks: str
    settings: str
    unit: str
    measured: str


@dataclass(frozen=True)
class Compared:
    recorded: Recorded
    predicted: float  # in the unit of the run

    @property
    def error(self) -> float:
        """Of time: below 0 if the run took longer."""
        measured = float(self.recorded.measured)
        ratio = self.predicted / measured if self.recorded.unit == "milliseconds" else measured / self.predicted
        return ratio - 1.0


def read_recorded(path: Path) -> list[Recorded]:
    names = [each.name for each in fields(Recorded)]
    rows = []
    for number, cells in read_lines(path, names):
        row = Recorded(**{name: cells[name] for name in names})
        if row.unit not in UNITS:
            raise UserError(f"{path}:{number}: unit '{row.unit}' is not one of {', '.join(UNITS)}")
        rows.append(row)
    return rows


def predict(binary: Path, machine: Path, row: Recorded) -> Compared:
    with tempfile.TemporaryDirectory(prefix="hyperslab_recorded_") as folder:
        file = Path(folder) / "plan.json"
        command = [str(binary), "plan", row.deck, "--ranks", row.ranks, "--device", "cuda", "--machine", str(machine),
                   "--json", str(file)]
        for setting in ["data.train=[synthetic]", "data.validation=[]", *row.settings.split()]:
            command += ["--set", setting]
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False)
        if ended.returncode != 0:
            raise UserError(f"{row.run}: hyperslab plan ended with code {ended.returncode} and said: {last_words(ended.stderr)}")
        reported = read_json(file, {"step_seconds": float, "tokens_per_second": float}, "it must be of a hyperslab whose plan "
                             "has --machine and --json")
    seconds = float(reported["step_seconds"])
    value = {"tokens_per_second": float(reported["tokens_per_second"]), "steps_per_second": 1.0 / seconds,
             "milliseconds": 1e3 * seconds}[row.unit]
    return Compared(row, value)


def compare_all(binary: Path, machine: Path, rows: Sequence[Recorded]) -> list[Compared]:
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(lambda row: predict(binary, machine, row), rows))


def reported(found: Sequence[Compared]) -> str:
    """A table for each source, with its median and its largest error."""
    parts = []
    for source in dict.fromkeys(each.recorded.source for each in found):
        members = [each for each in found if each.recorded.source == source]
        errors = [abs(each.error) for each in members]
        cells = [[each.recorded.run, each.recorded.measured, f"{each.predicted:.2f}", each.recorded.unit.replace("_", " "),
                  f"{100 * each.error:+.1f} %"] for each in members]
        parts.append(f"{one_line(source)}: {len(members)} runs, median error {100 * median(errors):.1f} %, largest "
                     f"{100 * max(errors):.1f} %\n{text_table(HEADER, cells)}")
    return "\n\n".join(parts)


def recorded_steps(machine: Path, binary: Path, table: Path) -> str:
    return reported(compare_all(require_binary(binary), machine, read_recorded(table)))
