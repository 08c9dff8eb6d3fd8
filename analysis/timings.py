# SPDX-License-Identifier: Apache-2.0
"""Reads the per-rank timing files of run directories."""
from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np

from analysis.errors import UserError
from analysis.runs import FloatArray, Run

# Parts of a step: they do not overlap, so they stack. Column of /steps -> name in plots and tables.
PARTS: dict[str, str] = {
    "data_seconds": "data",
    "forward_seconds": "forward",
    "backward_seconds": "backward",
    "optimizer_seconds": "optimizer",
    "reduce_exposed_seconds": "reduce exposed",
    "tensor_comm_seconds": "tensor",
    "pipeline_comm_seconds": "pipeline",
    "pipeline_idle_seconds": "idle",
    "checkpoint_seconds": "checkpoint",
}
# Waiting for other ranks: what is left of a step without these is a rank's own work.
WAITING = ("reduce_exposed_seconds", "tensor_comm_seconds", "pipeline_comm_seconds",
           "pipeline_idle_seconds")
COLUMNS = ("step", "step_seconds", "reduce_seconds", "tokens", "memory_peak_bytes", *PARTS)
AXES = ("data", "pipeline", "context", "tensor")

Coordinates = tuple[int, int, int, int]


@dataclass(frozen=True)
class RankSteps:
    """The steps of one rank in one start; coordinates in the order of AXES."""

    rank: int
    host: str
    world_size: int
    coordinates: Coordinates
    columns: dict[str, FloatArray]

    def skip(self, count: int) -> RankSteps:
        kept = {name: values[count:] for name, values in self.columns.items()}
        return replace(self, columns=kept)


@dataclass(frozen=True)
class Layout:
    """Starts of one run with the same ranks at the same coordinates, their steps joined."""

    run: Run
    starts: list[str]
    ranks: list[RankSteps]

    @property
    def label(self) -> str:
        sizes = [1 + max(rank.coordinates[axis] for rank in self.ranks) for axis in range(4)]
        shape = " x ".join(f"{name} {size}" for name, size in zip(AXES, sizes) if size > 1)
        return f"{self.run.label} ({shape or 'one rank'}; {', '.join(self.starts)})"


def attribute(file: h5py.File, name: str) -> str:
    value = file.attrs.get(name)
    if value is None:
        raise UserError(f"{file.filename}: attribute {name} is missing; was the file written by "
                        "this version?")
    item = np.asarray(value).reshape(-1)[0]
    return item.decode() if isinstance(item, bytes) else str(item)


def read_columns(file: h5py.File) -> dict[str, FloatArray]:
    missing = [name for name in COLUMNS if f"steps/{name}" not in file]
    if missing:
        raise UserError(f"{file.filename}: /steps has no column {', '.join(missing)}; was the file "
                        "written by this version?")
    columns = {name: np.asarray(file[f"steps/{name}"], dtype=np.float64) for name in COLUMNS}
    # A job that ended while it wrote can leave columns of unequal length.
    length = min(values.size for values in columns.values())
    return {name: values[:length] for name, values in columns.items()}


def read_rank(path: Path) -> RankSteps:
    try:
        with h5py.File(path, "r") as file:
            data, pipeline, context, tensor = (int(attribute(file, axis)) for axis in AXES)
            return RankSteps(int(attribute(file, "rank")), attribute(file, "host"),
                             int(attribute(file, "world_size")),
                             (data, pipeline, context, tensor), read_columns(file))
    except (OSError, KeyError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"cannot read {path} ({reason}); was the job killed while it wrote?"
                        ) from error


def join(first: RankSteps, second: RankSteps) -> RankSteps:
    columns = {name: np.concatenate([values, second.columns[name]])
               for name, values in first.columns.items()}
    return replace(first, columns=columns)


def places(ranks: list[RankSteps]) -> list[tuple[int, Coordinates]]:
    return [(rank.rank, rank.coordinates) for rank in ranks]


def read_start(start: Path, skip: int) -> list[RankSteps]:
    """All ranks of one start, in order."""
    ranks = sorted((read_rank(path).skip(skip) for path in start.glob("rank_*.h5")),
                   key=lambda rank: rank.rank)
    if not ranks:
        raise UserError(f"{start} holds no rank_*.h5; was the job killed before it wrote?")
    if len(ranks) != ranks[0].world_size:
        raise UserError(f"{start} holds {len(ranks)} of {ranks[0].world_size} rank_*.h5; copy the "
                        "others there")
    if any(rank.columns["step"].size == 0 for rank in ranks):
        raise UserError(f"{start} has no more than {skip} steps; run longer, or lower --skip or "
                        "the deck's timing.every")
    return ranks


def read_layouts(run: Run, skip: int) -> tuple[list[Layout], list[str]]:
    """The layouts of a run, and why starts were left out.

    Starts are taken in order, without the first `skip` steps of each; neighbours with one layout
    are joined. It is an error where no start is left.
    """
    folder = run.path / "timing"
    layouts: list[Layout] = []
    problems: list[str] = []
    for start in sorted(path for path in folder.glob("start_*") if path.is_dir()):
        try:
            ranks = read_start(start, skip)
        except UserError as error:
            problems.append(str(error))
            continue
        if layouts and places(layouts[-1].ranks) == places(ranks):
            last = layouts.pop()
            joined = [join(old, new) for old, new in zip(last.ranks, ranks)]
            layouts.append(Layout(run, [*last.starts, start.name], joined))
        else:
            layouts.append(Layout(run, [start.name], ranks))
    if not layouts:
        raise UserError(problems[-1] if problems else
                        f"{folder} holds no start_*; has the run finished its first step?")
    return layouts, [f"left out: {problem}" for problem in problems]
