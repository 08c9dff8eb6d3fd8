# SPDX-License-Identifier: Apache-2.0
"""`report`: a study or runs, as one page (HTML, PDF, Markdown) with its figures, CSV and JSON."""
from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Sequence

from analysis.csv_files import csv_text
from analysis.deck import differences
from analysis.errors import UserError
from analysis.first_steps import skip_text
from analysis.report.assignment import compose
from analysis.report.content import Content, lead_of, read_parts, title_of
from analysis.report.document import Document, Section, html_text, markdown_text, write_pdf
from analysis.report.optimizations import optimization_sections
from analysis.report.page import METHOD, group_sections, learning_section, runs_section
from analysis.report.predictions import predictions_of_runs
from analysis.report.setup import setup_section
from analysis.report.tables import base_text, group_note, numbered_title, scaling_rows
from analysis.runs import Run, report_folder
from analysis.scaling import COMPUTE, STACK, Case, Group, named_decks
from analysis.study.record import find_study
from analysis.style import LOOK, Look, save, set_look
from analysis.tables import note_lines, output_folder, path_lines, sanitized, text_table, write_report

ASSIGNMENT = "assignment"
COLUMN_MM, MOST_HEIGHT_MM, FONT_POINTS = (85.0, 170.0), 60.0, 7.0  # of figures in a report to hand in


def record(number: int, group: Group, case: Case) -> dict[str, Any]:
    """One row of scaling.csv; seconds and shares, nothing rounded."""
    data, pipeline, context, tensor = case.layout.sizes
    slowest = case.slowest
    return {
        "group": number, "scaling": group.kind, "run": case.layout.run.label,
        "starts": " ".join(case.layout.starts), "ranks": case.ranks, "data": data,
        "tensor": tensor, "pipeline": pipeline, "context": context, "hosts": " ".join(case.hosts),
        "devices": "; ".join(case.devices), "commits": " ".join(case.commits),
        "tokens_per_step": case.tokens_per_step, "steps": case.steps,
        "step_seconds": case.step_seconds, "step_seconds_quartile_1": case.quartiles[0],
        "step_seconds_quartile_3": case.quartiles[1],
        "tokens_per_second": case.tokens_per_second, "is_base": case is group.base,
        "speed_up": group.speed_up(case), "efficiency": group.efficiency(case),
        "compute_seconds": case.seconds(COMPUTE),
        **{f"{name.replace(' ', '_')}_seconds": case.parts[name] for name in STACK},
        "threads_per_rank": " ".join(map(str, case.threads)),
        "reduce_seconds": case.reduce_seconds,
        "reduce_busy_seconds": None if math.isnan(case.busy_seconds) else case.busy_seconds,
        "communication_seconds": case.communication_seconds,
        "communication_exposed_seconds": case.exposed_seconds,
        "checkpoint_mean_seconds": case.checkpoint_mean_seconds,
        "slowest_rank": slowest.steps.rank, "slowest_place": slowest.steps.name,
        "slowest_host": slowest.steps.host, "slowest_own_seconds": slowest.own_seconds,
        "slowest_above_median": slowest.excess, "memory_peak_bytes": case.peak_bytes,
        "mfu": None if math.isnan(case.mfu) else case.mfu,
    }


def json_text(groups: Sequence[Group], records: Sequence[dict[str, Any]], runs: Sequence[Run],
              cases: Sequence[Case], notes: Sequence[str], skip: int) -> str:
    decks = named_decks(cases)
    content = {
        "format": 1, "skipped_steps_of_each_start": skip,
        "groups": [{"number": number, "scaling": group.kind, "base_ranks": group.base.ranks,
                    "base_run": group.base.layout.run.label,
                    "base_step_seconds": group.base.step_seconds,
                    "rows": [row for row in records if row["group"] == number],
                    "traffic": [{"run": case.layout.run.label, "ranks": case.ranks,
                                 "layout": case.shape, "groups": case.traffic}
                                for case in group.cases]}
                   for number, group in enumerate(groups, 1)],
        "decks": decks, "deck_differences": differences(list(decks.values())),
        "runs": [run.label for run in runs], "notes": list(notes),
    }
    return json.dumps(sanitized(content), indent=2, allow_nan=False) + "\n"


def group_text(number: int, group: Group) -> str:
    header, rows = scaling_rows(group)
    return f"{numbered_title(number, group)}\n{base_text(group)}\n\n{text_table(header, rows)}\n{group_note(group)}".rstrip()


def measured_sections(content: Content) -> list[Section]:
    study = content.study
    sections = [setup_section(content.source), *(study.sections if study else [])]
    sections += group_sections(content.groups)
    sections += predictions_of_runs(content.cases) or (study.predictions if study else [])
    has_curves = study is not None and study.has_learning
    return sections + ([] if has_curves else learning_section(content.runs))


