# SPDX-License-Identifier: Apache-2.0
"""Reads the per-rank timing files of run directories."""
from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt

from analysis.errors import UserError, one_line
from analysis.runs import FloatArray, Run
from analysis.starts import no_start_text, same_work, start_folders
from analysis.tables import some

# Parts of a step: they do not overlap, so they stack. Column of /steps -> name in plots and tables.
PARTS: dict[str, str] = {
    "data_seconds": "data",
    "forward_seconds": "forward",
    "backward_seconds": "backward",
    "optimizer_seconds": "optimizer",
    "reduce_exposed_seconds": "reduce exposed",
    "tensor_comm_seconds": "tensor",
    "context_comm_seconds": "context",
    "expert_comm_seconds": "expert",
    "pipeline_comm_seconds": "pipeline",
    "pipeline_idle_seconds": "idle",
    "wait_seconds": "wait",
    "checkpoint_seconds": "checkpoint",
}
# Columns that older files lack, and groups.
BUSY, WAIT, CONTEXT, EXPERT = "reduce_busy_seconds", "wait_seconds", "context_comm_seconds", "expert_comm_seconds"
# What is left of a step without these is a rank's own work.
EXPOSED = "reduce_exposed_seconds"
WAITING = (EXPOSED, "tensor_comm_seconds", CONTEXT, EXPERT, "pipeline_comm_seconds", "pipeline_idle_seconds", WAIT)
COLUMNS = ("step", "step_seconds", "reduce_seconds", "tokens", "memory_peak_bytes",
           *(name for name in PARTS if name not in (WAIT, CONTEXT, EXPERT)))
TRAFFIC = ("calls", "bytes", "seconds", "exposed_seconds")
AXES = ("data", "pipeline", "context", "tensor")  # slowest rank first
NAMED_AXES = ("data", "tensor", "pipeline", "context")  # in names of layouts, as the program prints them
# Parts may add up to this much more than their step, as a share of it and in seconds: rounding.
PARTITION_SHARE, PARTITION_SECONDS = 1e-3, 1e-6

ROUNDING = 1e-9

Coordinates = tuple[int, int, int, int]


class ShortStartError(UserError):
    """A start that ended before there was a step to measure."""


def sizes_of(coordinates: list[Coordinates]) -> Coordinates:
    """Ranks along each of AXES."""
    data, pipeline, context, tensor = (1 + max(each) for each in zip(*coordinates))
    return data, pipeline, context, tensor


def layout_name(sizes: Coordinates) -> str:
    """The one name of a layout, such as "data 2 x tensor 4": axes with several ranks."""
    ranks = dict(zip(AXES, sizes))
    return " x ".join(f"{axis} {ranks[axis]}" for axis in NAMED_AXES if ranks[axis] > 1) or "one rank"


def rank_name(rank: int, coordinates: Coordinates) -> str:
    """Such as "5 (d0 t1 p1)", in the order in which the program prints coordinates."""
    data, pipeline, context, tensor = coordinates
    return f"{rank} (d{data} t{tensor} p{pipeline}{f' c{context}' if context else ''})"


@dataclass(frozen=True)
class RankSteps:
    """The steps of one rank in one start; coordinates in the order of AXES. Newer files have columns
    "data/bytes" of groups of ranks, too."""

    rank: int
    host: str
    device: str
    commit: str
    start_time: str
    world_size: int
    coordinates: Coordinates
    columns: dict[str, FloatArray]
    threads: int = 0  # 0: not in the file
    has_wait: bool = True  # whether the file reports waiting for slower ranks
    tied: int = 1  # ranks in the group that shares a tied table with this one
    cores: int = 0  # that all ranks of its host may use; 0: not in the file

    def skip(self, count: int) -> RankSteps:
        kept = {name: values[count:] for name, values in self.columns.items()}
        return replace(self, columns=kept)

    def only(self, steps: FloatArray) -> RankSteps:
        """Without the rows of other steps."""
        rows = np.isin(self.columns["step"], steps)
        return replace(self, columns={name: values[rows] for name, values in self.columns.items()})

    @property
    def name(self) -> str:
        return rank_name(self.rank, self.coordinates)

    @property
    def groups(self) -> list[str]:
        return [name.split("/")[0] for name in self.columns if name.endswith("/calls")]

    @property
    def reports_waits(self) -> bool:
        """Whether the rank itself saw who was late in gradient reductions: no GPU does."""
        return self.has_wait and self.device == "cpu"

    def with_column(self, name: str, values: FloatArray) -> RankSteps:
        return replace(self, columns=self.columns | {name: values})


