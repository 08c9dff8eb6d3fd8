# SPDX-License-Identifier: Apache-2.0
"""`study`: the tables and plots that a study's file describes."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Sequence

from analysis.deck import read_deck
from analysis.errors import UserError
from analysis.first_steps import skip_text
from analysis.learning import draw_steps
from analysis.report.plot import draw_group
from analysis.runs import Run, read_metrics
from analysis.scaling import Case, make_groups, read_cases
from analysis.step_time import draw as draw_times
from analysis.study.draw import draw_plot
from analysis.study.measured import read_benches
from analysis.study.record import find_study, point_folder, read_study_folder
from analysis.study.rows import Result, read_result
from analysis.study.spec import RUN_KINDS, Plot
from analysis.study.tabulate import Tabulated, csv_text, tabulate
from analysis.style import Figure, save
from analysis.subject import device_text, either, model_text, sized_text, subject_of_runs
from analysis.sweep import draw as draw_sweep
from analysis.sweep import read_points
from analysis.tables import (
    markdown_image, markdown_table, markdown_words, note_lines, output_folder, path_lines, write_report,
)
from analysis.timings import read_layouts


@dataclass(frozen=True)
class Picture:
    name: str
    title: str
    figure: Figure


def has_steps(path: Path) -> bool:
    """A point that is stopped in its first step leaves a file without a whole line."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.readline().endswith(b"}\n")


def training_runs(folder: Path, result: Result) -> list[Run]:
    """Points that have done a step, in the order of the rows."""
    names = dict.fromkeys(name for row in result.rows for name in row.points)
    paths = [point_folder(folder, name) for name in names]
    return [Run(path, path.name) for path in paths if has_steps(path / "metrics.jsonl")]


def read_all_cases(runs: Sequence[Run], skip: int) -> tuple[list[Case], list[str]]:
    """Runs that are too short to be measured are noted."""
    cases: list[Case] = []
    notes: list[str] = []
    for run in runs:
        try:
            more, reported = read_cases(run, skip)
        except UserError as error:
            notes.append(f"{run.label}: {error}")
            continue
        cases += more
        notes += reported
    return cases, notes


def of_runs(plot: Plot, runs: Sequence[Run], skip: int) -> list[Picture]:
    """Plots that other commands draw too."""
    if plot.kind == "learning":
        return [Picture(plot.name, plot.title, draw_steps([read_metrics(run) for run in runs]))]
    if plot.kind == "sweep":
        return [Picture(plot.name, plot.title, draw_sweep(read_points(runs), subject_of_runs(runs)))]
    if plot.kind == "time":
        layouts = [layout for run in runs for layout in read_layouts(run, skip)[0]]
        return [Picture(plot.name, plot.title, draw_times(layouts))]
    groups = make_groups(read_all_cases(runs, skip)[0], None)
    return [Picture(plot.name if number == 1 else f"{plot.name}_{number}", plot.title,
                    draw_group(group)) for number, group in enumerate(groups, 1)]


def bench_subject(folder: Path, result: Result) -> str:
    """Model, precision and device, as subject_of_runs has them for runs."""
    benches = read_benches(folder, result.records)
    words = (either([str(each["model"]) for each in benches], "several models"),
             either([str(each["precision"]) for each in benches], "several precisions"),
             device_text(str(each["device"]) for each in benches))
    return "; ".join(word for word in words if word)


def titled(folder: Path, result: Result) -> str:
    """The study's title with the model that its points had, if it is one: the file's own may be another with --small."""
    models = {model_text(read_deck(run)) for run in training_runs(folder, result) if (run.path / "deck.yaml").is_file()}
    models |= {sized_text(each["model"].split(":")[0], each["parameters"]) for each in read_benches(folder, result.records)}
    return f"{result.study.title}: {models.pop()}" if len(models) == 1 else result.study.title


def pictures_of(folder: Path, result: Result) -> list[Picture]:
    """In the order of the study; without those that have nothing to draw."""
    runs = training_runs(folder, result)
    found: list[Picture] = []
    subject = subject_of_runs(runs) or bench_subject(folder, result)
    for plot in result.study.plots:
        if plot.kind in RUN_KINDS:
            found += of_runs(plot, runs, result.study.skip) if runs else []
        elif result.can_draw(plot):
            found.append(Picture(plot.name, plot.title, draw_plot(result, plot, subject)))
    return found


def skip_notes(result: Result) -> list[str]:
    """Of training alone: `bench` warms up by itself."""
    return [skip_text(result.study.skip)] if any(row.command == "train" for row in result.rows) else []


def markdown(title: str, result: Result, tables: Sequence[Tabulated], pictures: Sequence[Picture]) -> str:
    parts = [f"# {markdown_words(title)}", markdown_words(result.study.about)]
    for table in tables:
        parts += [f"## {markdown_words(table.title)}\n\n{markdown_table(table.header, table.rows)}", table.note]
    parts += [markdown_image(picture.title, f"{picture.name}.png") for picture in pictures]
    parts += ["\n".join(f"- {markdown_words(note)}" for note in [*skip_notes(result), *result.notes])]
    return "\n\n".join(part for part in parts if part) + "\n"


def study(name: str, output: Path | None) -> str:
    """Writes study.md, study.csv and the figures; returns what to print."""
    place = find_study(name)
    result = read_result(place, read_study_folder(place))
    folder = output_folder(output or place / "report")
    tables = [tabulate(result, table) for table in result.study.tables]
    pictures = pictures_of(place, result)
    written = [write_report(folder / "study.md", markdown(titled(place, result), result, tables, pictures)),
               write_report(folder / "study.csv", csv_text(result))]
    for picture in pictures:
        written += save(picture.figure, folder / picture.name)
    reported = [table.text for table in tables]
    return "\n".join(["\n\n".join(reported), "", *note_lines([*skip_notes(result), *result.notes]), *path_lines(written)])
