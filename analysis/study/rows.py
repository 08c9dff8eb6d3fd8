# SPDX-License-Identifier: Apache-2.0
"""The rows of a study: a combination of its axes, repetitions taken together."""
from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Sequence

import numpy as np

from analysis.crowding import OUTPUT, crowd_notes, crowd_of
from analysis.errors import UserError
from analysis.runs import FINAL_LOSS, Run, mean_of_last, read_metrics
from analysis.study.columns import CHANGE, LOSSES, QUALITY, RELATIVE, is_relative
from analysis.study.measured import Values, measured_values
from analysis.study.points import combinations
from analysis.study.record import DIVERGED, DONE, OUT_OF_MEMORY, RESULTS, Record, point_folder, read_records
from analysis.study.settings import MODE, Settings, deck_value, value_text
from analysis.study.spec import RUN_KINDS, Axis, Choice, Plot, Study
from analysis.tables import some
from analysis.yaml_files import load_yaml

# A line of the program about the machine.
_BUSY = re.compile(r"^busy machine: its load of the last minute is ([\d.]+) on", re.MULTILINE)


@dataclass(frozen=True)
class Row:
    """`values` are means over repetitions, `spread` their least and largest."""

    labels: dict[str, str]
    points: list[str]
    state: str
    values: Values
    spread: dict[str, tuple[float, float]] = field(default_factory=dict)
    command: str = ""
    data: tuple[str, str] = ("", "")  # of training and of validation

    def can_be_compared(self, other: Row, name: str) -> bool:
        """Whether a change of `name` from one row to the other says something: losses need the same data,
        rates, times and memory the same command."""
        if name not in QUALITY:
            return self.command == other.command
        same_training = name not in ("training_loss", "equal_time_loss") or self.data[0] == other.data[0]
        return self.data[1] == other.data[1] and same_training

    def value(self, name: str) -> float:
        return self.values.get(name, math.nan)


@dataclass(frozen=True)
class Result:
    """A study as far as it ran; `axes` has the modes of `bench --mode all` too."""

    study: Study
    axes: list[Axis]
    rows: list[Row]
    records: list[Record]
    notes: list[str]

    def relative(self, row: Row, name: str) -> float:
        """A ratio to the base row; NaN if there is none."""
        base = self.base_of(row)
        if base is None:
            return math.nan
        measured = RELATIVE.get(name, name.removesuffix(CHANGE))
        own, other = row.value(measured), base.value(measured)
        if not other > 0 or math.isnan(own) or not row.can_be_compared(base, measured):
            return math.nan
        if measured in LOSSES and name.endswith(CHANGE):
            return own - other
        if name == "run_speed_up":
            return other / own
        if name == "efficiency":
            return own / other * base.value("ranks") / row.value("ranks")
        return own / other if name == "speed_up" else own / other - 1.0

    def base_of(self, row: Row) -> Row | None:
        """The row that differs from this one in the study's `base` alone."""
        if not self.study.base:
            return None
        labels = row.labels | self.study.base
        return next((each for each in self.rows if each.labels == labels and each.state == DONE), None)

    def shown(self, names: Sequence[str]) -> list[str]:
        """Without what is relative to a base if every row is its own, as with one precision of one."""
        compares = any(len(axis.labels) > 1 for axis in self.axes if axis.name in self.study.base)
        kept = [name for name in names if compares or not self.study.base or not is_relative(name)]
        return kept or list(names)

    def value(self, row: Row, name: str) -> float:
        return self.relative(row, name) if is_relative(name) else row.value(name)

    def can_draw(self, plot: Plot) -> bool:
        """Whether a plot of lines or bars has a row, and the result its axis."""
        return any(plot.x in row.labels for row in self.selected(plot.where)) and plot.x in [axis.name for axis in self.axes]

    def selected(self, where: dict[str, str]) -> list[Row]:
        return [row for row in self.rows if all(row.labels.get(key) == label for key, label in where.items())]


def state_of(records: Sequence[Record], values: Sequence[Values]) -> str:
    """The worst of the repetitions; a run can diverge and still end well."""
    states = [DIVERGED if record.state == DONE and each.get("diverged") else record.state
              for record, each in zip(records, values)]
    unfinished = [state for state in states if state not in RESULTS]
    for state in (*unfinished, OUT_OF_MEMORY, DIVERGED):
        if state in states:
            return state
    return DONE


def joined(labels: dict[str, str], records: Sequence[Record], values: Sequence[Values]) -> Row:
    names = dict.fromkeys(name for each in values for name in each)
    known = {name: [each[name] for each in values if name in each and not math.isnan(each[name])]
             for name in names}
    known = {name: numbers for name, numbers in known.items() if numbers}
    return Row(labels, [record.name for record in records], state_of(records, values),
               {name: sum(numbers) / len(numbers) for name, numbers in known.items()},
               {name: (min(numbers), max(numbers)) for name, numbers in known.items() if len(numbers) > 1},
               str(records[0].settings["command"]), data_of(records[0].settings))