@dataclass(frozen=True)
class Layout:
    """Starts of one run with the same ranks at the same coordinates, their steps joined."""

    run: Run
    starts: list[str]
    ranks: list[RankSteps]

    @property
    def sizes(self) -> Coordinates:
        """Ranks along each of AXES."""
        return sizes_of([rank.coordinates for rank in self.ranks])

    @property
    def shape(self) -> str:
        return layout_name(self.sizes)

    @property
    def label(self) -> str:
        return f"{self.run.label} ({self.shape}; {', '.join(self.starts)})"


def attribute(file: h5py.File, name: str) -> str:
    value = file.attrs.get(name)
    if value is None:
        raise UserError(f"{file.filename}: attribute {name} is missing; was the file written by "
                        "this version?")
    item = np.asarray(value).reshape(-1)[0]
    return one_line(item.decode() if isinstance(item, bytes) else str(item))


def check_values(path: str, columns: dict[str, FloatArray]) -> None:
    """Whole rows only: numbers, steps that rise, and parts that fit into their step."""
    for name, values in columns.items():
        unmeasured = np.isnan(values) & ("/" in name and name.endswith("seconds"))  # of a group
        good = unmeasured | (np.isfinite(values) & (values >= 0))
        if not np.all(good):
            row = int(np.argmin(good))
            raise UserError(f"{path}: {name} is {values[row]} in row {row}, expected a number that "
                            "is not negative; was the job killed while it wrote?")
    steps, seconds = columns["step"], columns["step_seconds"]
    falls = np.flatnonzero(np.diff(steps) <= 0)
    if falls.size:
        raise UserError(f"{path}: step {steps[falls[0] + 1]:.0f} follows step "
                        f"{steps[falls[0]]:.0f}; was the job killed while it wrote?")
    total = sum_of(columns, PARTS)
    over = np.flatnonzero(total > seconds * (1 + PARTITION_SHARE) + PARTITION_SECONDS)
    if over.size:
        row = over[0]
        raise UserError(f"{path}: the parts of step {steps[row]:.0f} add up to "
                        f"{1e3 * total[row]:.3f} ms, the step lasted {1e3 * seconds[row]:.3f} ms; "
                        "was the file written by this version?")


@dataclass(frozen=True)
class Typical:
    """The steps between the quartiles; `scale` takes their mean to the median of all. Means of parts
    over these steps, scaled, add up to the median step, which medians of parts do not."""

    quartiles: tuple[float, float]
    median: float
    rows: npt.NDArray[np.bool_]
    scale: float

    def mean(self, values: FloatArray) -> float:
        """Of a part; the last axis of `values` is that of steps."""
        return self.scale * float(values[..., self.rows].mean())


def typical_steps(seconds: FloatArray) -> Typical:
    low, median, high = (float(value) for value in np.percentile(seconds, (25, 50, 75)))
    rows = (seconds >= low * (1 - ROUNDING)) & (seconds <= high * (1 + ROUNDING))
    mean = float(seconds[rows].mean())
    return Typical((low, high), median, rows, median / mean if mean > 0 else 1.0)


def sum_of(columns: dict[str, FloatArray], names: tuple[str, ...] | dict[str, str]) -> FloatArray:
    return np.sum([columns[name] for name in names], axis=0)


def read_columns(file: h5py.File) -> dict[str, FloatArray]:
    missing = [name for name in COLUMNS if f"steps/{name}" not in file]
    if missing:
        raise UserError(f"{file.filename}: /steps has no column {', '.join(missing)}; was the file "
                        "written by this version?")
    names = [*COLUMNS, *(name for name in (BUSY, WAIT, CONTEXT, EXPERT) if f"steps/{name}" in file)]
    columns = {name: np.asarray(file[f"steps/{name}"], dtype=np.float64) for name in names}
    for name in (WAIT, CONTEXT, EXPERT):
        columns.setdefault(name, np.zeros_like(columns["step"]))
    for group in file.get("groups", ()):
        columns |= {f"{group}/{name}": np.asarray(file[f"groups/{group}/{name}"], dtype=np.float64)
                    for name in TRAFFIC}
    # A job that ended while it wrote can leave columns of unequal length.
    length = min(values.size for values in columns.values())
    columns = {name: values[:length] for name, values in columns.items()}
    check_values(file.filename, columns)
    return columns