def closing_sections(content: Content) -> list[Section]:
    return ([runs_section(content.cases)] if content.cases else []) + (
        [Section("Notes", points=content.notes)] if content.notes else [])


def method_sections(cases: Sequence[Case]) -> list[Section]:
    return [Section("How it is measured", list(METHOD))] if cases else []


def document_of(content: Content) -> Document:
    return Document(title_of(content), lead_of(content), [
        *measured_sections(content), *optimization_sections(content.cases), *closing_sections(content),
        *method_sections(content.cases)])


def document_of_parts(parts: dict[str, Content]) -> Document:
    """A part for each study, and one for runs that are of none; what optimizations do, over the runs of all
    parts, and how it is measured are said once, at the end."""
    sections = []
    for folder, content in parts.items():
        inner = [*measured_sections(content), *closing_sections(content)]
        lead = lead_of(content)
        sections += [Section(title_of(content), [lead] if lead else []), *(each.in_part(folder) for each in inner)]
    cases = [case for content in parts.values() for case in content.cases]
    titles = "; ".join(title_of(content) for content in parts.values())
    return Document(f"Report in {len(parts)} parts", f"{titles}.",
                    [*sections, *optimization_sections(cases), *method_sections(cases)])


def write_document(document: Document, folder: Path) -> tuple[list[Path], list[str]]:
    """Paths, and what could not be written."""
    page, text, pdf = (folder / f"report.{suffix}" for suffix in ("html", "md", "pdf"))
    write_report(page, html_text(document))
    write_report(text, markdown_text(document))
    problem = write_pdf(document, pdf)
    written = [page, text, *([] if problem else [pdf])]
    for drawing in document.drawings:
        (folder / drawing.name).parent.mkdir(exist_ok=True)
        written += save(drawing.figure, folder / drawing.name)
    return written, [problem] if problem else []


def write_tables(content: Content, folder: Path) -> list[Path]:
    """scaling.csv and scaling.json of runs, study.csv of a study."""
    records = [record(number, group, case) for number, group in enumerate(content.groups, 1) for case in group.cases]
    texts = {"study.csv": content.study.csv} if content.study else {}
    if records:
        texts["scaling.csv"] = csv_text(records)
        texts["scaling.json"] = json_text(content.groups, records, content.runs, content.cases, content.notes,
                                          content.skip)
    return [write_report(folder / name, text) for name, text in texts.items()]


def default_output(names: Sequence[str], parts: dict[str, Content]) -> Path:
    """Of one study or one run its own report/."""
    if len(parts) > 1:
        raise UserError(f"where shall the report in {len(parts)} parts be written? give --output DIR")
    return report_folder(names) if next(iter(parts.values())).study is None else find_study(names[0]) / "report"


@dataclass(frozen=True)
class Options:
    """`template`: empty, or ASSIGNMENT; `appendix`: with what the report has without a template."""

    base_ranks: int | None = None
    skip: int | None = None
    template: str = ""
    appendix: bool = False


def look_of_template() -> None:
    """Figures of one or two columns without titles, which captions have, unless the command line has another size."""
    if LOOK.size is None and LOOK.widths is None:
        set_look(Look(title=False, widths=COLUMN_MM, most_height=MOST_HEIGHT_MM, font_size=FONT_POINTS))


def compose_document(parts: dict[str, Content], options: Options) -> tuple[Document, list[str]]:
    """And what is to be said of it."""
    if options.template != ASSIGNMENT:
        return document_of(*parts.values()) if len(parts) == 1 else document_of_parts(parts), []
    found = compose(parts, document_of_parts(parts).sections if options.appendix else [])
    return found.document, found.notes


def report(names: Sequence[str], output: Path | None, options: Options) -> str:
    """Writes report.html, .md and .pdf, the figures and tables; returns what to print. Of a study the
    folder is its own report/ unless `output` names another. Several parts have folders in it."""
    if options.appendix and not options.template:
        raise UserError("--appendix adds what a report has anyway to a template's pages; give --template assignment, too, or leave it out")
    if options.template == ASSIGNMENT:
        look_of_template()
    parts = read_parts(names, options.base_ranks, options.skip)
    folder = output_folder(default_output(names, parts) if output is None else output)
    one = len(parts) == 1
    document, remarks = compose_document(parts, options)
    written, problems = write_document(document, folder)
    tables = []
    for name, content in parts.items():
        written += write_tables(content, folder if one else output_folder(folder / name))
        tables += content.study.tables if content.study else []
        tables += [group_text(number, group) for number, group in enumerate(content.groups, 1)]
    notes = list(dict.fromkeys(skip_text(content.skip) for content in parts.values() if content.cases))
    notes += [note for content in parts.values() for note in content.notes]
    return "\n".join(["\n\n".join(tables), "", *note_lines([*notes, *remarks, *problems]), *path_lines(written)])
