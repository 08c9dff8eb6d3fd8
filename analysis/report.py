# SPDX-License-Identifier: Apache-2.0
"""`report`: how runs scale with ranks, as a page, plots, CSV and JSON."""
from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any, Sequence

from analysis.deck import differences
from analysis.report_page import page
from analysis.report_plot import draw_group
from analysis.report_tables import base_text, mfu_note, numbered_title, scaling_rows
from analysis.runs import Run, find_runs
from analysis.scaling import (
    COMPUTE, EXPOSED, STACK, Case, Group, group_notes, make_groups, named_decks, read_cases,
)
from analysis.step_time import rank_name
from analysis.style import save
from analysis.tables import output_folder, sanitized, text_table


def record(number: int, group: Group, case: Case) -> dict[str, Any]:
    """One row of scaling.csv; seconds and shares, nothing rounded."""
    data, pipeline, context, tensor = case.layout.sizes
    slowest = case.slowest
    exposed = case.seconds(EXPOSED)
    in_flight = case.reduce_seconds + case.parts["tensor"] + case.parts["pipeline"]
    return {
        "group": number, "scaling": group.kind, "run": case.layout.run.label,
        "starts": " ".join(case.layout.starts), "ranks": case.ranks, "data": data,
        "pipeline": pipeline, "context": context, "tensor": tensor, "hosts": " ".join(case.hosts),
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
        "communication_seconds": in_flight,
        "communication_exposed_seconds": exposed,
        "checkpoint_mean_seconds": case.checkpoint_mean_seconds,
        "slowest_rank": slowest.steps.rank, "slowest_place": rank_name(slowest.steps),
        "slowest_host": slowest.steps.host, "slowest_own_seconds": slowest.own_seconds,
        "slowest_above_median": slowest.excess, "memory_peak_bytes": case.peak_bytes,
        "mfu": None if math.isnan(case.mfu) else case.mfu,
    }


def csv_text(records: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


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
    note = f"\n{mfu_note(group)}" if mfu_note(group) else ""
    return f"{numbered_title(number, group)}\n{base_text(group)}\n\n{text_table(header, rows)}{note}"


def picture_name(number: int) -> str:
    return "scaling" if number == 1 else f"scaling_{number}"


def report(names: Sequence[str], output: Path, base_ranks: int | None, skip: int) -> str:
    """Writes scaling.html, scaling.csv, scaling.json and a figure per group; returns what to print."""
    runs = list({run.path.resolve(): run for run in find_runs(names)}.values())
    cases: list[Case] = []
    notes: list[str] = []
    for run in runs:
        more_cases, more_notes = read_cases(run, skip)
        cases += more_cases
        notes += more_notes
    groups = make_groups(cases, base_ranks)
    notes += group_notes(groups, base_ranks)
    records = [record(number, group, case) for number, group in enumerate(groups, 1)
               for case in group.cases]
    folder = output_folder(output)
    drawings: list[str] = []
    pictures: list[Path] = []
    for number, group in enumerate(groups, 1):
        figure, drawing = draw_group(number, group)
        drawings.append(drawing)
        pictures += save(figure, folder / picture_name(number))
    texts = {
        "scaling.html": page(groups, drawings, runs, cases, notes, skip),
        "scaling.csv": csv_text(records),
        "scaling.json": json_text(groups, records, runs, cases, notes, skip),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    tables = [group_text(number, group) for number, group in enumerate(groups, 1)]
    written = [str(folder / name) for name in texts] + [str(path) for path in pictures]
    return "\n".join(["\n\n".join(tables), "", *(f"note: {note}" for note in notes), *written])