def tied_size(file: h5py.File) -> int:
    """A middle stage, and older files, have no such group."""
    return int(file["groups/tied"].attrs.get("size", 1)) if "groups/tied" in file else 1


def read_rank(path: Path) -> RankSteps:
    try:
        with h5py.File(path, "r") as file:
            data, pipeline, context, tensor = (int(attribute(file, axis)) for axis in AXES)
            return RankSteps(int(attribute(file, "rank")), attribute(file, "host"),
                             attribute(file, "device"), attribute(file, "commit"),
                             attribute(file, "start_time"), int(attribute(file, "world_size")),
                             (data, pipeline, context, tensor), read_columns(file),
                             int(file.attrs.get("threads", 0)), f"steps/{WAIT}" in file,
                             tied_size(file), int(file.attrs.get("cores", 0)))
    except (OSError, KeyError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"cannot read {path} ({reason}); was the job killed while it wrote?"
                        ) from error


def both(first: str, second: str) -> str:
    """Names of two starts; a job that went on elsewhere has several hosts."""
    names = first.split(", ")
    return first if second in names else f"{first}, {second}"


def join(first: RankSteps, second: RankSteps) -> RankSteps:
    columns = {name: np.concatenate([values, second.columns[name]])
               for name, values in first.columns.items() if name in second.columns}
    return replace(first, host=both(first.host, second.host), columns=columns)


RankIdentity = tuple[int, Coordinates, str, str, int, tuple[float, ...]]


def identities_of(ranks: list[RankSteps]) -> list[RankIdentity]:
    """What starts have in common that may be joined: layout, device, commit, threads, tokens of a
    step."""
    return [(rank.rank, rank.coordinates, rank.device, rank.commit, rank.threads,
             tuple(np.unique(rank.columns["tokens"]))) for rank in ranks]


def check_ranks(start: Path, ranks: list[RankSteps]) -> None:
    """Every rank is there once, and the coordinates fill the layout."""
    size = ranks[0].world_size
    found = {rank.rank for rank in ranks}
    missing = [f"rank_{rank:05d}.h5" for rank in range(size) if rank not in found]
    if missing:
        raise UserError(f"{start} holds {len(ranks)} of {size} rank_*.h5; copy the others there: "
                        f"{some(missing)}")
    if len(ranks) != size or any(rank.world_size != size for rank in ranks):
        raise UserError(f"{start} holds {len(ranks)} rank_*.h5 for {size} ranks; are files of "
                        "another start among them?")
    sizes = sizes_of([rank.coordinates for rank in ranks])
    if len({rank.coordinates for rank in ranks}) != size or int(np.prod(sizes)) != size:
        raise UserError(f"{start}: the coordinates of its {size} ranks fill no layout ({layout_name(sizes)}); are files of "
                        "another start among them?")


def read_files(start: Path) -> list[RankSteps]:
    """All files that can be read, or an error that names every one that cannot."""
    ranks: list[RankSteps] = []
    problems: dict[str, str] = {}
    for path in sorted(start.glob("rank_*.h5")):
        try:
            ranks.append(read_rank(path))
        except UserError as error:
            problems[path.name] = str(error)
    if problems:
        others = list(problems)[1:]
        raise UserError(next(iter(problems.values())) +
                        (f" (nor is {some(others)} whole)" if others else ""))
    if not ranks:
        raise UserError(f"{start} holds no rank_*.h5; was the job killed before it wrote?")
    return sorted(ranks, key=lambda rank: rank.rank)


def bounded(rank: RankSteps) -> RankSteps:
    """Only time with a reduction in progress can be exposed; the rest was waiting."""
    limit = rank.columns.get(BUSY, rank.columns["reduce_seconds"])
    return waiting_beyond(rank, limit)


