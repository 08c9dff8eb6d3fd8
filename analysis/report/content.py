# SPDX-License-Identifier: Apache-2.0
"""The parts of a report: each study that was named, and all runs that belong to none."""
from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Sequence

from analysis.crowding import crowd_notes
from analysis.first_steps import SKIPPED_STEPS
from analysis.report.page import lead_text
from analysis.report.setup import Source
from analysis.report.studies import StudyPart, read_study_part
from analysis.runs import Run, find_runs
from analysis.scaling import Case, Group, group_notes, make_groups, read_cases
from analysis.study.record import find_study, is_study_folder


@dataclass(frozen=True)
class Content:
    """What a report is about; `study` if it is a study."""

    runs: list[Run]
    cases: list[Case]
    groups: list[Group]
    notes: list[str]
    skip: int
    study: StudyPart | None = None
    source: Source = field(default_factory=lambda: Source((), ()))


def read_runs(names: Sequence[str], base_ranks: int | None, skip: int) -> Content:
    runs = list({run.path.resolve(): run for run in find_runs(names)}.values())
    cases: list[Case] = []
    notes: list[str] = []
    for run in runs:
        more_cases, more_notes = read_cases(run, skip)
        cases += more_cases
        notes += more_notes
    groups = make_groups(cases, base_ranks)
    notes += group_notes(groups, base_ranks) + crowd_notes({case.name: case.crowd for case in cases})
    return Content(runs, cases, groups, notes, skip, None, Source(cases, runs))


def read_study(folder: Path, base_ranks: int | None, skip: int | None) -> Content:
    """Points that are too short to be measured, or no training runs, are in the study's own tables."""
    study = read_study_part(folder, skip)
    groups = make_groups(study.cases, base_ranks) if study.cases else []
    notes = study.notes + (group_notes(groups, base_ranks) if groups else [])
    return Content(study.runs, study.cases, groups, notes, study.skip, study, study.source)


def title_of(content: Content) -> str:
    return content.study.title if content.study else "Scaling report"


def lead_of(content: Content) -> str:
    lead = lead_text(content.groups, content.runs, content.cases, content.skip) if content.cases else ""
    return " ".join(text for text in (content.study.about if content.study else "", lead) if text)


def read_parts(names: Sequence[str], base_ranks: int | None, skip: int | None) -> dict[str, Content]:
    """By the names of the parts' folders: a part for each study, in the order given, then one for all runs."""
    def is_study(name: str) -> bool:
        return is_study_folder(Path(name)) or is_study_folder(Path("runs") / name)

    parts = {}
    folders = {path.resolve(): path for path in (find_study(name) for name in names if is_study(name))}
    for number, folder in enumerate(folders.values(), 1):
        parts[f"{number}_{folder.resolve().name}"] = read_study(folder, base_ranks, skip)
    runs = [name for name in names if not is_study(name)]
    if runs:
        parts[f"{len(parts) + 1}_runs"] = read_runs(runs, base_ranks, SKIPPED_STEPS if skip is None else skip)
    return parts