def data_of(settings: Settings) -> tuple[str, str]:
    """Files of training and validation, of the settings or else of the deck, if it can still be read."""
    try:
        deck = load_yaml(Path(str(settings["deck"]))) if settings.get("deck") else {}
    except UserError:
        deck = {}

    def files(key: str) -> str:
        value = settings.get(key, deck_value(deck, key))
        return "" if value is None else value_text(value)

    return files("data.train"), files("data.validation")


def read_result(folder: Path, study: Study) -> Result:
    """Rows in the order of the axes."""
    records = list(read_records(folder).values())
    if not records:
        raise UserError(f"{folder} holds no point yet; run jobs/study.py first")
    gathered: dict[tuple[tuple[str, str], ...], list[tuple[Record, Values]]] = {}
    notes: list[str] = []
    modes: dict[str, None] = {}
    names = [axis.name for axis in study.axes]
    for record in records:
        if list(record.labels) != names or any(label not in study.axis(axis).labels
                                               for axis, label in record.labels.items()):
            notes.append(f"{record.name} is no point of the study any more; left out")
            continue
        found, more = measured_values(folder, record, study.skip)
        notes += more
        for mode, values in found.items():
            labels = record.labels | ({MODE: mode} if mode and MODE not in record.labels else {})
            modes |= dict.fromkeys([labels[MODE]] if MODE in labels else [])
            gathered.setdefault(tuple(labels.items()), []).append((record, values))
    axes = study.axes + ([] if MODE in names or len(modes) < 2 else
                         [Axis(MODE, [Choice(mode, {MODE: mode}) for mode in modes])])
    rows = [joined({axis.name: dict(labels)[axis.name] for axis in axes if axis.name in dict(labels)},
                   [record for record, _ in found], [values for _, values in found])
            for labels, found in gathered.items()]
    order = {axis.name: {label: index for index, label in enumerate(axis.labels)} for axis in axes}
    rows = with_equal_time(folder, rows)
    rows.sort(key=lambda row: [order[axis.name].get(row.labels.get(axis.name, ""), -1) for axis in axes])
    notes += state_notes(records) + load_notes(folder, records) + waiting_notes(study, records)
    result = Result(study, axes, rows, records, notes)
    return replace(result, notes=result.notes + undrawn_notes(result) + loss_notes(study))


def with_equal_time(folder: Path, rows: list[Row]) -> list[Row]:
    """Adds the training loss of each run when the first of them ended: mean of its last steps until then."""
    ends = [row.values["wall_seconds"] for row in rows if row.state == DONE and "wall_seconds" in row.values]
    if len(ends) < 2:
        return rows
    return [replace(row, values=row.values | {"equal_time_loss": loss_until(folder, row, min(ends))})
            if "wall_seconds" in row.values else row for row in rows]


def loss_until(folder: Path, row: Row, seconds: float) -> float:
    losses = []
    for name in row.points:
        place = point_folder(folder, name)
        metrics = read_metrics(Run(place, name))
        losses.append(mean_of_last(metrics.column("loss")[metrics.column("wall_seconds") <= seconds * (1 + 1e-9)]))
    return float(np.mean(losses))


def undrawn_notes(result: Result) -> list[str]:
    return [f"plot {plot.name} is left out: no point of it has run" for plot in result.study.plots
            if plot.kind not in RUN_KINDS and not result.can_draw(plot)]


def loss_notes(study: Study) -> list[str]:
    named = [name for table in study.tables for name in table.columns] + [name for plot in study.plots for name in plot.y]
    return [FINAL_LOSS] if "final_loss" in [name.removesuffix(CHANGE) for name in named] else []


def state_notes(records: Sequence[Record]) -> list[str]:
    """Points that ended without a result, and those whose memory did not suffice."""
    return [f"{record.name}: {record.state}{f' ({record.message})' if record.message else ''}"
            for record in records if record.state != DONE]


def load_notes(folder: Path, records: Sequence[Record]) -> list[str]:
    """Points whose times were not those of free cores, as the program said when it began."""
    crowds: dict[str, str] = {}
    busy: dict[str, float] = {}
    for record in records:
        path = point_folder(folder, record.name) / OUTPUT
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        crowds[record.name] = crowd_of(path.parent)
        loads = [float(load) for load in _BUSY.findall(text)]
        busy |= {record.name: max(loads)} if loads else {}
    notes = crowd_notes(crowds)
    if busy:
        notes.append(f"other programs used the machine during {some(list(busy))} (load up to {max(busy.values()):g}): times vary")
    return notes


def waiting_notes(study: Study, records: Sequence[Record]) -> list[str]:
    """Points of the study that never began."""
    begun = [(record.repetition, record.labels) for record in records]
    every = [(repetition, labels) for repetition, labels, _ in combinations(study)]
    waiting = [", ".join(labels.values()) for repetition, labels in every if (repetition, labels) not in begun]
    if not waiting:
        return []
    return [f"{len(waiting)} of {len(every)} points did not run: {some(waiting, '; ')}"]