def waiting_beyond(rank: RankSteps, limit: FloatArray) -> RankSteps:
    """Exposed time above `limit` goes to waiting."""
    exposed = np.minimum(rank.columns[EXPOSED], limit)
    wait = rank.columns[WAIT] + (rank.columns[EXPOSED] - exposed)
    return rank.with_column(EXPOSED, exposed).with_column(WAIT, wait)


def reducers(ranks: list[RankSteps]) -> list[tuple[int, ...]]:
    """Of each rank the group that reduces gradients with it: its data group or, if it is alone
    there, the two ends of a tied table, which have equal coordinates but for their stage."""
    alone = all(rank.coordinates[0] == 0 for rank in ranks)
    ends = (0, max(rank.coordinates[1] for rank in ranks))
    return [rank.coordinates[2:] if alone and rank.tied == 2 and rank.coordinates[1] in ends
            else rank.coordinates[1:] for rank in ranks]


def split_waits(ranks: list[RankSteps]) -> list[RankSteps]:
    """Takes waiting for slower ranks out of exposed reductions if the files do not.

    A reduction ends for all members of a group at once, so what a rank has beyond the least exposed
    of its group in a step is waiting for the last one to come. The ranks have equal steps.
    """
    if all(rank.reports_waits for rank in ranks):
        return ranks
    ranks = [bounded(rank) for rank in ranks]
    least: dict[tuple[int, ...], FloatArray] = {}
    groups = reducers(ranks)
    for rank, group in zip(ranks, groups):
        exposed = rank.columns[EXPOSED]
        least[group] = np.minimum(least.get(group, exposed), exposed)
    return [waiting_beyond(rank, least[group]) for rank, group in zip(ranks, groups)]


def read_start(start: Path, skip: int) -> tuple[list[RankSteps], list[str]]:
    """All ranks of one start with the steps that all of them have, in order; and notes."""
    ranks = read_files(start)
    check_ranks(start, ranks)
    common: npt.NDArray[np.float64] = reduce(np.intersect1d,
                                             [rank.columns["step"] for rank in ranks])
    longest = max(rank.columns["step"].size for rank in ranks)
    cut = [f"rank_{rank.rank:05d}.h5" for rank in ranks if rank.columns["step"].size < longest]
    notes = [f"{start}: only the {common.size} steps that all ranks have, of {longest}; short: "
             f"{some(cut)}"] if common.size < longest else []
    if not all(rank.has_wait for rank in ranks):
        notes.append(f"{start}: its files have no {WAIT}; waiting for slower ranks is taken to be "
                     "what a rank's exposed reductions have beyond the least of its data group, "
                     "and beyond the time with a reduction in progress")
    ranks = [rank.skip(skip) for rank in split_waits([rank.only(common) for rank in ranks])]
    if common.size <= skip:
        raise ShortStartError(f"{start} has no more than {skip} steps; run longer, or lower --skip "
                              "or the deck's timing.every")
    return ranks, notes


def read_layouts(run: Run, skip: int, strict: bool = False) -> tuple[list[Layout], list[str]]:
    """The layouts of a run, and why starts or steps were left out.

    Starts are taken in order, without the first `skip` steps of each; neighbours with one layout
    on one kind of device are joined, unless their decks do different work. It is an error if no
    start is left; with `strict` also if one is damaged, but not if one is only short.
    """
    layouts: list[Layout] = []
    notes: list[str] = []
    problems: list[str] = []
    for start in start_folders(run):
        try:
            ranks, more = read_start(start, skip)
        except UserError as error:
            if strict and not isinstance(error, ShortStartError):
                raise
            problems.append(str(error))
            continue
        notes += more
        if (layouts and identities_of(layouts[-1].ranks) == identities_of(ranks)
                and same_work(run, layouts[-1].starts[-1], start.name)):
            last = layouts.pop()
            joined = [join(old, new) for old, new in zip(last.ranks, ranks)]
            layouts.append(Layout(run, [*last.starts, start.name], joined))
        else:
            layouts.append(Layout(run, [start.name], ranks))
    if not layouts:
        raise UserError(problems[-1] if problems else no_start_text(run))
    return layouts, [f"left out: {problem}" for problem in problems] + notes
