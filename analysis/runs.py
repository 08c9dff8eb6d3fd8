# SPDX-License-Identifier: Apache-2.0
"""Reads metrics.jsonl of run directories."""
from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Sequence

import numpy as np
import numpy.typing as npt

from analysis.errors import UserError, nearest, one_line
from analysis.first_steps import SKIPPED_STEPS
from analysis.json_files import LARGEST, parse_json
from analysis.tables import some

FloatArray = npt.NDArray[np.float64]

LAST_STEPS = 20
TRAINING_LOSS = f"training loss, mean of up to {LAST_STEPS} last steps"
FINAL_LOSS = ("The final loss is the last validation loss of a run; if none was measured, the mean training loss of its last "
              f"{LAST_STEPS} steps.")
SIGNS = ("deck.yaml", "metrics.jsonl", "timing")  # of a run directory; whoever copies one may leave out some
NO_STEP = "the run has not ended its first step, or the files were not copied: run it longer, or copy them"


@dataclass(frozen=True)
class Run:
    """A run directory and how plots and tables call it."""

    path: Path
    label: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", one_line(self.label))


@dataclass(frozen=True)
class Metrics:
    """The lines of metrics.jsonl in order of steps; a repeated step stands once."""

    run: Run
    rows: list[dict[str, Any]]

    def column(self, key: str) -> FloatArray:
        """One value per step, NaN if the key is absent, null or not below LARGEST."""
        values = [row.get(key) for row in self.rows]
        if any(isinstance(value, (str, list, dict)) for value in values):
            raise UserError(f"{self.run.path}/metrics.jsonl: `{key}` is not a number on every line")
        found = np.array([math.nan if value is None else float(value) for value in values])
        return np.where(np.abs(found) < LARGEST, found, math.nan)

    @property
    def steps(self) -> FloatArray:
        return self.column("step")

    @property
    def of_images(self) -> bool:
        """Whether a line has what only a classifier of images has."""
        return any("top1" in row or "validation_top1" in row for row in self.rows)

    @property
    def has_another_loss(self) -> bool:
        """Whether lines have what only losses of policies, pairs and teachers have."""
        return any("clipped" in row or "preferred" in row or ("token_accuracy" in row and "perplexity" not in row)
                   for row in self.rows)

    def perplexity(self, prefix: str = "") -> FloatArray:
        """As recorded; if it was not, the exponential of the loss. Images have none."""
        if self.of_images or (not prefix and self.has_another_loss):
            return np.full(len(self.rows), math.nan)
        recorded = self.column(f"{prefix}perplexity")
        from_loss = np.exp(np.minimum(self.column(f"{prefix}loss"), 700.0))
        return np.where(np.isnan(recorded), from_loss, recorded)


def is_run(path: Path) -> bool:
    return any((path / name).exists() for name in SIGNS)


def check_run(path: Path) -> None:
    """A folder that no run wrote is an error, which names the runs inside, if there are any."""
    if is_run(path):
        return
    inside = [str(each) for folder in (path, path / "points") for each in sorted(folder.glob("*/")) if is_run(each)]
    advice = f"it holds these: {some(inside)}" if inside else "name a folder that `hyperslab train` wrote"
    what = "a study" if (path / "study.yaml").is_file() else "no run directory"
    raise UserError(f"{path} is {what}: {', '.join(SIGNS[:-1])} and {SIGNS[-1]} were looked for there; {advice}")


def near_folder(name: str) -> str:
    """A hint if the name of a folder, or of one in runs/, is misspelled."""
    beside = [str(each) for each in Path(name).parent.glob("*/")]
    return nearest(name.rstrip("/"), [*beside, *(each.name for each in Path("runs").glob("*/"))])


def find_runs(names: Sequence[str]) -> list[Run]:
    """Each name is a run directory, or the name of one under runs/."""
    paths: list[Path] = []
    for name in names:
        candidates = [Path(name), Path("runs") / name]
        path = next((candidate for candidate in candidates if candidate.is_dir()), None)
        if path is None:
            raise UserError(f"no run directory {name} (nor {candidates[1]}){near_folder(name)}; name a folder "
                            "that `hyperslab train` wrote")
        check_run(path)
        paths.append(path)
    short = [path.resolve().name for path in paths]
    return [Run(path, name if short.count(name) == 1 else str(path))
            for path, name in zip(paths, short)]


def report_folder(names: Sequence[str]) -> Path:
    """Where a report of one run is written unless another folder is named."""
    runs = find_runs(names)
    if len(runs) > 1:
        raise UserError(f"where shall the report of these {len(runs)} runs be written? give --output DIR")
    return runs[0].path / "report"


def parse_line(path: Path, index: int, line: str) -> dict[str, Any]:
    line_name = f"{path}:{index + 1}"
    try:
        row = parse_json(line)
    except ValueError as error:
        raise UserError(f"{line_name}: not JSON ({getattr(error, 'msg', error)}); remove the line") from error
    if not isinstance(row, dict) or type(row.get("step")) is not int:
        raise UserError(f"{line_name}: a line needs an integer `step`; remove the line")
    return row


def read_rows(path: Path, advice: str) -> list[dict[str, Any]]:
    """The lines of a file of one JSON object per step. If a resumed run wrote step s again, what
    was written from s on before is void. `advice` ends the message if there is no file."""
    if not path.is_file():
        raise UserError(f"{path} is missing; {advice}")
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    if not lines[-1].endswith("}"):
        lines.pop()  # a line that the end of the job cut off, or the nothing after the last newline
    rows: list[dict[str, Any]] = []
    for index, line in enumerate(lines):
        if not line.strip():
            continue
        row = parse_line(path, index, line)
        while rows and rows[-1]["step"] >= row["step"]:
            rows.pop()
        rows.append(row)
    if not rows:
        raise UserError(f"{path} holds no step; {advice}")
    return rows


def read_metrics(run: Run) -> Metrics:
    return Metrics(run, read_rows(run.path / "metrics.jsonl", NO_STEP))


def last_value(values: FloatArray) -> float:
    known = values[~np.isnan(values)]
    return float(known[-1]) if known.size else math.nan


def first_value(values: FloatArray) -> float:
    return last_value(values[::-1])


def best_value(values: FloatArray) -> float:
    return float(np.nanmin(values)) if not np.isnan(values).all() else math.nan


def steady(values: FloatArray) -> FloatArray:
    """Without the first steps, if there are more."""
    return values[SKIPPED_STEPS:] if values.size > SKIPPED_STEPS else values


def typical_rate(metrics: Metrics) -> float:
    """Median tokens per second, without the first steps if there are more; of images, images."""
    rates = steady(metrics.column("images_per_second" if metrics.of_images else "tokens_per_second"))
    return float(np.nanmedian(rates)) if not np.isnan(rates).all() else math.nan


def mean_of_last(losses: FloatArray) -> float:
    tail = losses[-LAST_STEPS:]
    return float(np.nanmean(tail)) if not np.isnan(tail).all() else math.nan


def validation_losses(metrics: Metrics) -> list[float]:
    """Those that were measured, NaN if one was not finite."""
    return [float(loss) for loss, row in zip(metrics.column("validation_loss"), metrics.rows) if "validation_loss" in row]


def final_loss(metrics: Metrics) -> float:
    """As FINAL_LOSS says; of validation losses the last finite one."""
    if validation_losses(metrics):
        return last_value(metrics.column("validation_loss"))
    return mean_of_last(metrics.column("loss"))
