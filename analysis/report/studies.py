# SPDX-License-Identifier: Apache-2.0
"""What a report on a study adds: its tables and figures, and sentences on its rows beside the base."""
from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Sequence

from analysis.report.document import Drawing, Section, Sheet
from analysis.report.predictions import predictions_of_rows
from analysis.report.setup import Source
from analysis.runs import Run
from analysis.scaling import Case
from analysis.study.columns import change_words, is_relative
from analysis.study.command import pictures_of, read_all_cases, titled, training_runs
from analysis.study.draw import numbers_of
from analysis.study.measured import read_benches
from analysis.study.record import (
    DIVERGED, DONE, FAILED, OUT_OF_MEMORY, RUNNING, STOPPED, Record, read_study_folder,
)
from analysis.study.rows import Result, Row, read_result
from analysis.study.tabulate import Tabulated, axis_title, columns_of, csv_text, tabulate

MOST_SENTENCES = 24
# Columns whose change beside the base is reported, if the study measures them.
REPORTED = ("parameter_bytes", "memory_peak_bytes", "tokens_per_second", "images_per_second", "final_loss", "top1", "step_seconds")

# States of rows whose reported figures are not those of a whole run, and what is said of them.
UNFINISHED = {DIVERGED: "; it diverged on the way", STOPPED: "; it was stopped before its end",
              FAILED: "; it failed before its end", RUNNING: "; it is still running"}


@dataclass(frozen=True)
class StudyPart:
    title: str
    about: str
    sections: list[Section]
    tables: list[str]  # as text
    csv: str
    runs: list[Run]
    cases: list[Case]
    notes: list[str]
    skip: int
    source: Source
    has_learning: bool
    predictions: list[Section]  # of points of `bench`
    result: Result
    tabulated: list[Tabulated]


def words_of(result: Result, labels: dict[str, str]) -> str:
    """Labels by their axes; the name of the axis only where a label alone does not say it."""
    common = Counter(label for axis in result.axes for label in axis.labels)
    return ", ".join(f"{axis_title(name)} {label}" if numbers_of([label]) or common[label] > 1 else label
                     for name, label in labels.items())


def row_name(result: Result, row: Row) -> str:
    several = {axis.name for axis in result.axes if len(axis.labels) > 1}
    return words_of(result, {name: label for name, label in row.labels.items() if name in several} or row.labels)


def change_of(result: Result, row: Row, base: Row, name: str) -> str:
    """Such as "peak memory (MiB) 100.0 to 60.0 (-40.0 %)"; empty if one of them was not measured, or is of
    another command or of other data."""
    old, new = base.value(name), row.value(name)
    if math.isnan(old) or math.isnan(new) or not old > 0 or not row.can_be_compared(base, name):
        return ""
    each = columns_of(result, (base, row), [name])[0]
    return f"{each.title} {each.text(old)} to {each.text(new)} ({change_words(each, old, new)})"


def shown_columns(result: Result) -> list[str]:
    """Those of REPORTED that some table or plot of the study shows."""
    named = {name.removesuffix("_change") for table in result.study.tables for name in table.columns}
    named |= {name for plot in result.study.plots for name in plot.y}
    return [name for name in REPORTED if name in named and not is_relative(name)]


def extreme_sentences(result: Result) -> list[str]:
    """Of a study without a base: which rows have the least and the greatest value."""
    reported = []
    for name in shown_columns(result):
        rows = [row for row in result.rows if row.state == DONE and not math.isnan(row.value(name))]
        if len(rows) < 2:
            continue
        least, most = (pick(rows, key=lambda row: row.value(name)) for pick in (min, max))
        each = columns_of(result, rows, [name])[0]
        others = sum(row.state == DIVERGED for row in result.rows)
        beside = f", beside {others} that diverged" if others else ""
        reported.append(f"{each.title}: least {each.text(least.value(name))} ({row_name(result, least)}), greatest "
                        f"{each.text(most.value(name))} ({row_name(result, most)}){beside}.")
    return reported


def beside_base(result: Result, row: Row, base: Row) -> tuple[str, str]:
    """What both rows have in common, and in what they differ."""
    several = {axis.name for axis in result.axes if len(axis.labels) > 1}
    same = {name: label for name, label in row.labels.items() if base.labels.get(name) == label and name in several}
    names = [name for name, label in row.labels.items() if base.labels.get(name) != label]
    own, other = (words_of(result, {name: each.labels[name] for name in names if name in each.labels}) for each in (row, base))
    return words_of(result, same), f"{own} beside {other}"


def change_sentences(result: Result) -> list[str]:
    """Each row beside the one that it is compared with; rows with something in common are one point."""
    reported: dict[str, list[str]] = {}
    for row in result.rows:
        base = result.base_of(row)
        if base is None or base is row:
            continue
        changes = [change_of(result, row, base, name) for name in shown_columns(result)]
        found = "; ".join(change for change in changes if change)
        if found:
            common, differing = beside_base(result, row, base)
            reported.setdefault(common, []).append(f"{differing}: {found}{UNFINISHED.get(row.state, '')}.")
    alone = reported.pop("", [])
    return alone + [f"{common}: {' '.join(sentences)}" for common, sentences in reported.items()]


def row_sentences(result: Result) -> list[str]:
    """Changes beside the base or the extremes, and which rows ran out of memory."""
    reported = change_sentences(result)
    if len(reported) > MOST_SENTENCES:
        reported = reported[:MOST_SENTENCES] + [f"{len(reported) - MOST_SENTENCES} more groups of rows are in the tables."]
    reported += [] if result.study.base else extreme_sentences(result)
    gone = [row_name(result, row) for row in result.rows if row.state == OUT_OF_MEMORY]
    if gone:
        reported.append(f"{len(gone)} of {len(result.rows)} rows ran out of memory: {'; '.join(gone)}.")
    return reported


def study_section(folder: Path, result: Result, tables: Sequence[Tabulated]) -> Section:
    drawings = [Drawing(picture.name, picture.figure, "", f"{picture.title}; the tables hold the same numbers")
                for picture in pictures_of(folder, result) if not is_own(result, picture.name)]
    sheets = [Sheet(table.title, table.header, table.rows) for table in tables]
    return Section("Results of the study", [], row_sentences(result), drawings, sheets)


def is_own(result: Result, name: str) -> bool:
    """A report draws groups that scale in sections of their own."""
    return any(plot.kind == "scaling" and (name == plot.name or name.startswith(f"{plot.name}_"))
               for plot in result.study.plots)


def source_of(folder: Path, records: Sequence[Record], cases: Sequence[Case], runs: Sequence[Run]) -> Source:
    decks = list(dict.fromkeys(str(record.settings["deck"]) for record in records if record.settings["deck"]))
    return Source(cases, runs, read_benches(folder, records), [record.machine for record in records], decks)


def read_study_part(folder: Path, skip: int | None) -> StudyPart:
    study = read_study_folder(folder)
    result = read_result(folder, study)
    tables = [tabulate(result, table) for table in study.tables]
    runs = training_runs(folder, result)
    steps = study.skip if skip is None else skip
    cases, notes = read_all_cases(runs, steps)
    reported = dict.fromkeys([*result.notes, *notes])
    return StudyPart(
        titled(folder, result), study.about, [study_section(folder, result, tables)],
        [table.text for table in tables], csv_text(result), runs, cases,
        list(reported), steps, source_of(folder, result.records, cases, runs),
        any(plot.kind == "learning" for plot in study.plots),
        predictions_of_rows({axis.name: axis_title(axis.name) for axis in result.axes}, result.rows), result, tables)
