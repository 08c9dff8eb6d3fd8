# SPDX-License-Identifier: Apache-2.0
"""Reads what ranks recorded of traced steps."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from analysis.errors import UserError
from analysis.runs import Run
from analysis.starts import start_folders
from analysis.timings import AXES, Coordinates, attribute, check_ranks, rank_name, read_files

Column = npt.NDArray[Any]
Table = dict[str, Column]
TABLES = ("events", "operations", "messages", "lives", "kernels")
NO_TRACE = "was it trained with --set timing.trace_steps=[STEP,...]?"


@dataclass(frozen=True)
class RankTrace:
    """The traced steps of one rank. `begins`: of each, in seconds on the clock of rank 0."""

    rank: int
    host: str
    device: str
    coordinates: Coordinates
    begins: dict[int, float]
    lost: int
    clock_error_seconds: float
    tables: dict[str, Table]
    members: dict[str, tuple[int, ...]]  # world ranks of a group's members

    def of_step(self, table: str, step: int) -> Table:
        columns = self.tables[table]
        rows = columns["step"] == step if columns else np.zeros(0, dtype=bool)
        return {name: values[rows] for name, values in columns.items()}

    @property
    def name(self) -> str:
        return rank_name(self.rank, self.coordinates)


@dataclass(frozen=True)
class Trace:
    """All ranks of one start, in their order, and the steps that all of them traced."""

    start: Path
    ranks: list[RankTrace]
    steps: list[int]

    def begin(self, step: int) -> float:
        """When the first rank began a step."""
        return min(rank.begins[step] for rank in self.ranks)


def read_table(file: h5py.File, name: str) -> Table:
    """Rows that all columns have; texts become str."""
    if name not in file:
        return {}
    columns: Table = {}
    for column, values in file[name].items():
        is_text = h5py.check_string_dtype(values.dtype) is not None
        columns[column] = np.asarray(values.asstr()[...] if is_text else values[...])
    length = min((values.size for values in columns.values()), default=0)
    return {column: values[:length] for column, values in columns.items()}


def members_of(file: h5py.File) -> dict[str, tuple[int, ...]]:
    everyone = tuple(range(int(attribute(file, "world_size"))))
    return {name: tuple(int(rank) for rank in group["ranks"]) if "ranks" in group else everyone
            for name, group in file.get("groups", {}).items()}


def read_rank_trace(path: Path) -> RankTrace:
    try:
        with h5py.File(path, "r") as file:
            data, pipeline, context, tensor = (int(attribute(file, axis)) for axis in AXES)
            traced = read_table(file, "traced")
            begins = {int(step): float(start + offset) for step, start, offset in zip(
                traced.get("step", ()), traced.get("start_seconds", ()),
                traced.get("clock_offset_seconds", ()))}
            return RankTrace(int(attribute(file, "rank")), attribute(file, "host"),
                             attribute(file, "device"), (data, pipeline, context, tensor), begins,
                             int(np.sum(traced.get("lost", 0))),
                             float(np.max(traced["clock_error_seconds"], initial=0.0))
                             if traced else 0.0,
                             {name: read_table(file, name) for name in TABLES}, members_of(file))
    except (OSError, KeyError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"cannot read {path} ({reason}); was the job killed while it wrote?"
                        ) from error


def read_trace(run: Run) -> Trace:
    """Of the newest start that traced a step."""
    starts = list(start_folders(run))
    for start in reversed(starts):
        first = start / "rank_00000.h5"
        if not first.is_file() or not read_rank_trace(first).begins:
            continue
        check_ranks(start, read_files(start))
        ranks = [read_rank_trace(path) for path in sorted(start.glob("rank_*.h5"))]
        common = set.intersection(*(set(rank.begins) for rank in ranks))
        if not common:
            raise UserError(f"{start}: its ranks traced no step together; was the job killed?")
        return Trace(start, ranks, sorted(common))
    raise UserError(f"{run.path}: no step was traced; {NO_TRACE}")
