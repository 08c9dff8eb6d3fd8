# SPDX-License-Identifier: Apache-2.0
"""The tables of a study: rows by the axes, one axis across if the study says so."""
from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from typing import Sequence

from analysis.dashes import dash_note
from analysis.errors import one_line
from analysis.study.columns import Column, fitted, of_mode
from analysis.study.record import DONE
from analysis.study.rows import Result, Row
from analysis.study.settings import MODE
from analysis.study.spec import Axis, Table
from analysis.tables import text_table


TITLES = {"precision.compute": "precision", "optimizer.lr": "learning rate", "optimizer.name": "optimizer",
          "sum": "type of the sum", "term": "type of the term"}


@dataclass(frozen=True)
class Tabulated:
    """A table as text."""

    title: str
    header: list[str]
    rows: list[list[str]]

    @property
    def note(self) -> str:
        """Why some of its cells are dashes; empty if none is."""
        return dash_note([(self.header, self.rows)])

    @property
    def text(self) -> str:
        """As it is printed."""
        return f"{one_line(self.title)}\n\n{text_table(self.header, self.rows)}\n{self.note}".rstrip()


def axis_title(name: str) -> str:
    """The last part of a key says enough, of most."""
    return TITLES.get(name) or name.split(".")[-1].replace("_", " ")


def columns_of(result: Result, rows: Sequence[Row], names: Sequence[str]) -> list[Column]:
    """In units that fit these rows."""
    found = [fitted(name, (result.value(row, name) for row in rows)) for name in names]
    return [of_mode(each) for each in found] if any(axis.name == MODE for axis in result.axes) else found


def cell(result: Result, row: Row | None, each: Column) -> str:
    """A number; what became of the point if there is none; a dash if nothing was measured."""
    if row is None:
        return "-"
    value = result.value(row, each.name)
    if math.isnan(value):
        return "-" if row.state == DONE else row.state
    mark = "" if row.state == DONE else f" ({row.state})"
    return each.text(value) + mark


def shown_axes(result: Result, table: Table) -> list[Axis]:
    """Those that are told apart by rows."""
    return [axis for axis in result.axes if axis.name != table.across and axis.name not in table.where]


def tabulate(result: Result, table: Table) -> Tabulated:
    rows = result.selected(table.where)
    axes = shown_axes(result, table)
    across = next((axis for axis in result.axes if axis.name == table.across), None)
    keys = list(dict.fromkeys(tuple(row.labels.get(axis.name, "") for axis in axes) for row in rows))
    columns = columns_of(result, rows, result.shown(table.columns))
    header = [axis_title(axis.name) for axis in axes] or ["study"]
    labels = across.labels if across else [""]
    for label in labels:
        prefix = f"{axis_title(across.name)} {label}: " if len(labels) > 1 and across else ""
        header += [prefix + each.title for each in columns]
    texts = []
    for key in keys:
        cells = list(key) or [result.study.name]
        for label in labels:
            row = find(rows, axes, key, table.across, label)
            cells += [cell(result, row, each) for each in columns]
        texts.append(cells)
    return Tabulated(table.title or result.study.title, header, texts)


def find(rows: Sequence[Row], axes: Sequence[Axis], key: tuple[str, ...], across: str, label: str) -> Row | None:
    return next((row for row in rows if tuple(row.labels.get(axis.name, "") for axis in axes) == key
                 and (not across or row.labels.get(across) == label)), None)


def csv_text(result: Result) -> str:
    """Every row with everything that was measured: seconds, bytes and shares, nothing rounded."""
    names = list(dict.fromkeys(name for row in result.rows for name in row.values))
    ratios = [name for name in dict.fromkeys(
        name for table in result.study.tables for name in table.columns) if name not in names]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*(axis.name for axis in result.axes), "state", "points", *names, *ratios])
    for row in result.rows:
        values = [result.value(row, name) for name in (*names, *ratios)]
        writer.writerow([*(row.labels.get(axis.name, "") for axis in result.axes), row.state, " ".join(row.points),
                         *("" if math.isnan(value) else f"{value:.10g}" for value in values)])
    return text.getvalue()
