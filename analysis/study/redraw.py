#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bars of a recorded study again, from its .csv alone, where its runs are gone.

python3 -m analysis.study.redraw STUDY.yaml STUDY.csv PLOT SUBJECT FIGURE.png

SUBJECT is the line below the title, which only the runs know.
"""
from __future__ import annotations

import sys
from pathlib import Path
from typing import Sequence

from analysis.csv_files import read_csv
from analysis.errors import UserError, one_line
from analysis.study.draw import draw_plot
from analysis.study.points import expand
from analysis.study.rows import Result, Row, data_of
from analysis.study.spec import read_study
from analysis.style import write_figure


def read_recorded(study_path: Path, table: Path) -> Result:
    """Rows of the .csv with the commands and data of the study's points."""
    study = read_study(study_path)
    points = {tuple(point.labels.items()): point for point in expand(study, str(study_path))}
    names = [axis.name for axis in study.axes]
    columns, lines = read_csv(table)
    missing = [name for name in (*names, "state") if name not in columns]
    if missing:
        raise UserError(f"{table}: there is no column {missing[0]}; give the .csv of a report on {study_path}")
    rows = []
    for number, line in lines:
        labels = {name: line[name] for name in names}
        point = points.get(tuple(labels.items()))
        if point is None:
            raise UserError(f"{table}:{number}: {', '.join(labels.values())} is no point of {study_path}")
        try:
            values = {key: float(text) for key, text in line.items() if key not in (*names, "state", "points") and text}
        except (TypeError, ValueError) as error:
            raise UserError(f"{table}:{number}: {error}") from error
        rows.append(Row(labels, [point.name], line["state"], values, {}, point.command, data_of(point.settings)))
    return Result(study, study.axes, rows, [], [])


def redraw(study: str, table: str, name: str, subject: str, figure: str) -> Path:
    result = read_recorded(Path(study), Path(table))
    plots = [plot for plot in result.study.plots if plot.name == name and plot.kind == "bars" and result.can_draw(plot)]
    if not plots:
        raise UserError(f"{study} has no plot of bars called {name}, or {table} no row of it")
    return write_figure(draw_plot(result, plots[0], subject), Path(figure))


def main(words: Sequence[str]) -> int:
    if len(words) != 5:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        print(one_line(str(redraw(*words))))
    except UserError as error:
        print(f"redraw: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
